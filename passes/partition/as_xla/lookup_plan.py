"""How XLA's partitioner splits a lookup (`gather`) or its gradient (`scatter`) between devices.

Where the indices go through a dimension of the table in step (*batches*), both are divided alike
there first. Else there are three ways. Each takes some mesh axes; the rest is settled after it among
the devices that are left, a group:

- along dimensions of the table that slices take whole (*passthrough*: the hidden dimension),
- along dimensions that are looked up one position at a time (*trivial*: the vocabulary),
- along dimensions of the indices (*index*: the tokens).

Which comes first is decided by what needs least memory at once: of a dry run of each, the largest
operation (operands and results of the lookup or of a collective), then by bytes sent. What other
tensors have of the axes taken they give up: for axes of the group if those are enough, else they
are gathered. The rules are those of xla/service/spmd/gather_scatter_handler.cc (no code is);
tests/oracle/test_lookups_against_xla.py holds outcomes against XLA's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flint.passes.partition.as_xla.layouts import (
    Axis,
    Layout,
    axes_of,
    count,
    is_cut_from,
    joined,
    merged,
    without,
)
from flint.passes.partition.as_xla.reshard_plan import way

#: Bytes of the largest operation, and bytes sent.
Cost = tuple[int, int]


@dataclass(frozen=True)
class LookupTensor:
    """Sizes of dimensions, which factor each is, and bytes of an element."""

    sizes: tuple[int, ...]
    factors: tuple[int, ...]
    element_bytes: int

    def bytes_of(self, layout: Layout) -> int:
        """Bytes of one device's part."""
        parts = (-(-s // count(axes)) for s, axes in zip(self.sizes, layout, strict=True))
        return math.prod(parts) * self.element_bytes

    def dims(self, factors: frozenset[int]) -> list[int]:
        """Dimensions that are one of `factors`."""
        return [d for d, factor in enumerate(self.factors) if factor in factors]


@dataclass(frozen=True)
class Lookup:
    """A gather, or a scatter with `is_scatter`: then `moved` are the updates, else the result.

    `batches` are those that the operation names, and those that an iota implies; an iota's are
    `trivial`, too. `is_sum`: updates are combined with the table, not written over it.
    """

    table: LookupTensor
    indices: LookupTensor
    moved: LookupTensor
    passthrough: frozenset[int]
    trivial: frozenset[int]
    index: frozenset[int]
    is_scatter: bool = False
    is_sum: bool = True
    batches: tuple[frozenset[int], ...] = ()


@dataclass(frozen=True)
class LookupState:
    """Layouts that are still to be reconciled on `free` axes. `result` is what is asked for.

    All axes are in parts of which no further part is needed (`layouts.split`).
    """

    table: Layout
    indices: Layout
    moved: Layout
    result: Layout
    free: tuple[Axis, ...]

    def beside(self, lookup: Lookup) -> Layout:
        """What the updates of a scatter have, else what is asked for."""
        return self.moved if lookup.is_scatter else self.result


@dataclass(frozen=True)
class LookupPlan:
    """Layouts that each tensor takes on the way, the first as it is, the last as it is used.

    `result` begins with what the operation makes and ends as asked for; `summed` are layouts in
    which parts of it are summed.
    """

    table: tuple[Layout, ...]
    indices: tuple[Layout, ...]
    moved: tuple[Layout, ...]
    result: tuple[Layout, ...]
    summed: tuple[Layout, ...] = ()


def regrouped(
    layout: Layout, group: Sequence[Axis], free: Sequence[Axis], priority: Sequence[int]
) -> tuple[Layout, ...] | None:
    """Layouts on the way to one that leaves the axes `group` to others; None: no such way is known.

    As many parts stay as fit into what is left of `free`; dimensions in order of `priority` (those
    that are gathered first) give up theirs. Where these are not enough, all do.
    """
    if not set(axes_of(layout)) & set(group):
        return (layout,)
    left = [a for a in free if a not in group]
    needed = count(axes_of(layout)) * count(group) // count(free)  # parts too many
    tiles = [count(a for a in dim if a in free) for dim in layout]
    whole = list(tiles)
    for dim in priority:
        shared = math.gcd(tiles[dim], max(needed, 1))
        tiles[dim], needed = tiles[dim] // shared, needed // shared
    if needed > 1:
        tiles = [1] * len(layout)
    placed = _placed(layout, tiles, left, free)
    if placed is None:
        return None
    steps = [layout]
    between = _between(placed, whole, tiles, group) if max(tiles, default=1) > 1 else None
    for step in (between, placed):
        if step is not None and step != steps[-1]:
            steps.append(step)
    return tuple(steps)


def _placed(
    layout: Layout, tiles: Sequence[int], left: Sequence[Axis], free: Sequence[Axis]
) -> Layout | None:
    """Parts of each dimension on axes of `left`: those that it has, else others of that size."""
    fixed = [tuple(a for a in dim if a not in free) for dim in layout]
    kept = [tuple(a for a in dim if a in left) for dim in layout]
    kept = [axes if count(axes) == tiles[d] else () for d, axes in enumerate(kept)]
    others = [a for a in left if all(a not in axes for axes in kept)]
    for d, tile in enumerate(tiles):
        if count(kept[d]) != tile:
            taken = _taken(others, tile)
            if taken is None:
                return None
            kept[d], others = taken
    return tuple((*f, *k) for f, k in zip(fixed, kept, strict=True))


def _taken(axes: Sequence[Axis], parts: int) -> tuple[tuple[Axis, ...], list[Axis]] | None:
    """Axes that make so many parts, and those that are left."""
    taken: list[Axis] = []
    for axis in axes:
        if parts % axis[2] == 0 and parts > 1:
            taken.append(axis)
            parts //= axis[2]
    return (tuple(taken), [a for a in axes if a not in taken]) if parts == 1 else None


def _between(
    placed: Layout, whole: Sequence[int], tiles: Sequence[int], group: Sequence[Axis]
) -> Layout | None:
    """`placed` before anything is gathered: what goes is on axes of the group."""
    spare = list(group)
    found = list(placed)
    for d, (before, after) in enumerate(zip(whole, tiles, strict=True)):
        more = before // after
        if more == 1:
            continue
        taken = _taken(spare, more)
        if taken is None:
            return None
        found[d], spare = (*found[d], *taken[0]), taken[1]
    return tuple(found)


# the ways -----------------------------------------------------------------------------------------


def plan(lookup: Lookup, state: LookupState) -> LookupPlan | None:
    """What XLA does of a lookup; None where its way is not known."""
    for factors in lookup.batches:
        made = _batched(lookup, state, factors)
        if made is not None:
            return made
    found: list[tuple[Cost, _Way]] = []
    for method in (_passthrough, _trivial, _by_index):
        dry = method(lookup, state, _whole)
        if dry is not None:
            found.append((_cost(lookup, dry, state.free), method))
    if not found:
        return _whole(lookup, state)
    _, best = min(found, key=lambda f: f[0])
    return best(lookup, state, plan)


def in_step(lookup: Lookup, made: LookupPlan) -> bool:
    """Whether table and indices are divided alike along the batches of a lookup."""
    factors = frozenset().union(*lookup.batches)
    ends = ((lookup.table, made.table[-1]), (lookup.indices, made.indices[-1]))
    first, second = (
        {f: dim for f, dim in zip(t.factors, at, strict=True) if f in factors} for t, at in ends
    )
    return first == second


#: What settles the rest in a group.
_Rest = Callable[[Lookup, LookupState], LookupPlan | None]
_Way = Callable[[Lookup, LookupState, _Rest], LookupPlan | None]


def _whole(lookup: Lookup, state: LookupState) -> LookupPlan:
    """Everything that is left is gathered."""

    def gathered(layout: Layout) -> tuple[Layout, ...]:
        return _chain((layout,), without(layout, state.free))

    kept = without(state.result, state.free)
    moved = gathered(state.moved) if lookup.is_scatter else ()
    return LookupPlan(
        gathered(state.table), gathered(state.indices), moved, _chain((kept,), state.result)
    )


def _batched(lookup: Lookup, state: LookupState, factors: frozenset[int]) -> LookupPlan | None:
    """Table and indices are divided alike along batches (`PartitionGatherParallelDimensions`)."""
    aligned = _aligned(lookup, state, factors)
    if aligned is None:
        return None
    table, indices = aligned
    group = [a for a in axes_of(table[-1], lookup.table.dims(factors)) if a in state.free]
    whole = tuple(a for a in axes_of(indices[-1]) if a in state.free)
    along = _carried(lookup.indices, indices[-1], lookup.moved, lookup.index | factors, whole)
    kept = axes_of(table[-1], lookup.table.dims(lookup.passthrough))
    beside = _carried(lookup.table, table[-1], lookup.moved, lookup.passthrough, kept)
    divided = merged(along, beside) or along
    free = tuple(a for a in state.free if a not in group)
    after = replace(state, table=table[-1], indices=indices[-1], free=free)
    if lookup.is_scatter:
        made = plan(lookup, replace(after, moved=divided, result=table[-1]))
        moved = _chain((state.moved,), divided)
        return _wrapped(made, table=table, indices=indices, moved=moved, result=state.result)
    made = plan(lookup, replace(after, result=divided))
    return _wrapped(made, table=table, indices=indices, result=state.result)


def _aligned(
    lookup: Lookup, state: LookupState, factors: frozenset[int]
) -> tuple[tuple[Layout, ...], tuple[Layout, ...]] | None:
    """Ways of table and indices to layouts that agree on batches; the more divided one leads."""
    table, indices = (
        _on_factors(tensor, layout, factors, state.free)
        for tensor, layout in ((lookup.table, state.table), (lookup.indices, state.indices))
    )
    parts = [count(axes_of(tuple(at.values()))) for at in (table, indices)]
    if parts == [1, 1]:
        return None
    leads = not set(axes_of(state.indices)) & set(state.free) or parts[0] > parts[1]
    if leads and set(axes_of(state.table)) & set(state.free):
        moved = _follow(lookup.indices, state.indices, indices, table, state.free)
        return None if moved is None else ((state.table,), moved)
    moved = _follow(lookup.table, state.table, table, indices, state.free)
    return None if moved is None else (moved, (state.indices,))


def _on_factors(
    tensor: LookupTensor, layout: Layout, factors: frozenset[int], chosen: Collection[Axis]
) -> dict[int, tuple[Axis, ...]]:
    """Of `chosen`, the axes of a tensor on each of some factors."""
    return {
        factor: tuple(a for a in axes if a in chosen)
        for factor, axes in zip(tensor.factors, layout, strict=True)
        if factor in factors
    }


def _follow(
    tensor: LookupTensor,
    layout: Layout,
    now: dict[int, tuple[Axis, ...]],
    wanted: dict[int, tuple[Axis, ...]],
    free: Sequence[Axis],
) -> tuple[Layout, ...] | None:
    """The way of a tensor to the axes that another has on batches.

    What it is divided into otherwise moves to axes that are left; None if there are too few.
    """
    if now == wanted:
        return (layout,)
    if any(count(wanted[f]) % count(now[f]) for f in wanted):
        return None
    rest = without(layout, [a for axes in now.values() for a in axes])
    group = [a for axes in wanted.values() for a in axes]
    if count(a for a in axes_of(rest) if a in free) * count(group) > count(free):
        return None
    places = regrouped(rest, group, free, ())
    if places is None:
        return None
    end = tuple(
        (*axes, *wanted.get(factor, ()))
        for factor, axes in zip(tensor.factors, places[-1], strict=True)
    )
    return _chain((layout,), end)


def _passthrough(lookup: Lookup, state: LookupState, rest: _Rest) -> LookupPlan | None:
    """The dimensions of the table that slices take whole stay divided."""
    at = lookup.table.dims(lookup.passthrough)
    group = [a for a in axes_of(state.table, at) if a in state.free]
    indices = regrouped(state.indices, group, state.free, _index_dims(lookup))
    if not group or indices is None:
        return None
    beside = state.beside(lookup)
    divided = _carried(lookup.table, state.table, lookup.moved, lookup.passthrough, group)
    divided = _joined(divided, without(beside, state.free))
    divided = merged(divided, beside) or divided
    after = replace(state, indices=indices[-1], free=tuple(a for a in state.free if a not in group))
    if lookup.is_scatter:
        made = rest(lookup, replace(after, moved=divided))
        return _wrapped(made, indices=indices, moved=_chain((state.moved,), divided))
    made = rest(lookup, replace(after, result=divided))
    return _wrapped(made, indices=indices, result=state.result)


def _trivial(lookup: Lookup, state: LookupState, rest: _Rest) -> LookupPlan | None:
    """Every device looks up what it has; the results are summed."""
    at = lookup.table.dims(lookup.trivial)
    group = [a for a in axes_of(state.table, at) if a in state.free]
    beside = state.beside(lookup)
    ends = _shared_in_groups(lookup, state, beside, group) if group else None
    if ends is None:
        return None
    indices, others = ends
    free = tuple(a for a in state.free if a not in group)
    after = replace(state, indices=indices[-1], free=free)
    if lookup.is_scatter:
        made = rest(lookup, replace(after, moved=others[-1]))
        return _wrapped(made, indices=indices, moved=others)
    made = rest(lookup, replace(after, result=others[-1]))
    return _wrapped(made, indices=indices, result=state.result, summed=others[-1])


def _shared_in_groups(
    lookup: Lookup, state: LookupState, beside: Layout, group: Sequence[Axis]
) -> tuple[tuple[Layout, ...], tuple[Layout, ...]] | None:
    """Ways of indices and result (or updates); one that is whole in a group is as the other is."""
    shared = lookup.index.union(*lookup.batches)
    start = (state.indices, beside)
    tensors, dims = (lookup.indices, lookup.moved), (_index_dims(lookup), _moved_dims(lookup))
    found = [regrouped(at, group, state.free, d) for at, d in zip(start, dims, strict=True)]
    for here, there in ((1, 0), (0, 1)):
        mine, other = found[here], found[there]
        if mine is None or other is None:
            return None
        divided = [any(a in state.free for a in axes_of(way[-1])) for way in (mine, other)]
        if divided == [False, True]:
            every = axes_of(start[there])
            given = _carried(tensors[there], start[there], tensors[here], shared, every)
            way = regrouped(given, group, state.free, dims[here])
            if way is not None:
                found[here] = _chain((start[here],), way[-1])
    indices, others = found
    return None if indices is None or others is None else (indices, others)


def _by_index(lookup: Lookup, state: LookupState, rest: _Rest) -> LookupPlan | None:
    """Every device looks up its indices: in all of the table, or adds to all of it."""
    if not lookup.is_sum:
        return None
    beside = state.beside(lookup)
    used = axes_of(beside, lookup.moved.dims(lookup.index))
    wished = _carried(lookup.moved, beside, lookup.indices, lookup.index, used)
    start = merged(state.indices, wished) or state.indices
    group = [a for a in axes_of(start, lookup.indices.dims(lookup.index)) if a in state.free]
    dims = [d for f in (lookup.trivial, lookup.passthrough) for d in lookup.table.dims(f)]
    table = regrouped(state.table, group, state.free, dims)
    if not group or table is None:
        return None
    divided = _carried(lookup.indices, start, lookup.moved, lookup.index, group)
    divided = _joined(divided, without(beside, state.free))
    divided = merged(divided, beside) or divided
    free = tuple(a for a in state.free if a not in group)
    after = replace(state, table=table[-1], indices=start, free=free)
    indices = _chain((state.indices,), start)
    if lookup.is_scatter:
        made = rest(lookup, replace(after, moved=divided, result=table[-1]))
        moved = _chain((state.moved,), divided)
        return _wrapped(
            made, table=table, indices=indices, moved=moved, result=state.result, summed=table[-1]
        )
    made = rest(lookup, replace(after, result=divided))
    return _wrapped(made, table=table, indices=indices, result=state.result)


def _wrapped(
    made: LookupPlan | None,
    *,
    table: tuple[Layout, ...] = (),
    indices: tuple[Layout, ...] = (),
    moved: tuple[Layout, ...] = (),
    result: Layout | None = None,
    summed: Layout | None = None,
) -> LookupPlan | None:
    """What a way does before and after what is done in its groups."""
    if made is None:
        return None
    return LookupPlan(
        (*table[:-1], *made.table),
        (*indices[:-1], *made.indices),
        (*moved[:-1], *made.moved),
        made.result if result is None else _chain(made.result, result),
        made.summed if summed is None else (*made.summed, summed),
    )


def _chain(layouts: tuple[Layout, ...], end: Layout) -> tuple[Layout, ...]:
    return layouts if layouts[-1] == end else (*layouts, end)


def _carried(
    source: LookupTensor,
    layout: Layout,
    target: LookupTensor,
    factors: frozenset[int],
    axes: Iterable[Axis],
) -> Layout:
    """Of `axes`, those of `source` on `factors`, on the dimensions of `target` that are the same."""
    by_factor = _on_factors(source, layout, factors, set(axes))
    return tuple(by_factor.get(factor, ()) for factor in target.factors)


def _joined(first: Layout, second: Layout) -> Layout:
    """Axes of both, those of `second` first."""
    return tuple((*b, *(x for x in a if x not in b)) for a, b in zip(first, second, strict=True))


def _index_dims(lookup: Lookup) -> list[int]:
    """Dimensions of the indices: the columns, those of no named batch, and the others."""
    implied = frozenset().union(*lookup.batches) & lookup.trivial
    ranks = [
        1 if f in lookup.index | implied else 2 if any(f in b for b in lookup.batches) else 0
        for f in lookup.indices.factors
    ]
    return sorted(range(len(ranks)), key=ranks.__getitem__)


def _moved_dims(lookup: Lookup) -> list[int]:
    last = lookup.moved.dims(lookup.passthrough)
    return [*(d for d in range(len(lookup.moved.sizes)) if d not in last), *last]


# what a way costs ---------------------------------------------------------------------------------


def _cost(lookup: Lookup, made: LookupPlan, free: Sequence[Axis]) -> Cost:
    """The largest operation of a dry run and bytes sent."""
    result = lookup.table if lookup.is_scatter else lookup.moved
    inputs = [(lookup.table, made.table), (lookup.indices, made.indices)]
    if lookup.is_scatter:
        inputs.append((lookup.moved, made.moved))
    work = sum(tensor.bytes_of(chain[-1]) for tensor, chain in inputs)
    written = 0 if lookup.is_scatter else result.bytes_of(made.result[0])  # a scatter is in place
    found = [(work + written, 0)]
    for tensor, chain in (*inputs, (result, made.result)):
        for before, after in pairwise(_steps(chain, free)):
            found.append(_move_cost(tensor.bytes_of(before), tensor.bytes_of(after), before, after))
    found += [(result.bytes_of(s), 2 * result.bytes_of(s)) for s in made.summed]  # in place
    return max(memory for memory, _ in found), sum(sent for _, sent in found)


def _steps(chain: tuple[Layout, ...], free: Sequence[Axis]) -> list[Layout]:
    """Layouts of a chain, and those on the way between them."""
    fixed = [a for a in dict.fromkeys(x for at in chain for x in axes_of(at)) if a not in free]
    found = [tuple(map(joined, chain[0]))]
    for before, after in pairwise(chain):
        found += way(before, after, (*fixed, *free))
    return found


def _move_cost(before_bytes: int, after_bytes: int, before: Layout, after: Layout) -> Cost:
    """Of a gather, an exchange, or a slice (which is none of either)."""
    if set(axes_of(before)) <= set(axes_of(after)) and is_cut_from(after, before):
        return 0, 0
    sent = after_bytes - before_bytes if after_bytes > before_bytes else after_bytes
    return before_bytes + after_bytes, sent
