"""Products and broadcasts as XLA's partitioner takes them, where Shardy would choose otherwise.

Products: operands and result may want one mesh axis for different dimensions. The usual case is a
weight sharded over the axis that also shards the batch (FSDP): `x` and the result are split over
"data" by rows, the weight by its contracted dimension. Shardy's explicit reshards keep whichever
tensor is largest where it is, and with few tokens move activations around a weight. XLA's dot
partitioner settles what tensors agree on, group by group (`product_plan.py`). This does the same
before Shardy has to choose. See docs/partitioners.md for what it changes.

Broadcasts: Shardy visits reshapes before broadcasts, so that how a broadcast is written decides
which of two shardings a value gets where the program does not say. XLA writes one that only adds
dimensions of size 1 as a reshape, and one that stretches dimensions of size 1 as a reshape that
drops them and a broadcast that puts them back (`XlaBuilder::BroadcastInDim`). So does this.
"""

from __future__ import annotations

import math
from typing import Any

from flint.passes.mlir import element_bits, operations_named
from flint.passes.partition.as_xla.layouts import Axes
from flint.passes.partition.as_xla.placed import (
    axis_sizes,
    factors_of,
    is_annotated_here,
    layout_of,
    manual_axes,
    reshard,
    sharding_at,
    sharding_of,
    used_axes,
    whole_like,
)
from flint.passes.partition.as_xla.product_plan import Product, settled


def resolve_dot_conflicts(module: Any) -> None:
    """Put reshards around every `dot_general` of which tensors want one axis for two things."""
    sizes = axis_sizes(module)
    axes = [(name, 1, size) for name, size in sizes.items() if name in used_axes(module)]
    found: dict[tuple[Any, ...], list[Any | None]] = {}
    for op in operations_named(module, "stablehlo.dot_general"):
        if "sdy.sharding_rule" in op.attributes:
            manual = manual_axes(op)
            free = tuple(a for a in axes if a[0] not in manual)
            _resolve(op, op.attributes["sdy.sharding_rule"], sizes, free, found)


def _resolve(
    op: Any,
    rule: Any,
    sizes: dict[str, int],
    axes: Axes,
    found: dict[tuple[Any, ...], list[Any | None]],
) -> None:
    """Put reshards around one product. `found` has other shardings for each rule and shardings."""
    tensors = [*op.operands, op.results[0]]
    if not all(map(is_annotated_here, tensors)):
        return
    shardings = [sharding_of(v) for v in tensors]
    if all(s is None for s in shardings):
        return
    key = (rule, axes, op.operands[0].type, op.operands[1].type, op.results[0].type, *shardings)
    if key not in found:
        found[key] = _other_shardings(rule, shardings, tensors, sizes, axes)
    lhs, rhs, result = found[key]
    for number, wanted in enumerate((lhs, rhs)):
        if wanted is not None:
            op.operands[number] = reshard(tensors[number], wanted, op)
    if result is not None:
        _change_result(op, shardings[2] or whole_like(result), result)


def _other_shardings(
    attribute: Any, shardings: list[Any], tensors: list[Any], sizes: dict[str, int], axes: Axes
) -> list[Any | None]:
    """For each of lhs, rhs and result of a product, the sharding that it is to have, if another."""
    from jaxlib.mlir.dialects import sdy

    if not sizes:
        return [None, None, None]
    rule = sdy.OpShardingRuleAttr(attribute)
    factors = [factors_of(m) for m in (*rule.operand_mappings, *rule.result_mappings)]
    layouts = [layout_of(s, len(f), sizes) for s, f in zip(shardings, factors, strict=True)]
    widths = [element_bits(t.type.element_type) for t in tensors]
    product = Product(tuple(rule.factor_sizes), tuple(map(tuple, factors)), tuple(widths))
    wanted = settled(product, tuple(layouts), axes)
    mesh = next(s for s in shardings if s is not None).mesh_or_ref
    return [
        None if now == then else sharding_at(then, mesh, sizes)
        for now, then in zip(layouts, wanted, strict=True)
    ]


def _change_result(op: Any, old: Any, new: Any) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    op.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get([new])
    with ir.InsertionPoint.after(op), op.location:
        moved = sdy.ReshardOp(op.results[0], old)
    op.results[0].replace_all_uses_except(moved.result, moved.operation)


def split_broadcasts(module: Any) -> None:
    """Rewrite every `stablehlo.broadcast_in_dim` of a module, in place."""
    from jaxlib.mlir import ir

    found: dict[tuple[Any, ...], _Split | None] = {}
    for op in operations_named(module, "stablehlo.broadcast_in_dim"):
        key = (op.operands[0].type, op.results[0].type, op.attributes[_DIMENSIONS])
        if key not in found:
            with ir.Location.unknown():
                found[key] = _split_of(*key)
        split = found[key]
        if split is not None:
            _rewrite(op, *split)


#: What a broadcast reshapes its operand to, and the dimensions of the broadcast that is left.
_Split = tuple[Any, Any | None]
_DIMENSIONS = "broadcast_dimensions"


def _split_of(operand: Any, result: Any, dimensions: Any) -> _Split | None:
    """How XLA writes a broadcast between two types; None: as it is."""
    from jaxlib.mlir import ir

    given = ir.RankedTensorType(operand)
    before, after = tuple(given.shape), tuple(ir.RankedTensorType(result).shape)
    dims = [int(d) for d in dimensions]
    if dims != sorted(dims) or not before:
        return None
    if math.prod(before) == math.prod(after):
        return ir.RankedTensorType.get(after, given.element_type), None
    kept = [i for i, d in enumerate(dims) if before[i] == after[d]]
    if len(kept) == len(before):
        return None
    dropped = ir.RankedTensorType.get([before[i] for i in kept], given.element_type)
    return dropped, ir.DenseI64ArrayAttr.get([dims[i] for i in kept])


def _rewrite(op: Any, reshaped: Any, dimensions: Any | None) -> None:
    from jaxlib.mlir import ir

    result = op.results[0]
    with ir.InsertionPoint(op), op.location:
        made = ir.Operation.create(
            "stablehlo.reshape", results=[reshaped], operands=[op.operands[0]]
        ).result
        if dimensions is not None:
            made = ir.Operation.create(
                op.name,
                results=[result.type],
                operands=[made],
                attributes={_DIMENSIONS: dimensions},
            ).result
    result.replace_all_uses_with(made)
    op.erase()
