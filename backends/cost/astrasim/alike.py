"""A run in which one rank stands for all, where all do the same with peers that are as far away.

Traces that differ in nothing but groups and peers are one cohort (`checking.cohorts`). If their
collectives and messages also take equally long, all ranks are in the same state at all times: they
begin a collective together, and what arrives at a rank was sent by one that did what it did itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from flint.backends.chakra.checking.cohorts import Cohort, Labelled, find_cohorts
from flint.backends.chakra.checking.findings import Findings
from flint.backends.chakra.reading.kinds import GroupCodes
from flint.backends.chakra.reading.parser import TraceParser
from flint.backends.chakra.reading.reader import read_bytes, unpack
from flint.backends.chakra.reading.trace_class import AT
from flint.backends.chakra.reading.trace_files import Membership, TraceSet
from flint.backends.chakra.schema import CommType
from flint.backends.cost.astrasim.ring import Collectives, Fabric
from flint.backends.cost.astrasim.step import SimulatedStep, Spent
from flint.backends.cost.astrasim.traces import Meeting, MessageEnd, RankTrace, TraceReader


@dataclass(frozen=True, eq=False)
class Alike:
    """The rank that stands for all, and how long what it communicates takes.

    In `trace` it meets, sends and receives alone: the group of a `Meeting` is a label of the cohort,
    the tag of a `MessageEnd` numbers the messages whose two ends are one.
    """

    trace: RankTrace
    takes_ns: dict[tuple[CommType | None, int, int], int]
    cohort: Cohort
    members: Sequence[Sequence[int]]

    def ends(self, work: Meeting, begins: Sequence[int]) -> list[int]:
        """When a collective ends that the rank began."""
        return [at + self.takes_ns[work.kind, work.group, work.size_bytes] for at in begins]

    def message_ns(self, work: MessageEnd) -> int:
        """Nanoseconds of a message."""
        return self.takes_ns[None, work.tag, work.size_bytes]

    def of_all(self, step: SimulatedStep) -> SimulatedStep:
        """The step of all ranks, from that of the one: nobody waits for another."""
        world = len(self.cohort.ranks)
        return replace(
            step,
            end_ns=step.end_ns * world,
            compute_ns=step.compute_ns * world,
            spent=tuple(tuple(self._spent(rank)) for rank in range(world)),
            kernels=step.kernels * world,
        )

    def _spent(self, rank: int) -> Iterator[Spent]:
        groups, targets = self.cohort.collectives.values, self.cohort.sends.values
        for (kind, label), (count, busy_ns) in self._sums.items():
            if kind is None:
                yield Spent(kind, (rank, int(targets[rank, label])), count, busy_ns, 0)
            else:
                yield Spent(kind, self.members[int(groups[rank, label])], count, busy_ns, 0)

    @cached_property
    def _sums(self) -> dict[tuple[CommType | None, int], tuple[int, int]]:
        """How many collectives of a kind on a label, or messages to a target, and their time."""
        found: dict[tuple[CommType | None, int], tuple[int, int]] = {}
        for part in (self.cohort.collectives, self.cohort.sends):
            for line, label in zip(part.lines.tolist(), part.label.tolist(), strict=True):
                work = self.trace.work[line[AT]]
                assert not isinstance(work, int), "it communicates"
                kind = work.kind if isinstance(work, Meeting) else None
                number = work.group if isinstance(work, Meeting) else work.tag
                count, busy_ns = found.get((kind, label), (0, 0))
                takes_ns = self.takes_ns[kind, number, work.size_bytes]
                found[kind, label] = count + 1, busy_ns + takes_ns
        return found


def find_alike(
    reader: TraceReader,
    traces: TraceSet,
    first: RankTrace,
    fabric: Fabric,
    collectives: Collectives,
) -> Alike | None:
    """The one that stands for all; None where ranks are not alike. `first` is the trace of rank 0.

    Raises what `reader` raises.
    """
    membership = Membership(fabric.world, traces.groups, fabric.sizes)
    cohort = _only_cohort(reader, traces, first, membership)
    if cohort is None:
        return None
    alike = Alike(replace(first, work=list(first.work)), {}, cohort, _sorted(membership))
    met = _meet_alone(alike, collectives)
    return alike if met and _send_alone(alike, fabric) else None


def _sorted(membership: Membership) -> list[list[int]]:
    return [sorted(group) for group in membership.members]


def _meet_alone(alike: Alike, collectives: Collectives) -> bool:
    """Let the rank be the only member; False if a collective of some group takes longer."""
    part, work = alike.cohort.collectives, alike.trace.work
    for (position, *_), label in zip(part.lines.tolist(), part.label.tolist(), strict=True):
        meeting = work[position]
        assert isinstance(meeting, Meeting)
        key = meeting.kind, label, meeting.size_bytes
        if key not in alike.takes_ns:
            groups = np.unique(part.values[:, label]).tolist()
            times = {t for g in groups for t in _ends(collectives, meeting, alike.members[g])}
            if len(times) > 1:
                return False
            alike.takes_ns[key] = times.pop()
        work[position] = Meeting(meeting.kind, meeting.size_bytes, (0,), None, label)
    return True


def _ends(collectives: Collectives, like: Meeting, members: Sequence[int]) -> list[int]:
    """When the members end a collective that they begin at 0."""
    begins = [0] * len(members)
    return collectives.ends(like.kind, like.size_bytes, members, like.involved, begins)


def _send_alone(alike: Alike, fabric: Fabric) -> bool:
    """Let the rank send to itself; False if messages differ in what they take or who gets them."""
    cohort = alike.cohort
    sends, receives = _ends_of(alike, cohort.sends), _ends_of(alike, cohort.receives)
    if sends.keys() != receives.keys():
        return False
    for number, ((tag, size_bytes), (sent, senders)) in enumerate(sends.items()):
        received, receivers = receives[tag, size_bytes]
        if len(sent) > 1 or len(received) > 1:
            return False  # several messages that only their ends tell apart
        targets = cohort.sends.values[:, sent.pop()]
        sources = cohort.receives.values[:, received.pop()]
        ranks = np.arange(len(targets))
        if (sources[targets] != ranks).any():
            return False
        ends = zip(ranks.tolist(), targets.tolist(), strict=True)
        times = {fabric.message_ns(source, target, size_bytes) for source, target in ends}
        if len(times) > 1:
            return False
        alike.takes_ns[None, number, size_bytes] = times.pop()
        for position in (*senders, *receivers):
            alike.trace.work[position] = MessageEnd(0, 0, number, size_bytes)
    return True


def _ends_of(alike: Alike, part: Labelled) -> dict[tuple[int, int], tuple[set[int], list[int]]]:
    """By tag and size of messages: the labels of their other ends, and the nodes."""
    found: dict[tuple[int, int], tuple[set[int], list[int]]] = {}
    for (position, *_), label in zip(part.lines.tolist(), part.label.tolist(), strict=True):
        end = alike.trace.work[position]
        assert isinstance(end, MessageEnd)
        labels, nodes = found.setdefault((end.tag, end.size_bytes), (set(), []))
        labels.add(label)
        nodes.append(position)
    return found


def _only_cohort(
    reader: TraceReader, traces: TraceSet, first: RankTrace, membership: Membership
) -> Cohort | None:
    """The cohort of all ranks, if their files are equal but for groups and peers.

    Names of groups that are longer or shorter make other files: of each length one is read whole.
    """
    codes, findings = GroupCodes(), Findings()
    parser = TraceParser(codes, has_roofline=None)
    for rank, path in traces.paths.items():
        data = unpack(read_bytes(path), path.name)
        found = parser.find(data)
        if found is None:
            found = parser.load(data, path.name)
            if len(parser.classes) > 1 or not _takes_as_long(reader.read(rank, path), first):
                return None
        found[0].add(rank, found[1])
    cohorts = find_cohorts(parser.classes[0], codes, membership, findings)
    lines = sum(len(part.lines) for part in cohorts[0].parts)
    is_sound = lines == len(parser.classes[0].nodes.comm) and not findings.counts
    return cohorts[0] if is_sound and len(cohorts) == 1 else None


def _takes_as_long(one: RankTrace, other: RankTrace) -> bool:
    """Whether computations do; that nodes and communication are equal is known."""
    return one.of_host == other.of_host and all(
        _own(a) == _own(b) for a, b in zip(one.work, other.work, strict=True)
    )


def _own(work: int | Meeting | MessageEnd) -> object:
    """What ranks that are alike have in common of a node."""
    return work.involved if isinstance(work, Meeting) else work if isinstance(work, int) else None
