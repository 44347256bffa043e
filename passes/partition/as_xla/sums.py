"""Sums of which each device keeps a part, scattered where XLA forms a reduce-scatter of them.

Shardy fuses every sum with the slice that follows at once. XLA's partitioner adds up everywhere and slices;
its compilers make one collective of both only if one dimension is sliced, and its parts lie in the
order of the devices that add up (`MatchReduceScatter` in xla/service/collective_opt_utils.cc): the
order in which the axes divide what is summed.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from flint.passes.extract.tensors import axis_refs
from flint.passes.mlir import defining_operation, operations_named, shape_of
from flint.passes.partition.as_xla.layouts import Axis, Layout, axes_of
from flint.passes.partition.as_xla.placed import (
    axis_list,
    axis_lists,
    axis_sizes,
    layout_of,
    sharding_at,
    sharding_of,
    whole_like,
)

#: Operands of which the partitioner adds up along the axes, of operations whose first it is not.
_SUMMED = {"stablehlo.scatter": 1}
_PRODUCTS = ("stablehlo.dot_general", "stablehlo.convolution")


def settle_sums(module: Any) -> None:
    """Write sums, and slices of them, as XLA's compilers leave them, in place."""
    sizes = axis_sizes(module)
    if not sizes:
        return
    for op in operations_named(module, "stablehlo.transpose"):
        _sum_transposed(op)
    for op in operations_named(module, "sdy.all_slice"):
        _slice_first(op, sizes)
    for op in operations_named(module, "sdy.reduce_scatter"):
        _keep_whole(op, sizes)


def _keep_whole(op: Any, sizes: dict[str, int]) -> None:
    """Replace a reduce-scatter that XLA does not form by an all-reduce and slices.

    XLA's partitioner cuts along all axes at once: of a sum that is cut along others, too, no
    reduce-scatter is formed.
    """
    readers = [use.owner for use in op.results[0].uses]
    last = readers[0] if [r.name for r in readers] == ["sdy.all_slice"] else op
    rank = len(sharding_of(op.results[0]).dimension_shardings)
    values = op.operands[0], op.results[0], last.results[0]
    start, made, end = (layout_of(sharding_of(v), rank, sizes) for v in values)
    parts = [b[len(a) :] for a, b in zip(start, made, strict=True)]
    summed = axes_of(tuple(parts))
    if last is not op or sum(map(bool, parts)) > 1:
        _split(op, last, summed, (start, end), sizes)
    elif not _in_order(op, summed, sizes):
        first = tuple(
            b[: len(a) + 1] if part else b for a, b, part in zip(start, end, parts, strict=True)
        )
        _split(op, op, summed, (start, first, end), sizes)


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


def _split(
    op: Any, last: Any, summed: tuple[Axis, ...], layouts: tuple[Layout, ...], sizes: dict[str, int]
) -> None:
    """Add up everywhere, and go through the layouts by slices."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    mesh = sharding_of(op.results[0]).mesh_or_ref
    with ir.InsertionPoint(op), op.location:
        start = sharding_at(layouts[0], mesh, sizes)
        value = sdy.AllReduceOp(op.operands[0], axis_list(summed, sizes), start).result
        for before, after in pairwise(layouts):
            value = sdy.AllSliceOp(
                value, axis_lists(after, before, sizes), sharding_at(after, mesh, sizes)
            ).result
    last.results[0].replace_all_uses_with(value)
    if last is not op:
        last.operation.erase()
    op.erase()


def _read_once(value: Any) -> Any | None:
    """What makes a value that a single operation reads."""
    return defining_operation(value) if len(list(value.uses)) == 1 else None


def _sum_transposed(op: Any) -> None:
    """Sum what is transposed, if it is added to something then.

    XLA's compilers write the transposed form of a product as another product, and sum once what is
    added up.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    summed = _read_once(op.operands[0])
    readers = [use.owner.name for use in op.results[0].uses]
    if summed is None or summed.name != "sdy.all_reduce" or readers != ["stablehlo.add"]:
        return
    goal = sharding_of(op.results[0]) or whole_like(sharding_of(op.operands[0]))
    op.operands[0] = summed.operands[0]
    with ir.InsertionPoint.after(op), summed.location:
        made = sdy.AllReduceOp(op.results[0], summed.attributes["reduction_axes"], goal)
    op.results[0].replace_all_uses_except(made.result, made.operation)
    summed.erase()


def _slice_first(op: Any, sizes: dict[str, int]) -> None:
    """Cut a sum where it is made, instead of its transposed or reshaped form.

    XLA's compilers move slices there, and make a reduce-scatter of the two if they are along the
    same axes.
    """
    layouts, maker = [], _read_once(op.operands[0])
    while maker is not None and maker.name in ("stablehlo.transpose", "stablehlo.reshape"):
        layouts.append(maker)
        maker = _read_once(maker.operands[0])
    if maker is None or maker.name != "sdy.all_reduce":
        return
    axes = (op.attributes["slicing_axes"], maker.attributes["reduction_axes"])
    if len({frozenset(axis_refs(a)) for a in axes}) > 1:
        return
    last = op
    for layout in layouts:
        last = _sliced_before(last, layout, sizes) if last is not None else None


def _sliced_before(op: Any, layout: Any, sizes: dict[str, int]) -> Any | None:
    """Move a slice in front of what it reads; the slice there, or None: it cuts what is reshaped."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    value, goal = layout.operands[0], sharding_of(op.results[0])
    places, mesh = _places(layout), goal.mesh_or_ref
    wanted = layout_of(goal, len(goal.dimension_shardings), sizes)
    given = layout_of(sharding_of(value), len(places), sizes)
    after = tuple(given[n] if place is None else wanted[place] for n, place in enumerate(places))
    if {*axes_of(after)} != {*axes_of(wanted)}:
        return None
    cut = axis_lists(after, given, sizes)
    with ir.InsertionPoint(layout), op.location:
        part = sdy.AllSliceOp(value, cut, sharding_at(after, mesh, sizes))
    layout.operands[0] = part.result
    layout.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get([goal])
    op.results[0].replace_all_uses_with(layout.results[0])
    op.erase()
    return part.operation


def _places(layout: Any) -> list[int | None]:
    """The dimension of the result that each one of the operand is; None: it is reshaped."""
    before, after = (shape_of(v) for v in (layout.operands[0], layout.results[0]))
    if layout.name == "stablehlo.transpose":
        order = list(layout.attributes["permutation"])
        return [order.index(n) for n in range(len(before))]
    ends = {(math.prod(after[:n]), size): n for n, size in enumerate(after)}
    return [ends.get((math.prod(before[:n]), size)) for n, size in enumerate(before)]
