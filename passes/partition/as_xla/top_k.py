"""The largest few, as XLA's partitioner finds them (`HandleCustomCallTopK`).

Of an operand whose first and last dimension alone are divided, over all devices, each device finds
the largest of its part; what they found is gathered along the last dimension, and searched again.
Any other operand is gathered. No sharding propagates through the operation.
"""

from __future__ import annotations

from typing import Any

from flint.passes.extract.op_classes import TOP_K, key_of
from flint.passes.mlir import shape_of
from flint.passes.partition.as_xla.layouts import Layout, axes_of, count
from flint.passes.partition.as_xla.placed import (
    axis_sizes,
    is_annotated_here,
    layout_of,
    make_at,
    partitioned_operations,
    reshard,
    sharding_at,
    sharding_of,
    used_axes,
)
from flint.passes.partition.prepare.rules import RULE

_NAMES = ("chlo.top_k", "stablehlo.custom_call")


def split_top_ks(module: Any) -> None:
    """Put reshards around every `top_k` of a module, in place."""
    found = [
        op
        for op in partitioned_operations(module, _NAMES)
        if key_of(op) in TOP_K and RULE in op.attributes
    ]
    sizes, used = (axis_sizes(module), used_axes(module)) if found else ({}, frozenset())
    for op in found if sizes else ():
        _split(op, sizes, used)


def _split(op: Any, sizes: dict[str, int], used: frozenset[str]) -> None:
    value = op.operands[0]
    given = sharding_of(value) if is_annotated_here(value) else None
    if given is None:
        return
    shape = shape_of(value)
    layout = layout_of(given, len(shape), sizes)
    if not axes_of(layout):
        return
    found = shape_of(op.results[0])[-1]
    if not found:
        return
    mesh = given.mesh_or_ref
    if _is_searched_in_parts(layout, shape, found, sizes, used):
        op.attributes[RULE] = _in_parts(op.attributes[RULE])
        made: Layout = (*layout[:-1], ())
    else:
        made = ((),) * len(shape)
        op.operands[0] = reshard(value, sharding_at(made, mesh, sizes), op)
    make_at(op, sharding_at(made, mesh, sizes))


def _is_searched_in_parts(
    layout: Layout, shape: tuple[int, ...], found: int, sizes: dict[str, int], used: frozenset[str]
) -> bool:
    """Whether devices search their parts: none holds what another has, and all parts are longer."""
    devices = count((name, 1, size) for name, size in sizes.items() if name in used)
    parts = count(layout[-1])
    return (
        len(shape) > 1
        and count(axes_of(layout)) == devices
        and not axes_of(layout[1:-1])
        and found < -(-shape[-1] // parts)
    )


def _in_parts(attribute: Any) -> Any:
    """The rule without what must be whole: parts are searched."""
    from jaxlib.mlir.dialects import sdy

    rule = sdy.OpShardingRuleAttr(attribute)
    return sdy.OpShardingRuleAttr.get(
        rule.factor_sizes, rule.operand_mappings, rule.result_mappings, is_custom=rule.is_custom
    )
