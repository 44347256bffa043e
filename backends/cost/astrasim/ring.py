"""When each member of a collective ends in ASTRA-sim, if its members do not begin together.

Its ring, step by step: a member sends when it has what it received in the step before, waits for
what its neighbor sends, and handles that for some nanoseconds; see `docs/chakra.md`. For members
that begin together over equal links the time is a closed formula. Its GB is 2**30 bytes, and a hop
through a switch counts as two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.chakra.schema import CommType
from flint.ir.program import Int64s

if TYPE_CHECKING:
    from flint.cluster.astrasim.system import SystemFile

#: Handling of a packet, in ns, in a group smaller than the network: ASTRA-sim's "fast" memory bus.
_FAST_DELAY_NS = 10
#: Of the collectives, those that add up what they receive.
_ADDS = (CommType.ALL_REDUCE, CommType.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of ASTRA-sim's network: GiB/s, ns per hop, hops between neighbors."""

    bandwidth_gib_per_s: float
    latency_ns: float
    hops: int = 2

    def message_ns(self, size_bytes: float) -> int:
        """Nanoseconds of one message between neighbors."""
        bytes_per_ns = self.bandwidth_gib_per_s * 2**30 / 1e9
        return math.floor(self.hops * self.latency_ns + size_bytes / bytes_per_ns)


@dataclass(frozen=True)
class Fabric:
    """Dimensions of ASTRA-sim's network, inner first; `topologies` as in its file.

    A `Dimension` has the hops between neighbors. A message goes along the first dimension in which
    its ends differ, whatever the others.
    """

    topologies: tuple[str, ...]
    sizes: tuple[int, ...]
    dimensions: tuple[Dimension, ...]

    @property
    def world(self) -> int:
        """The number of ranks."""
        return math.prod(self.sizes)

    def hop(self, source: int, target: int) -> tuple[int, int]:
        """The dimension that a message goes along, and how many hops."""
        if source == target:
            raise ValueError("a message to itself")
        for dim, (topology, size) in enumerate(zip(self.topologies, self.sizes, strict=True)):
            steps = (target - source) % size
            if steps:
                times = min(steps, size - steps) if topology == "Ring" else 1
                return dim, self.dimensions[dim].hops * times
            source, target = source // size, target // size
        raise ValueError("a rank that the network does not have")

    def message_ns(self, source: int, target: int, size_bytes: int) -> int:
        """Nanoseconds of a message."""
        dim, hops = self.hop(source, target)
        return replace(self.dimensions[dim], hops=hops).message_ns(size_bytes)


@dataclass(frozen=True)
class _Phase:
    """One collective round rings of equal length: `rings[i]` are ranks in the order of sending."""

    kind: CommType
    size_bytes: int
    rings: tuple[tuple[int, ...], ...]
    delay_ns: int


class Collectives:
    """Ends of collectives on a fabric. Equal questions are answered once."""

    def __init__(self, fabric: Fabric, system: SystemFile) -> None:
        self._fabric = fabric
        self._system = system
        self._phases: dict[tuple[object, ...], list[_Phase]] = {}
        self._hops: dict[tuple[tuple[int, ...], int], Int64s] = {}
        self._together: dict[tuple[object, ...], int] = {}

    def ends(
        self,
        kind: CommType,
        size_bytes: int,
        members: Sequence[int],
        involved: tuple[bool, ...] | None,
        begins: Sequence[int],
    ) -> list[int]:
        """When each of `members` (ascending) ends, which began at `begins`, all in ns.

        `involved` says along which dimensions the collective goes one after the other; None for a
        group that is one ring.
        """
        key = (kind, size_bytes, tuple(members), involved)
        phases = self._phases.get(key)
        if phases is None:
            phases = self._phases[key] = self._plan(kind, size_bytes, members, involved)
        at = dict(zip(members, begins, strict=True))
        for phase in phases:
            for ring in phase.rings:
                begun = np.array([at[r] for r in ring], dtype=np.int64)
                at.update(zip(ring, self._along(phase, ring, begun).tolist(), strict=True))
        return [at[r] for r in members]

    def together(
        self,
        kind: CommType,
        size_bytes: int,
        members: Sequence[int],
        involved: tuple[bool, ...] | None,
    ) -> int:
        """Nanoseconds of a collective whose members (ascending) all begin together.

        Rings along one dimension are alike, so one of them is asked.
        """
        ringed = members if involved is None else members[:1]
        key = (kind, size_bytes, tuple(ringed), involved)
        now = self._together.get(key)
        if now is None:
            now = 0
            for phase in self._plan(kind, size_bytes, ringed, involved):
                ring = phase.rings[0]
                now = int(self._along(phase, ring, np.full(len(ring), now, dtype=np.int64)).max())
            self._together[key] = now
        return now

    def _plan(
        self,
        kind: CommType,
        size_bytes: int,
        members: Sequence[int],
        involved: tuple[bool, ...] | None,
    ) -> list[_Phase]:
        if kind != CommType.ALL_GATHER:  # it gives every rank of the network a byte at least
            size_bytes = max(size_bytes, self._fabric.world)
        if involved is None:
            return [_Phase(kind, size_bytes, (tuple(members),), _FAST_DELAY_NS)]
        found = []
        for dim, of_kind, forward in _in_turn(kind, involved, self._fabric.sizes, self._whole):
            rings = self._rings(dim, members, forward=forward)
            delay = round(self._system.endpoint_delay)
            found.append(_Phase(of_kind, size_bytes, rings, delay))
            size_bytes = _left(of_kind, size_bytes, self._fabric.sizes[dim])
        return found

    @property
    def _whole(self) -> bool:
        """Whether an all-reduce goes as a whole round each dimension."""
        return self._system.collective_optimization == "baseline"

    def _rings(
        self, dim: int, members: Sequence[int], *, forward: bool
    ) -> tuple[tuple[int, ...], ...]:
        stride, size = math.prod(self._fabric.sizes[:dim]), self._fabric.sizes[dim]
        first = [r for r in members if r // stride % size == 0]
        steps = range(size) if forward else range(size - 1, -1, -1)
        return tuple(tuple(r + i * stride for i in steps) for r in first)

    def _along(self, phase: _Phase, ring: tuple[int, ...], begun: Int64s) -> Int64s:
        count, kind = len(ring), phase.kind
        part = phase.size_bytes if kind == CommType.ALL_GATHER else phase.size_bytes // count
        steps = {
            CommType.ALL_REDUCE: 2 * (count - 1),
            CommType.ALL_TO_ALL: count * (count - 1) // 2,
        }.get(kind, count - 1)
        added = count - 1 if kind in _ADDS else 0
        return ring_ends(
            begun,
            self._hops_of(ring, part),
            steps,
            lambda step: phase.delay_ns + (self._reduction(part) if step <= added else 0),
            phase.delay_ns,
        )

    def _reduction(self, size_bytes: float) -> int:
        """Nanoseconds to add two buffers: two reads and one write."""
        return 3 * math.floor(size_bytes / self._system.local_mem_bw)

    def _hops_of(self, ring: tuple[int, ...], part: int) -> Int64s:
        found = self._hops.get((ring, part))
        if found is None:
            pairs = zip(ring, (*ring[1:], ring[0]), strict=True)
            times = [self._fabric.message_ns(a, b, part) for a, b in pairs]
            found = self._hops[ring, part] = np.array(times, dtype=np.int64)
        return found


def ring_ends(
    begun: Int64s, hop_ns: Int64s, steps: int, handling_ns: Callable[[int], int], first_ns: int
) -> Int64s:
    """When each member of a ring ends, in ns: member i sends to i + 1, which takes `hop_ns[i]`.

    `handling_ns(k)` is what a member does with its k-th packet, from 1 on, `first_ns` what it does
    before it sends one.
    """
    now = begun + first_ns
    if (now == now[0]).all() and (hop_ns == hop_ns[0]).all():
        handled = sum(map(handling_ns, range(1, steps + 1)))
        return np.asarray(now + steps * hop_ns[0] + handled, dtype=np.int64)
    for step in range(1, steps + 1):
        now = np.maximum(now, np.roll(now + hop_ns, 1)) + handling_ns(step)
    return now


def _in_turn(
    kind: CommType, involved: tuple[bool, ...], sizes: Sequence[int], whole: bool
) -> list[tuple[int, CommType, bool]]:
    """Dimension, collective and direction (True: to the next rank) of each phase."""
    dims = [d for d, inside in enumerate(involved) if inside and sizes[d] > 1]
    if kind == CommType.ALL_GATHER:
        return [(d, kind, True) for d in reversed(dims)]
    if kind != CommType.ALL_REDUCE or whole:
        return [(d, kind, True) for d in dims]
    inner, last = dims[:-1], dims[-1]
    return [
        *((d, CommType.REDUCE_SCATTER, True) for d in inner),
        (last, kind, True),
        *((d, CommType.ALL_GATHER, False) for d in reversed(inner)),
    ]


def _left(kind: CommType, size_bytes: int, members: int) -> int:
    """The bytes that the next phase begins with."""
    if kind == CommType.ALL_GATHER:
        return size_bytes * members
    return size_bytes // members if kind == CommType.REDUCE_SCATTER else size_bytes
