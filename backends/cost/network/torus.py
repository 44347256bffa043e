"""Which chips of a torus a mesh uses, and which of the torus's dimensions each mesh axis gets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from flint.cluster.models import Cluster, Network, NetworkKind
from flint.ir.arrays import Int64s


@dataclass(frozen=True, slots=True)
class Line:
    """Chips in one dimension of a torus, `stride` apart."""

    dimension: int
    size: int
    stride: int


def is_torus(network: Network) -> bool:
    """Whether chips of this tier have neighbors: a torus, or a ring, which has one dimension."""
    return network.kind in (NetworkKind.TORUS, NetworkKind.RING)


def slice_shape(network: Network, members: int, chips: int) -> tuple[int, ...] | None:
    """Sizes of the block of a pod that `chips` chips are, smallest first; None if there is none.

    `members` is the size of a ring (0: any). Of the blocks that fit into the pod it is the one with the smallest sum of sizes: those that
    are offered for TPUs (4x4x8, not 2x8x8).
    """
    if network.kind is NetworkKind.RING:
        return (chips,) if members == 0 or chips <= members else None
    pod = sorted(network.torus_shape)
    blocks = (b for b in _blocks(chips, len(pod)) if all(map(int.__le__, b, pod)))
    return min(blocks, key=lambda b: (sum(b), b), default=None)


def wraps(network: Network, members: int, shape: Sequence[int], dimension: int) -> bool:
    """Whether a dimension of a slice of this shape is a ring, and not a line.

    `members` is the size of a ring (0: any).
    """
    size = shape[dimension]
    if network.kind is NetworkKind.RING:
        return members in (0, size)
    sizes = shape if network.torus_wraps_together else (size,)
    return all(s % network.torus_wrap_multiple == 0 for s in sizes)


def assign(shape: Sequence[int], sizes: Sequence[int]) -> list[tuple[Line, ...]]:
    """Lines for each of `sizes`, whose product is that of `shape`; the major line first.

    Whole dimensions where their product matches, as many as possible (each has links of its own);
    what is left takes parts of dimensions. Earlier sizes choose first.
    """
    free = {d: size for d, size in enumerate(shape) if size > 1}
    found: dict[int, tuple[Line, ...]] = {}
    for i, size in enumerate(sizes):
        whole = _whole_dimensions(free, size)
        if whole is not None:
            found[i] = tuple(Line(d, free.pop(d), 1) for d in whole)
    taken = dict.fromkeys(free, 1)
    for i, size in enumerate(sizes):
        if i not in found:
            found[i] = tuple(reversed(_parts(free, taken, size)))
    return [found[i] for i in range(len(sizes))]


def _whole_dimensions(free: dict[int, int], size: int) -> tuple[int, ...] | None:
    dimensions = sorted(free)
    subsets = (
        tuple(d for i, d in enumerate(dimensions) if bits >> i & 1)
        for bits in range(2 ** len(dimensions))
    )
    exact = [s for s in subsets if math.prod(free[d] for d in s) == size]
    return max(exact, key=len, default=None)


def _parts(free: dict[int, int], taken: dict[int, int], size: int) -> list[Line]:
    """Parts of dimensions whose product is `size`, taken from what is free."""
    lines = []
    for d in sorted(free, key=lambda d: (size % free[d] != 0, d)):  # whole remainders first
        part = math.gcd(free[d], size)
        if part > 1:
            lines.append(Line(d, part, taken[d]))
            free[d] //= part
            taken[d] *= part
            size //= part
    return lines


@cache
def _blocks(chips: int, dimensions: int) -> tuple[tuple[int, ...], ...]:
    """All ascending tuples of `dimensions` sizes whose product is `chips`."""
    return tuple(_ascending(chips, dimensions, 1))


def _ascending(chips: int, dimensions: int, least: int) -> Iterator[tuple[int, ...]]:
    if dimensions == 1:
        if chips >= least:
            yield (chips,)
        return
    first = least
    while first**dimensions <= chips:
        if chips % first == 0:
            yield from (
                (first, *rest) for rest in _ascending(chips // first, dimensions - 1, first)
            )
        first += 1


# Messages on a torus: how many links each passes, and how many meet on the fullest link.
#
# A message goes along one dimension after the other (dimension-ordered routing, as the interconnects
# of TPUs do by default), the shorter way round a ring. Half way round it goes up.


class Load(NamedTuple):
    """Links of the longest way, and messages over the fullest link in one direction."""

    hops: int
    messages: int


def load_of(
    source: Int64s, target: Int64s, shape: Sequence[int], rings: Sequence[bool], torus: Int64s
) -> Load:
    """The load of messages that are all sent at once.

    `source` and `target` hold the place of a chip in each dimension, one row for each message.
    `rings` are the dimensions whose ends are joined. `torus` tells apart tori that have no link in
    common, by number, for each message.
    """
    hops = np.zeros(len(source), dtype=np.int64)
    fullest = 0
    here = source.copy()
    for dimension, (size, ring) in enumerate(zip(shape, rings, strict=True)):
        a, b = here[:, dimension], target[:, dimension]
        up = (b - a) % size <= (a - b) % size if ring else b > a
        distance = np.where(up, b - a, a - b) % size
        others = np.delete(here, dimension, axis=1)
        line = _numbered(others, [s for d, s in enumerate(shape) if d != dimension], torus)
        for way, first in ((up, a), (~up, size - 1 - a)):  # down is up in a mirror
            fullest = max(fullest, _most_on_a_link(line[way], first[way], distance[way], size))
        hops += distance
        here[:, dimension] = b
    return Load(int(hops.max(initial=0)), fullest)


def _numbered(places: Int64s, sizes: Sequence[int], torus: Int64s) -> Int64s:
    """One number for each line of chips, from 0 upwards without gaps."""
    number = torus
    for place, size in zip(places.T, sizes, strict=True):
        number = number * size + place
    return np.unique(number, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _most_on_a_link(line: Int64s, first: Int64s, distance: Int64s, size: int) -> int:
    """Of messages that go up, the largest number on one link.

    Each passes `distance` links, the first from `first` to the next chip, round the end if need be.
    """
    if not distance.any():
        return 0
    lines = int(line.max()) + 1
    change = np.zeros((lines, 2 * size + 1), dtype=np.int64)
    np.add.at(change, (line, first), 1)
    np.add.at(change, (line, first + distance), -1)
    passing = change.cumsum(axis=1)
    return int((passing[:, :size] + passing[:, size : 2 * size]).max())


# Where the members of a group lie on a cluster's network, as the collective models see it.


@dataclass(frozen=True, slots=True)
class AxisPart:
    """A mesh axis, or the part (`pre_size`, `size`) of it as in `AxisRef`, that lies in one tier.

    `stride` is the distance of its members in chips of the tier. On a torus it is one `line`.
    """

    axis: str
    pre_size: int
    size: int
    tier: int
    stride: int = 1
    line: Line | None = None


def joined(lines: Sequence[Line]) -> list[Line]:
    """Lines of one dimension that follow on each other as one line, by dimension."""
    found: list[Line] = []
    for line in sorted(lines, key=lambda x: (x.dimension, x.stride)):
        last = found[-1] if found else None
        if last and last.dimension == line.dimension and last.stride * last.size == line.stride:
            found[-1] = replace(last, size=last.size * line.size)
        else:
            found.append(line)
    return found


def spread_parts(
    parts: Sequence[AxisPart], cluster: Cluster, mapping: Mapping[str, str]
) -> dict[str, tuple[AxisPart, AxisPart]]:
    """By axis that its divisors put on twice the domains that hold it, or more: its parts on as few as hold it.

    11 members on domains of 8 lie in two: five in one, six in the other. They are priced as five in each,
    which is what the emptier one sends over the outer tier by.
    """
    found, reached = {}, 0
    for name in reversed([n for n in dict.fromkeys(p.axis for p in parts) if n not in mapping]):
        mine = [p for p in parts if p.axis == name and p.size > 1]
        tier = mine[0].tier - 1 if mine else -1
        is_first, reached = tier >= reached, max(reached, tier + 1)
        inside = [p.tier for p in mine[1:]]
        if not is_first or inside not in ([], [tier]) or not cluster.members[tier]:
            continue  # a faster axis has left the domains
        beside = math.prod(p.size for p in parts if p.tier == tier and p.axis != name)
        size = math.prod(p.size for p in mine)
        domains = -(-size // max(cluster.members[tier] // beside, 1))
        if mine[0].size >= 2 * domains and not any(map(is_torus, cluster.network[tier : tier + 2])):
            inner = AxisPart(name, domains, size // domains, tier, beside)
            found[name] = (replace(mine[0], size=domains), inner)
    return found


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a group that lies inside one tier: `size` members, `stride` chips apart.

    `tier` is the index into `Cluster.network`, inner first. `sharing` is how many groups of the
    same collective leave through the same links of the tier at once (8 groups over nodes of 8
    chips share the node's links: each chip still has its own NIC, so it is 1 for them).

    On a torus (and on a ring, its case of one dimension) the members are a product of lines of
    chips: `torus_sizes` long, one in each dimension that the group occupies, with members
    `torus_strides` chips apart; as many groups are interleaved on the links of that line. Where
    `torus_wraps` is true the ends are joined: that line is a ring. A message on a torus goes
    `stride` hops, and `sharing` messages are on the fullest of its links.
    """

    tier: int
    size: int
    stride: int = 1
    sharing: int = 1
    torus_sizes: tuple[int, ...] = ()
    torus_strides: tuple[int, ...] = ()
    torus_wraps: tuple[bool, ...] = ()
