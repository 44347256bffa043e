"""Reshards in the steps that XLA's partitioner takes, where Shardy's collectives would go otherwise."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from flint.passes.extract.tensors import axis_refs
from flint.passes.mlir import operations_named
from flint.passes.partition.as_xla.layouts import Layout, axes_of, count, is_cut_from
from flint.passes.partition.as_xla.placed import (
    axis_lists,
    axis_sizes,
    layout_of,
    partitioned_operations,
    sharding_at,
    sharding_of,
    used_axes,
)
from flint.passes.partition.as_xla.reshard_plan import way

_STEP = "flint.step"


def keep_chains(module: Any) -> None:
    """Keep a reshard of what a reshard made, in place: Shardy would go straight to the second.

    Before explicit reshards are inserted, each is a constraint of the user, and XLA does them one by one.
    A way back it does not take: its cache of reshards has the value as it was. Two cuts are one, which a
    sum in front of them takes, too.
    """
    from jaxlib.mlir import ir

    found = partitioned_operations(module, ("sdy.reshard",))
    sizes = axis_sizes(module) if found else {}
    for op in found:
        for then in [use.owner for use in op.results[0].uses if use.owner.name == "sdy.reshard"]:
            values = (op.operands[0], op.results[0], then.results[0])
            rank = len(sharding_of(op.results[0]).dimension_shardings)
            chain = [layout_of(sharding_of(value), rank, sizes) for value in values]
            if chain[0] == chain[2] or all(a == b or is_cut_from(b, a) for a, b in pairwise(chain)):
                continue
            with ir.InsertionPoint(then), then.location:
                then.operands[0] = kept(op.results[0])


def split_reshards(module: Any) -> None:
    """Make collectives of every reshard that XLA does in several steps, in place."""
    from jaxlib.mlir import ir

    found = partitioned_operations(module, ("sdy.reshard",))
    sizes, used = (axis_sizes(module), used_axes(module)) if found else ({}, frozenset())
    for op in found if sizes else ():
        value, goal = op.operands[0], sharding_of(op.results[0])
        rank = len(goal.dimension_shardings)
        start, end = (layout_of(s, rank, sizes) for s in (sharding_of(value), goal))
        taken = {name for name, _, _ in (*axes_of(start), *axes_of(end))} | used
        axes = [(name, 1, size) for name, size in sizes.items() if size > 1 and name in taken]
        chain = (start, *way(start, end, axes))
        if len(chain) == 2 or _scatters(value.owner, start, end):
            continue
        with ir.InsertionPoint(op), op.location:
            for number, (before, after) in enumerate(pairwise(chain)):
                value = kept(value) if number else value
                value = step(value, before, after, goal.mesh_or_ref, sizes)
        op.results[0].replace_all_uses_with(value)
        op.erase()


def _scatters(maker: Any, start: Layout, end: Layout) -> bool:
    """Whether a sum is divided by axes that it is over: a reduce-scatter, before anything is gathered."""
    if getattr(maker, "name", "") != "sdy.all_reduce":
        return False
    summed = {axis.name for axis in axis_refs(maker.attributes["reduction_axes"])}
    divided = {name for name, _, _ in set(axes_of(end)) - set(axes_of(start))}
    return bool(divided) and divided <= summed


def kept(value: Any) -> Any:
    """What a step made, behind a barrier: Shardy would slice before it gathers, or do two at once."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    if value.owner.name not in ("sdy.all_gather", "sdy.reshard"):
        return value
    sharding = sdy.TensorShardingPerValueAttr.get([sharding_of(value)])
    attributes = {"sdy.sharding": sharding, _STEP: ir.UnitAttr.get()}
    return ir.Operation.create(
        "stablehlo.optimization_barrier", [value.type], [value], attributes
    ).result


def drop_barriers(module: Any) -> None:
    """Remove the barriers of `kept`, in place."""
    for op in operations_named(module, "stablehlo.optimization_barrier"):
        if _STEP in op.attributes:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def step(
    value: Any,
    before: Layout,
    after: Layout,
    mesh: Any,
    sizes: dict[str, int],
    *,
    is_own: bool = True,
) -> Any:
    """The value in another layout, by one collective; gathers and slices only if `is_own`."""
    from jaxlib.mlir.dialects import sdy

    sharding = sharding_at(after, mesh, sizes)
    if [count(dim) for dim in before] == [count(dim) for dim in after]:
        return sdy.CollectivePermuteOp(value, sharding).result
    if is_own and is_cut_from(before, after):
        return sdy.AllGatherOp(value, axis_lists(before, after, sizes), sharding).result
    if is_own and is_cut_from(after, before):
        return sdy.AllSliceOp(value, axis_lists(after, before, sizes), sharding).result
    return sdy.ReshardOp(value, sharding).result
