"""Ranks that do the same at the same times, so that one of them is run for all.

As in `flint.backends.chakra.checking.partition`, but times count: of a collective it matters where a
rank stands in its ring, and how long each hop takes. Two ranks are in one part if they run the same
nodes, and whoever takes part in what they communicate is of the same parts, at the same distance
round the ring. A late rank is alone, and so are then those that are at different distances from it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flint.backends.chakra.checking.cohorts import Cohort, Labelled, find_cohorts
from flint.backends.chakra.checking.findings import Findings
from flint.backends.chakra.checking.messages import AllMessages, find_exchange
from flint.backends.chakra.reading.kinds import GroupCodes
from flint.backends.chakra.reading.parser import Reference, TraceParser
from flint.backends.chakra.reading.reader import read_bytes, unpack
from flint.backends.chakra.reading.trace_class import AT, COMM_SIZE, COMM_TAG
from flint.backends.chakra.reading.trace_files import Membership, TraceSet
from flint.backends.cost.astrasim.disturbance import Disturbance
from flint.backends.cost.astrasim.ring import Fabric
from flint.ir.program import Int64s

#: Divisions after which every rank is run.
_MOST_ROUNDS = 64


@dataclass(frozen=True, eq=False)
class Grouping:
    """The part of each rank, the first rank of each part, and what that communicates in.

    `keys[part][node]`, by position among the nodes by id, is equal for those who meet, and for both
    ends of messages. `sizes` says how many parts are in a meeting. `cohorts` are those of ranks.
    """

    part: list[int]
    firsts: list[int]
    keys: list[dict[int, int]]
    sizes: dict[int, int]
    cohorts: dict[int, Cohort]
    groups: Sequence[Sequence[int]]

    def members(self, rank: int, node: int) -> Sequence[int]:
        """Who takes part in a collective of a rank, ascending, or source and target of a send."""
        cohort = self.cohorts[rank]
        row = int(np.searchsorted(cohort.ranks, rank))
        label = self._labels(cohort.sends).get(node)
        if label is not None:
            return rank, int(cohort.sends.values[row, label])
        label = self._labels(cohort.collectives)[node]
        return self.groups[int(cohort.collectives.values[row, label])]

    def _labels(self, part: Labelled) -> dict[int, int]:
        """The label of each node; found once."""
        found = self._known.get(id(part))
        if found is None:
            found = self._known[id(part)] = dict(_places(part))
        return found

    @cached_property
    def _known(self) -> dict[int, dict[int, int]]:
        return {}


def find_grouping(
    traces: TraceSet, membership: Membership, fabric: Fabric, disturbance: Disturbance
) -> Grouping | None:
    """The grouping of traces; None where every rank has to be run.

    That is where something is wrong with the traces, all ranks vary, or a rank has a choice between
    messages, which ASTRA-sim makes by the numbers of ranks. Raises FlintError FL602 to FL604 for
    files that are no traces.
    """
    if disturbance.jitter:
        return None
    codes, findings = GroupCodes(), Findings()
    parser = TraceParser(codes, None)
    times = _load(parser, traces)
    cohorts = [
        c
        for each in parser.classes
        if each.ranks
        for c in find_cohorts(each, codes, membership, findings)
    ]
    exchange = find_exchange(cohorts)
    problems = any(each.nodes.problems.counts for each in parser.classes)
    if findings or problems or not exchange.agrees or not _is_plain(cohorts, exchange):
        return None
    return _Parts(cohorts, exchange, membership, fabric, traces.world).find(times, disturbance)


def _load(parser: TraceParser, traces: TraceSet) -> dict[int, bytes]:
    """Read all ranks, names of one file once. What the computations of each take, as a digest."""
    known: dict[tuple[int, int], tuple[Reference, int]] = {}
    times = {}
    for rank, path in traces.paths.items():
        status = path.stat()
        file = status.st_dev, status.st_ino
        if file in known:
            reference, row = known[file]
            reference.trace_class.repeat(rank, row)
        else:
            reference, values = parser.compare(unpack(read_bytes(path), path.name), path.name)
            known[file] = reference, reference.trace_class.add(rank, values)
        times[rank] = reference.times
    return times


def _is_plain(cohorts: Sequence[Cohort], exchange: AllMessages) -> bool:
    """Whether dependencies leave no choice where there are messages, and no two are alike."""
    if not len(exchange.sends):
        return True
    for cohort in cohorts:
        order = cohort.nodes.slot_order
        if order.unordered is not None or order.held_up:
            return False
        for part in (cohort.sends, cohort.receives):
            said = np.column_stack((part.label, part.lines[:, (COMM_TAG, COMM_SIZE)]))
            if len(np.unique(said, axis=0)) < len(said):
                return False
    return True


class _Parts:
    """Divides ranks until all of a part are alike."""

    def __init__(
        self,
        cohorts: Sequence[Cohort],
        exchange: AllMessages,
        membership: Membership,
        fabric: Fabric,
        world: int,
    ) -> None:
        self.cohorts = cohorts
        self.membership = membership
        self.fabric = fabric
        self.world = world
        sends, receives = exchange.sends, exchange.receives
        self.edges = list(
            zip(
                sends.source.tolist(),
                sends.label.tolist(),
                receives.target.tolist(),
                receives.label.tolist(),
                strict=True,
            )
        )
        self.labels: dict[int, dict[int, int]] = {}  # group -> rank -> label
        for cohort in cohorts:
            for rank, row in zip(
                cohort.ranks.tolist(), cohort.collectives.values.tolist(), strict=True
            ):
                for label, group in enumerate(row):
                    self.labels.setdefault(group, {})[rank] = label
        self.hops: dict[tuple[int, int], int] = {}
        self.rings = {group: self._ring(group) for group in self.labels}

    def find(self, times: dict[int, bytes], disturbance: Disturbance) -> Grouping | None:
        """Divide until nothing is divided any more; at first by the `times` of ranks."""
        if any(len(self.labels[g]) != len(self.membership.members[g]) for g in self.labels):
            return None
        part = _number(
            (number, times[rank], *disturbance.factors(rank, 1))
            for number, rank in sorted(
                ((n, r) for n, c in enumerate(self.cohorts) for r in c.ranks.tolist()),
                key=lambda pair: pair[1],
            )
        )
        for _ in range(_MOST_ROUNDS):
            meetings = self._meetings(part)
            refined = self._refine(part, meetings)
            if max(refined) == max(part):
                return self._grouping(part, meetings)
            part = refined
        return None

    def _ring(self, group: int) -> tuple[Int64s, Int64s]:
        """The members as they stand in rings, a dimension each, and what each hop is."""
        members = np.sort(np.asarray(self.membership.members[group], dtype=np.int64))
        along = self.membership.along.get(group)
        if along is None and len(members) == self.world:
            along = (True,) * len(self.fabric.sizes)
        if along is not None:
            sizes = [s for s, inside in zip(self.fabric.sizes, along, strict=True) if inside]
            return members.reshape(sizes[::-1]), np.zeros(sizes[::-1], dtype=np.int64)
        hops = [self.fabric.hop(a, b) for a, b in zip(members, np.roll(members, -1), strict=True)]
        known = self.hops
        return members, np.array([known.setdefault(h, len(known)) for h in hops], dtype=np.int64)

    def _meetings(self, part: list[int]) -> dict[tuple[int, int], Hashable]:
        """For each group and member what the group is to it: equal for those who fare alike."""
        found: dict[tuple[int, int], Hashable] = {}
        colour = np.array(part, dtype=np.int64)
        for group, (members, hops) in self.rings.items():
            label = self.labels[group]
            flat = members.reshape(-1)
            labels = np.array([label[r] for r in flat.tolist()], dtype=np.int64)
            said = np.stack((colour[flat], labels, hops.reshape(-1)))
            if (said == said[:, :1]).all():
                same: Hashable = (members.shape, *said[:, 0].tolist())
                found.update(((group, r), same) for r in flat.tolist())
                continue
            said = said.reshape(3, *members.shape)
            axes = tuple(range(1, said.ndim))
            for index in np.ndindex(members.shape):
                turned = np.roll(said, [-i for i in index], axes)
                found[group, int(members[index])] = (members.shape, turned.tobytes())
        return found

    def _refine(self, part: list[int], meetings: dict[tuple[int, int], Hashable]) -> list[int]:
        said: list[list[Hashable]] = [[p] for p in part]
        for group, labels in sorted(self.labels.items()):
            for rank, label in labels.items():
                said[rank].append((0, label, meetings[group, rank]))
        for source, sent, target, received in self.edges:
            hop = self.fabric.hop(source, target)
            said[source].append((1, sent, part[target], received, hop))
            said[target].append((2, received, part[source], sent, hop))
        return _number((own[0], frozenset(own[1:])) for own in said)

    def _grouping(
        self, part: list[int], meetings: dict[tuple[int, int], Hashable]
    ) -> Grouping | None:
        """What the first rank of each part takes part in. None if a part meets itself twice."""
        firsts = [part.index(p) for p in range(max(part) + 1)]
        numbers: dict[Hashable, int] = {}
        of_group: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for group, labels in self.labels.items():
            who = {(part[r], label) for r, label in labels.items()}
            if len({p for p, _ in who}) < len(who):
                return None
            like = frozenset((part[r], meetings[group, r]) for r in labels)
            number = of_group[group] = numbers.setdefault(like, len(numbers))
            sizes[number] = len(who)
        keys: list[dict[int, int]] = [{} for _ in firsts]
        sent, received = {}, {}
        for source, label, target, other in self.edges:
            number = numbers.setdefault((part[source], label), len(numbers))
            sent[source, label] = received[target, other] = number
        for cohort in self.cohorts:
            for row, rank in enumerate(cohort.ranks.tolist()):
                if firsts[part[rank]] != rank:
                    continue
                own = keys[part[rank]]
                for node, label in _places(cohort.collectives):
                    own[node] = of_group[int(cohort.collectives.values[row, label])]
                own.update((n, sent[rank, label]) for n, label in _places(cohort.sends))
                own.update((n, received[rank, label]) for n, label in _places(cohort.receives))
        cohorts = {rank: c for c in self.cohorts for rank in c.ranks.tolist()}
        groups = [sorted(members) for members in self.membership.members]
        return Grouping(part, firsts, keys, sizes, cohorts, groups)


def _number(said: Iterable[Hashable]) -> list[int]:
    """A number for each, equal for equal ones, in order of first use."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(each, len(numbers)) for each in said]


def _places(part: Labelled) -> list[tuple[int, int]]:
    return list(zip(part.lines[:, AT].tolist(), part.label.tolist(), strict=True))
