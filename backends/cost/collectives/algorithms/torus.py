"""Rings and tori of direct links, both directions of which are used at once.

Formulas: jax-ml/scaling-book, "Sharded matrices and how to multiply them"; for a line of chips and
for all-to-all by counting the bytes over the fullest link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from flint.backends.cost.collectives.algorithm import (
    GROUP_COLLECTIVES,
    NEIGHBOURS,
    Algorithm,
    LinkUse,
    Task,
)
from flint.backends.cost.collectives.algorithms.ring import total_bytes
from flint.backends.cost.network.torus import Span
from flint.cluster.models import Network
from flint.ir.op_class import Collective


@dataclass(frozen=True, slots=True)
class Extent:
    """Members of a group along one dimension of a torus, `stride` chips apart.

    `wrapped` where the ends are joined. Two neighbors have one link, also where a ring of two
    would give them two.
    """

    size: int
    wrapped: bool
    stride: int = 1

    @property
    def links(self) -> int:
        """Links over which a member at an end receives: one on a line."""
        return 2 if self.wrapped and self.size * self.stride > 2 else 1

    @property
    def share(self) -> float:
        """Links that one group has where `stride` groups are interleaved on them."""
        return self.links / self.stride

    @property
    def hops(self) -> int:
        """Hops to the farthest member."""
        return self.stride * (self.size // 2 if self.links == 2 else self.size - 1)


def extents_of(span: Span, network: Network, members: int) -> tuple[Extent, ...]:
    """The lines of a span; one line where it does not say, which is a ring if it is as long as one.

    `members` is the size of a ring tier, all of which is one ring.
    """
    if span.torus_sizes:
        lines = zip(span.torus_sizes, span.torus_wraps, span.torus_strides, strict=True)
        return tuple(Extent(*line) for line in lines)
    rings = network.torus_shape or (members,)
    return (Extent(span.size, span.size * span.stride in rings, span.stride),)


def torus(collective: Collective, comm_bytes: float, extents: tuple[Extent, ...]) -> LinkUse:
    """Both directions at once, and all dimensions at once if groups are equally interleaved there.

    Dimensions that a group shares with more others may be phases of their own (see `_links`). The
    bandwidth of the tier is that of one link, so `LinkUse.links` counts links.
    """
    extents = tuple(e for e in extents if e.size > 1)
    size = math.prod(e.size for e in extents)
    hops = sum(e.hops for e in extents)
    total = total_bytes(collective, comm_bytes, size)
    if collective is Collective.BROADCAST:
        return LinkUse("torus", hops, total, links=sum(e.share for e in extents))
    if collective is Collective.ALL_TO_ALL:
        return LinkUse("torus", hops, _fullest_link(comm_bytes, size, extents), links=1)
    rounds = 2 if collective is Collective.ALL_REDUCE else 1
    wire_bytes = rounds * total * (size - 1) / size
    return LinkUse("torus", rounds * hops, wire_bytes, links=_links(extents))


def _links(extents: tuple[Extent, ...]) -> float:
    """Links that a gather of a group in all of `extents` keeps busy on average.

    It goes in phases. The dimensions of a phase work at once, as if each were as interleaved as the
    one that most groups share; the slowest phase comes first, while there is least to send (in a
    reduce-scatter last). Of all ways to form phases it is the fastest.
    """
    size = math.prod(e.size for e in extents)
    return (size - 1) / min(_time(phases) for phases in _partitions(extents))


def _time(phases: list[list[Extent]]) -> float:
    """Parts that follow each other over one link, where each member has one part to begin with."""
    speeds = {
        number: sum(e.links for e in phase) / max(e.stride for e in phase)
        for number, phase in enumerate(phases)
    }
    ready, time = 1, 0.0
    for number in sorted(speeds, key=lambda n: speeds[n]):
        members = math.prod(e.size for e in phases[number])
        time += ready * (members - 1) / speeds[number]
        ready *= members
    return time


def _partitions(extents: tuple[Extent, ...]) -> Iterator[list[list[Extent]]]:
    """All ways to form groups of a few dimensions."""
    if not extents:
        yield []
        return
    first, rest = extents[0], extents[1:]
    for groups in _partitions(rest):
        yield [[first], *groups]
        for at, group in enumerate(groups):
            yield [*groups[:at], [first, *group], *groups[at + 1 :]]


def _fullest_link(comm_bytes: float, size: int, extents: tuple[Extent, ...]) -> float:
    """Bytes of an all-to-all over the fullest link, dimension by dimension.

    Along a dimension of n members in which each sends S, S/n goes to each coordinate. The n^2/4
    pairs on both sides of the middle (rounded down) load the middle link of a line, and half as
    much each link of a ring, whose two directions share the hops; of each interleaved group.
    """
    fullest = comm_bytes * (size - 1) / size / sum(e.links for e in extents)
    for extent in extents:
        pairs = extent.size**2 // 4
        fullest = max(fullest, pairs * comm_bytes / extent.size / extent.share)
    return fullest


def _schedule(task: Task) -> LinkUse:
    extents = extents_of(task.span, task.network, task.members)
    return torus(task.collective, task.comm_bytes, extents)


ALGORITHMS = (
    Algorithm(name="torus", collectives=GROUP_COLLECTIVES, networks=NEIGHBOURS, schedule=_schedule),
)
