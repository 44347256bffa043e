"""The sharding rule and the layout of attention calls (`__cudnn$fmha...`, `flint.attention`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flint.passes.mlir import (
    is_attention,
    is_attention_backward,
    is_heads_first,
    operations_named,
    shape_of,
)

Shape = tuple[int, ...]


def attach_attention_rules(module: Any) -> None:
    """Give every attention call a Shardy rule: batch and heads shard, all else is whole."""
    with module.context:
        for op in operations_named(module, "stablehlo.custom_call"):
            rule = attention_rule(op)
            if rule is not None and "sdy.sharding_rule" not in op.attributes:
                op.attributes["sdy.sharding_rule"] = rule


def attention_rule(call: Any) -> Any | None:
    """The Shardy rule of a custom call, None if it is no attention."""
    target = call.attributes["call_target_name"].value
    return _attention_rule(call, is_attention_backward(target)) if is_attention(target) else None


class _Factors:
    """Factors of one sharding rule: sizes, and which of them must stay whole."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.whole: list[int] = []

    def new(self, size: int, *, whole: bool = False) -> int:
        self.sizes.append(size)
        if whole:
            self.whole.append(len(self.sizes) - 1)
        return len(self.sizes) - 1


def _attention_rule(op: Any, backward: bool) -> Any:
    from jaxlib.mlir.dialects import sdy

    operands = [shape_of(v) for v in op.operands]
    results = [shape_of(v) for v in op.results]
    factors = _Factors()
    q_dims, k_dims, v_dims = (_heads_first(s, op) for s in operands[:3])
    batch, heads, q_len, size = q_dims
    kv_heads, k_len, v_size = k_dims[1], k_dims[2], v_dims[3]
    b, m = factors.new(batch), factors.new(kv_heads)
    n = _query_heads(heads, kv_heads, m, factors)
    t, s = factors.new(q_len, whole=True), factors.new(k_len, whole=True)
    h, v = factors.new(size, whole=True), factors.new(v_size, whole=True)
    query, key, value = [[b], n, [t], [h]], [[b], [m], [s], [h]], [[b], [m], [s], [v]]
    out, stat = [[b], n, [t], [v]], [[b], n, [t]]

    def outside(mapping: list[list[int]]) -> list[list[int]]:
        """The order of dimensions that operands have; results come heads first."""
        return mapping if is_heads_first(op) else [mapping[i] for i in (0, 2, 1, 3)]

    known = [outside(query), outside(key), outside(value)]
    if backward:
        known += [stat, outside(out)]
    given = [query, key, value] if backward else [out, stat]

    def operand(number: int, shape: Shape) -> list[list[int]]:
        if number < len(known):
            return known[number]
        if backward and shape == operands[4]:
            return outside(out)  # the forward output, beside its gradient
        return _by_size(shape, b, n, batch, heads, factors)

    def result(number: int, shape: Shape) -> list[list[int]]:
        if number < len(given) and len(shape) == len(given[number]) and shape[0] == batch:
            return given[number]
        return _by_size(shape, b, n, batch, heads, factors)

    maps = [operand(i, shape) for i, shape in enumerate(operands)]
    outs = [result(i, shape) for i, shape in enumerate(results)]

    def tensors(mappings: Sequence[list[list[int]]]) -> list[Any]:
        return [sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get(d) for d in m]) for m in mappings]

    return sdy.OpShardingRuleAttr.get(
        factors.sizes,
        tensors(maps),
        tensors(outs),
        need_replication_factors=factors.whole,
        is_custom=True,
    )


def _query_heads(heads: int, kv_heads: int, m: int, factors: _Factors) -> list[int]:
    """Factors of the query heads: those of keys (`m`), and within each those that share it.

    A dimension of several factors has none of size 1: Shardy's attribute refuses that.
    """
    if heads == kv_heads:
        return [m]
    shared = factors.new(heads // kv_heads)
    return [shared] if kv_heads == 1 else [m, shared]


def _by_size(
    shape: Shape, b: int, n: list[int], batch: int, heads: int, factors: _Factors
) -> list[list[int]]:
    """Batch first and heads second where the sizes say so; every other dimension stays whole."""

    def dimension(number: int, size: int) -> list[int]:
        if number == 0 and size == batch:
            return [b]
        if number == 1 and size == heads and len(shape) == 4:
            return n
        return [factors.new(size, whole=True)]

    return [dimension(number, size) for number, size in enumerate(shape)]


def _heads_first(shape: Shape, op: Any) -> Shape:
    return shape if is_heads_first(op) else tuple(shape[i] for i in (0, 2, 1, 3))
