"""How XLA's partitioner goes from one division of a tensor to another: by counts of parts.

As many parts of every dimension: a permute. Parts that one dimension gives up and another takes: an
exchange, and a permute if the devices are others than asked for. More parts on replicas: a slice;
fewer, and replicas: a gather. Of the rest, in this order (`ReshardNoCache` and
`TryComplexReshardHandling` in xla/service/spmd/spmd_partitioner.cc):

- a dimension whose parts are all of the replicas asked for is gathered first,
- a whole dimension that is to be divided takes all replicas first,
- everything is gathered and cut again (its "involuntary full rematerialization"), but for
  dimensions that are divided into as many parts before and after.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations

from flint.passes.partition.as_xla.layouts import (
    Axis,
    Layout,
    axes_of,
    count,
    joined,
    leading,
    split,
)


def way(source: Layout, target: Layout, axes: Sequence[Axis]) -> tuple[Layout, ...]:
    """Layouts after each step, the last of them `target`; `axes` are those of the mesh in order."""
    source, target = (tuple(split(dim, ()) for dim in at) for at in (source, target))
    axes = split(axes, ())
    found = _way(source, target, axes)
    if found is None and sorted(_tiles(source)) != sorted(_tiles(target)):
        found = _rematerialized(source, target, axes)
    return tuple(tuple(map(joined, at)) for at in found or (target,))


def _way(source: Layout, target: Layout, axes: Sequence[Axis]) -> tuple[Layout, ...] | None:
    """The steps, or None where everything has to be gathered."""
    before, after = _tiles(source), _tiles(target)
    devices = count(axes)
    if before == after or _divides(before, after) or _divides(after, before):
        return (target,)
    for first in _first_steps(source, target, axes, devices):
        rest = (first,) if first == target else _way(first, target, axes)
        if rest is not None:
            return (first, *rest) if rest[0] != first else rest
    return None


def _first_steps(
    source: Layout, target: Layout, axes: Sequence[Axis], devices: int
) -> Iterator[Layout]:
    """What is tried, in order."""
    before, after = _tiles(source), _tiles(target)
    replicas, wanted = devices // math.prod(before), devices // math.prod(after)
    if replicas > 1 == wanted and before[0] == 1 and (*before[1:], replicas) == after:
        shifted = (*source[1:], ())
        if axes_of(shifted) == axes_of(target)[: len(axes_of(shifted))]:
            yield shifted
    exchanged = _exchanged(source, before, after) if replicas == wanted else None
    if exchanged is not None:
        yield exchanged
        return
    if wanted > 1:
        gathered = [d for d, n in enumerate(before) if n > 1 and n * replicas == wanted]
        if gathered:
            yield _with(source, gathered[0], ())
            return
    if replicas > 1 == wanted:
        spare = tuple(a for a in axes if a not in axes_of(source))
        for d, (n, m) in enumerate(zip(before, after, strict=True)):
            if n == 1 < m and m % replicas == 0 and count(spare) == replicas:
                yield _with(source, d, spare)
                return


def _exchanged(source: Layout, before: tuple[int, ...], after: tuple[int, ...]) -> Layout | None:
    """Parts of one dimension on another, if these two come to what is asked for."""
    pairs = list(permutations(range(len(before)), 2))
    is_same = sorted(before) == sorted(after)
    for d, e in pairs if is_same else ():
        if before[e] == 1 < after[e] == before[d] != after[d]:
            return _with(_with(source, d, ()), e, source[d])
    for d, e in pairs:
        more = before[d] // after[d]
        if more < 2 or before[d] != more * after[d] or before[e] * more != after[e]:
            continue
        ones = (before[d], before[e], after[d], after[e]).count(1)
        stays = leading(source[d], after[d]) if ones == 1 or (is_same and not ones) else None
        if stays is not None:
            goes = source[d][len(stays) :]
            return _with(_with(source, d, stays), e, (*source[e], *goes))
    return None


def _rematerialized(source: Layout, target: Layout, axes: Sequence[Axis]) -> tuple[Layout, ...]:
    """Gathered, all but dimensions in as many parts as asked for, and cut."""
    before, after = _tiles(source), _tiles(target)
    kept = tuple(s if n == m else () for s, n, m in zip(source, before, after, strict=True))
    end = tuple(s or t for s, t in zip(kept, target, strict=True))
    if len(set(axes_of(end))) < len(axes_of(end)):
        return (target,)  # axes of both, on other dimensions
    return (kept, target) if end == target else (kept, end, target)


def _with(layout: Layout, dim: int, axes: tuple[Axis, ...]) -> Layout:
    return (*layout[:dim], axes, *layout[dim + 1 :])


def _tiles(layout: Layout) -> tuple[int, ...]:
    return tuple(map(count, layout))


def _divides(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Whether each dimension of the second is cut into a multiple of the first's parts."""
    return all(n % m == 0 for m, n in zip(first, second, strict=True))
