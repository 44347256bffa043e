"""Sharding rules for operations that Shardy has none for.

A rule says which dimensions of operands and results are the same factor, in Shardy's own notation
(`#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16}>`). Without a rule an operation blocks
propagation and no reshard is placed around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """Factors of one operation: a size each, and which factor every dimension is."""

    sizes: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    need_replication: tuple[int, ...] = ()


#: A rule maker sees operand shapes, result shapes and the operation, and may answer None.
RuleMaker = Callable[[list[Shape], list[Shape], Any], Rule | None]


def pointwise(operands: list[Shape], results: list[Shape], op: Any) -> Rule | None:
    """All operands and results of one shape: dimension d is factor d everywhere."""
    shape = results[0]
    if any(s != shape for s in [*operands, *results]):
        return None
    factors = tuple(range(len(shape)))
    return Rule(shape, (factors,) * len(operands), (factors,) * len(results))


def batched(last: int) -> RuleMaker:
    """Leading dimensions are batch; the last `last` dimensions of each value stay whole."""

    def make(operands: list[Shape], results: list[Shape], op: Any) -> Rule | None:
        batch = results[0][: len(results[0]) - last]
        if any(s[: len(batch)] != batch for s in [*operands, *results]):
            return None
        sizes = list(batch)

        def mapping(shape: Shape) -> tuple[int, ...]:
            found = list(range(len(batch)))
            for size in shape[len(batch) :]:
                found.append(len(sizes))
                sizes.append(size)
            return tuple(found)

        ins = tuple(mapping(s) for s in operands)
        outs = tuple(mapping(s) for s in results)
        whole = tuple(range(len(batch), len(sizes)))
        return Rule(tuple(sizes), ins, outs, whole)

    return make


#: Operation name to rule maker. For custom calls the key is `custom_call:TARGET`.
RULES: dict[str, RuleMaker] = {
    **dict.fromkeys(
        (
            "chlo.erf",
            "chlo.erfc",
            "chlo.erf_inv",
            "chlo.lgamma",
            "chlo.digamma",
            "chlo.bessel_i1e",
            "chlo.conj",
            "chlo.is_inf",
            "chlo.is_neg_inf",
            "chlo.is_pos_inf",
            "chlo.next_after",
            "chlo.polygamma",
            "chlo.zeta",
            "chlo.sinh",
            "chlo.cosh",
            "chlo.asin",
            "chlo.acos",
            "chlo.atan",
            "chlo.asinh",
            "chlo.acosh",
            "chlo.atanh",
            "chlo._asin_acos_kernel",
            "custom_call:mhlo.erf",
        ),
        pointwise,
    ),
    "chlo.top_k": batched(1),
    "custom_call:mhlo.topk": batched(1),
}


def attach_rules(module: Any) -> None:
    """Give every operation that RULES knows, and that has no rule, a custom sharding rule."""
    from jaxlib.mlir import ir

    def visit(op: Any) -> Any:
        maker = RULES.get(rule_key(op))
        if maker is not None and "sdy.sharding_rule" not in op.attributes:
            rule = maker(_shapes(op.operands), _shapes(op.results), op)
            if rule is not None:
                op.attributes["sdy.sharding_rule"] = _attribute(rule, is_custom=True)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def make_rules_final(module: Any) -> None:
    """Turn custom rules into plain ones: Shardy places no reshards around custom rules."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    def visit(op: Any) -> Any:
        if "sdy.sharding_rule" in op.attributes:
            rule = sdy.OpShardingRuleAttr(op.attributes["sdy.sharding_rule"])
            if rule.is_custom:
                op.attributes["sdy.sharding_rule"] = sdy.OpShardingRuleAttr.get(
                    rule.factor_sizes,
                    rule.operand_mappings,
                    rule.result_mappings,
                    rule.reduction_factors,
                    rule.need_replication_factors,
                    rule.permutation_factors,
                    rule.blocked_propagation_factors,
                    False,
                )
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def rule_key(op: Any) -> str:
    """The name under which RULES holds an operation."""
    if op.name == "stablehlo.custom_call":
        return f"custom_call:{op.attributes['call_target_name'].value}"
    return str(op.name)


def _shapes(values: Any) -> list[Shape]:
    from jaxlib.mlir import ir

    return [tuple(ir.RankedTensorType(v.type).shape) for v in values]


def _attribute(rule: Rule, *, is_custom: bool) -> Any:
    from jaxlib.mlir.dialects import sdy

    def tensors(mappings: tuple[tuple[int, ...], ...]) -> list[Any]:
        return [
            sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get([f]) for f in m]) for m in mappings
        ]

    return sdy.OpShardingRuleAttr.get(
        list(rule.sizes),
        tensors(rule.operands),
        tensors(rule.results),
        need_replication_factors=list(rule.need_replication),
        is_custom=is_custom,
    )
