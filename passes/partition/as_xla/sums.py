"""Sums of which each device keeps a part, taken apart where XLA forms no reduce-scatter of them.

Shardy fuses every sum with the slice that follows. XLA's partitioner adds up everywhere and slices;
its compilers make one collective of both only if one dimension is sliced, and its parts lie in the
order of the devices that add up (`MatchReduceScatter` in xla/service/collective_opt_utils.cc): the
order in which the axes divide what is summed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from flint.passes.mlir import defining_operation, operations_named
from flint.passes.partition.as_xla.layouts import Axis, Layout, axes_of
from flint.passes.partition.as_xla.placed import (
    axis_list,
    axis_lists,
    axis_sizes,
    layout_of,
    sharding_at,
    sharding_of,
)

#: Operands of which the partitioner adds up along the axes, of operations whose first it is not.
_SUMMED = {"stablehlo.scatter": 1}
_PRODUCTS = ("stablehlo.dot_general", "stablehlo.convolution")


def split_scattered_sums(module: Any) -> None:
    """Replace reduce-scatters that XLA does not form by an all-reduce and slices, in place."""
    found = operations_named(module, "sdy.reduce_scatter")
    sizes = axis_sizes(module) if found else {}
    for op in found if sizes else ():
        rank = len(sharding_of(op.results[0]).dimension_shardings)
        start, end = (
            layout_of(sharding_of(v), rank, sizes) for v in (op.operands[0], op.results[0])
        )
        parts = [b[len(a) :] for a, b in zip(start, end, strict=True)]
        if sum(map(bool, parts)) > 1:
            _split(op, (start, end), sizes)
        elif not _in_order(op, axes_of(tuple(parts)), sizes):
            first = tuple(
                b[: len(a) + 1] if part else b for a, b, part in zip(start, end, parts, strict=True)
            )
            _split(op, (start, first, end), sizes)


def _in_order(op: Any, axes: tuple[Axis, ...], sizes: dict[str, int]) -> bool:
    """Whether the parts lie as the devices that add up do."""
    maker = defining_operation(op.operands[0])
    if len(axes) == 1 or maker is None or maker.name in _PRODUCTS:
        return True
    summed = maker.operands[_SUMMED.get(maker.name, 0)]
    sharding = sharding_of(summed)
    if sharding is None:
        return True
    layout = layout_of(sharding, len(sharding.dimension_shardings), sizes)
    order = tuple(a for a in axes_of(layout) if a in axes)
    return order == axes or set(order) != set(axes)


def _split(op: Any, layouts: tuple[Layout, ...], sizes: dict[str, int]) -> None:
    """Add up everywhere, and go through the layouts by slices."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    start, end = layouts[0], layouts[-1]
    mesh = sharding_of(op.results[0]).mesh_or_ref
    with ir.InsertionPoint(op), op.location:
        summed = [a for a in axes_of(end) if a not in axes_of(start)]
        value = sdy.AllReduceOp(
            op.operands[0], axis_list(summed, sizes), sharding_at(start, mesh, sizes)
        ).result
        for before, after in pairwise(layouts):
            value = sdy.AllSliceOp(
                value, axis_lists(after, before, sizes), sharding_at(after, mesh, sizes)
            ).result
    op.results[0].replace_all_uses_with(value)
    op.erase()
