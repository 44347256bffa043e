"""What collectives take that run by an algorithm somebody wrote: its steps and bytes on the links of a cluster.

MSCCL runs an algorithm over one part of the array after the other, and its thread blocks do not wait for
each other in between. So latencies add up along the longest path through the steps, once, and bytes
count where most of them go: through the port of a rank, in or out, of a tier; or along steps that a
thread block must end before it begins with the next part. Both become a `LinkUse` of each tier, to which
`choose` applies the constants and protocols that Flint's own algorithms have.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from flint.backends.cost.collectives import duration_ns
from flint.backends.cost.collectives.algorithm import (
    AcrossTiers,
    CollectiveCall,
    LinkUse,
    Task,
    Way,
    of_collective,
)
from flint.backends.cost.collectives.algorithms.ring import flat_ring, total_bytes
from flint.backends.cost.network.placement import NetworkPlacement, call_of
from flint.cluster.models import NetworkKind
from flint.errors import FlintError, nearest
from flint.ir.mesh import Group
from flint.ir.op_class import Collective
from flint.ir.workload import Workload
from flint.tools.interop.algorithms.checking import AlgorithmGraph, proved_algorithm

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
#: Where any rank reaches any other without passing a third one.
_NETWORKS = frozenset({NetworkKind.SWITCH, NetworkKind.MESH})
#: Parts after which a thread block's steps take as long in each further one.
_PARTS = 3
_Key = tuple[Collective, int]
_Port = tuple[str | int, int]


@dataclass(frozen=True, eq=False)
class WrittenAlgorithms:
    """Algorithms by kind and number of ranks. `said` are sentences on which collectives run by them."""

    priced: Mapping[_Key, Sequence[PricedAlgorithm]]
    said: tuple[str, ...] = ()

    def of(
        self, call: CollectiveCall, size: int, placement: NetworkPlacement
    ) -> PricedAlgorithm | None:
        """The one for a call of a group of some size, if there is one."""
        if any(placement.cluster.network[s.tier].kind not in _NETWORKS for s in call.spans):
            return None
        total = total_bytes(call.collective, call.comm_bytes, size)
        known = [(p, p.graph.algorithm) for p in self.priced.get((call.collective, size), ())]
        return next((p for p, a in known if a.least <= total <= a.most), None)

    def on(self, call: CollectiveCall, group: Group, placement: NetworkPlacement) -> CollectiveCall:
        """The call with the algorithm that there is for it, as the slowest of the groups runs it."""
        priced = self.of(call, group.size(placement.mesh), placement)
        if priced is None:
            return call
        found = [replace(call, written=way) for way in priced.ways(call, group, placement)]
        if len(found) == 1:
            return found[0]
        return max(found, key=lambda c: duration_ns(c, placement.cluster))


def written_algorithms(
    texts: Sequence[str], workload: Workload, placement: NetworkPlacement
) -> WrittenAlgorithms:
    """What `--collective-algorithm` gives: KIND=FILE each.

    Raises FlintError FL607 to FL609 and FL611 for a file that cannot be used, FL610 for what is not KIND=FILE, for two
    algorithms of a kind and size, and for one that no collective of the workload has the size for.
    """
    found: dict[_Key, list[PricedAlgorithm]] = {}
    for text in texts:
        kind, equals, name = text.partition("=")
        if not (equals and name) or kind not in _KINDS:
            told = f"'{text}' is not KIND=FILE{nearest(kind, _KINDS)}"
            raise FlintError("FL610", told, help=f"all-reduce=ring.xml; kinds: {', '.join(_KINDS)}")
        graph = proved_algorithm(Path(name))
        a = graph.algorithm
        if a.kind != kind:
            raise FlintError("FL609", f"{name} is for {a.kind}, not for {kind}")
        others = found.setdefault((a.collective, a.ranks), [])
        for b in (p.graph.algorithm for p in others):
            if a.least <= b.most and b.least <= a.most:
                told = f"{name} and {b.file} are for the same bytes of {kind} of {a.ranks} ranks"
                raise FlintError("FL610", told, help="name one of them (minBytes, maxBytes)")
        others.append(PricedAlgorithm(graph))
    written = WrittenAlgorithms(found)
    return replace(written, said=tuple(_said(written, workload, placement)))


def _said(
    written: WrittenAlgorithms, workload: Workload, placement: NetworkPlacement
) -> Iterator[str]:
    """Which collectives run by which algorithm, and which of the same kinds do not."""
    runs, others = set[PricedAlgorithm](), set[_Key]()
    for program in workload.programs:
        for row in np.flatnonzero(program.group >= 0).tolist():
            size = program.groups[program.group[row]].size(workload.mesh)
            call = call_of(program, row, placement)
            if size > 1 and (priced := written.of(call, size, placement)):
                runs.add(priced)
            elif size > 1:
                others.add((call.collective, size))
    kept = list[str]()
    for priced in chain.from_iterable(written.priced.values()):
        a = priced.graph.algorithm
        sizes = ", ".join(str(n) for k, n in sorted(others) if k is a.collective)
        if a.collective not in {p.graph.algorithm.collective for p in runs}:
            told = f"no {a.kind} of this program has ranks, network and bytes of {a.file}"
            has = f"there are some of {sizes} ranks" if sizes else "it has none"
            raise FlintError("FL610", f"{told} ({a.ranks} ranks): {has}")
        if priced in runs:
            yield f"{a.kind} of {a.ranks} ranks runs as {a.file.name} says"
        if sizes:
            kept.append(
                f"{a.kind} of {sizes} ranks keeps Flint's algorithms where no file is for it"
            )
    yield from dict.fromkeys(kept)


@dataclass(frozen=True, eq=False)
class PricedAlgorithm:
    """An algorithm, and the ways to run it by where the ranks of a group are, which are kept."""

    graph: AlgorithmGraph
    _known: dict[tuple[Group, NetworkPlacement], list[AcrossTiers]] = field(default_factory=dict)

    def ways(
        self, call: CollectiveCall, group: Group, placement: NetworkPlacement
    ) -> list[AcrossTiers]:
        """One for each way in which the ranks of the groups are spread over the domains of tiers."""
        if (key := (group, placement)) not in self._known:
            a = self.graph.algorithm
            links = sorted({(s.rank, s.sends_to) for s in a.steps if s.sends_to >= 0})
            members = np.stack([m for m in group.members(placement.mesh) if len(m) == a.ranks])
            source, target = (members[:, list(ranks)] for ranks in zip(*links, strict=True))
            tiers = np.zeros(source.shape, dtype=np.int64)
            for domains in placement.domains:
                tiers += domains[source] != domains[target]
            spread = [s.tier for s in call.spans if s.size > 1]
            # Ranks that are unevenly spread count as in the tiers that `spans` has.
            legs = np.minimum(np.searchsorted(spread, tiers), len(spread) - 1)
            self._known[key] = [
                AcrossTiers(
                    name=a.name,
                    collectives=frozenset({a.collective}),
                    networks=_NETWORKS,
                    schedules=StepsOverTiers(self.graph, dict(zip(links, each, strict=True))).uses,
                    protocols=self._protocols,
                )
                for each in np.unique(legs, axis=0).tolist()
            ]
        return self._known[key]

    def _protocols(self, schedule: Way, task: Task) -> list[Way]:
        """That of the file where the tier has constants for it. Flint has none for LL128: what is faster counts."""
        ways = of_collective(schedule, task)
        return {"LL": ways[:1], "Simple": ways[-1:]}.get(self.graph.algorithm.protocol, ways)


@dataclass(frozen=True, eq=False)
class StepsOverTiers:
    """The steps of an algorithm over the tiers of a call, of which `tier_of` names one for the ranks of a message."""

    graph: AlgorithmGraph
    tier_of: Mapping[tuple[int, int], int]
    _known: dict[tuple[float, ...], tuple[list[int], list[float]]] = field(default_factory=dict)

    @cached_property
    def _tier(self) -> list[int]:
        """By step, the tier of what it sends; -1 if nothing."""
        return [self.tier_of.get((s.rank, s.sends_to), -1) for s in self.graph.algorithm.steps]

    def uses(self, tasks: Sequence[Task]) -> Sequence[LinkUse]:
        """What each tier has to do, in the words of Flint's own algorithms."""
        a, call = self.graph.algorithm, tasks[0]
        total = total_bytes(a.collective, call.comm_bytes, a.ranks)
        latency = [t.speed.a1_ns + t.speed.declared["bulk_a1_ns"] for t in tasks]
        links = [  # of a rank to one other each, or one to all
            max((t.members or t.span.size) - 1, 1) if t.network.kind is NetworkKind.MESH else 0
            for t in tasks
        ]
        speed = [t.speed.bandwidth * t.speed.efficiency for t in tasks]
        if (key := (*latency, *links, *speed)) not in self._known:
            self._known[key] = self._messages(latency), self._chunks(links, speed)
        steps, chunks = self._known[key]
        wire = [n * total / a.chunks for n in chunks]
        if is_flat := len(tasks) > 1 and self._is_ring:
            # Constants between domains were fitted by how `flat_ring` counts the steps of such rings.
            flat = flat_ring(a.collective, call.comm_bytes, [t.span.size for t in tasks])
            same = [math.isclose(n, u.wire_bytes) for n, u in zip(wire, flat, strict=True)]
            same[0] |= wire[0] < flat[0].wire_bytes  # a channel that leaves a host spares its links
            if all(same) and sum(steps) == sum(u.steps for u in flat):
                return flat
        kept = self.graph.alone / a.chunks if a.collective is Collective.ALL_REDUCE else 1 / a.ranks
        name = "flat ring" if is_flat else a.name
        return [
            LinkUse(name, steps[n], wire[n], 0.0 if n else kept * total) for n in range(len(tasks))
        ]

    def _messages(self, latency_ns: Sequence[float]) -> list[int]:
        """By tier, the messages of the path through the steps that has the most latency."""
        graph, count = self.graph, len(self.graph.order)
        ends, came = [0.0] * count, [-1] * count
        for i in graph.order:
            for j in graph.before(i):
                end = ends[j] + (latency_ns[self._tier[j]] if j == graph.sender[i] else 0.0)
                if end >= ends[i]:
                    ends[i], came[i] = end, j
        at, found = max(range(count), key=ends.__getitem__), [0] * len(latency_ns)
        while came[at] >= 0:
            if came[at] == graph.sender[at]:
                found[self._tier[came[at]]] += 1
            at = came[at]
        return found

    def _chunks(self, links: Sequence[int], speed: Sequence[float]) -> list[float]:
        """By tier, the chunks behind whose transfer the others are hidden."""
        ports = [Counter[_Port]() for _ in speed]
        for s, tier in zip(self.graph.algorithm.steps, self._tier, strict=True):
            if tier >= 0:
                ports[tier]["out", s.rank] += s.count
                ports[tier]["in", s.sends_to] += s.count
                ports[tier][s.rank, s.sends_to] += s.count * links[tier]
        most = [max(counts.values(), default=0) for counts in ports]
        port_ns = max(n / s for n, s in zip(most, speed, strict=True))
        longer = self._turn_ns([max(n, 1) / s for n, s in zip(links, speed, strict=True)]) / port_ns
        return [n * longer if longer > 1 + 1e-9 else float(n) for n in most]

    def _turn_ns(self, chunk_ns: Sequence[float]) -> float:
        """How long thread blocks are busy with each further part of the array, if no two share a link.

        A step that receives and sends passes on what arrives while it arrives.
        """
        graph, steps = self.graph, self.graph.algorithm.steps
        ends, before = [0.0] * len(steps), dict[tuple[int, int], float]()
        free: dict[tuple[int, int], float] = {(s.rank, s.block): 0.0 for s in steps}
        for _ in range(_PARTS):
            before = dict(free)
            for i in graph.order:
                block = steps[i].rank, steps[i].block
                own = (ends[j] for j in (graph.earlier[i], graph.other[i]) if j >= 0)
                end = max(before[block], *own, 0.0)
                if self._tier[i] >= 0:
                    end += steps[i].count * chunk_ns[self._tier[i]]
                if graph.sender[i] >= 0:
                    end = max(end, ends[graph.sender[i]])
                ends[i] = free[block] = end
        return max(end - before[block] for block, end in free.items())

    @cached_property
    def _is_ring(self) -> bool:
        """Whether each channel is one ring through all ranks: then no tier waits for another."""
        after = defaultdict[int, dict[int, int]](dict)
        for s in self.graph.algorithm.steps:
            if s.sends_to >= 0 and after[s.channel].setdefault(s.rank, s.sends_to) != s.sends_to:
                return False
        for ring in after.values():
            at, seen = 0, set[int]()
            while at in ring and at not in seen:
                seen.add(at)
                at = ring[at]
            if at or len(seen) < self.graph.algorithm.ranks:
                return False
        return True
