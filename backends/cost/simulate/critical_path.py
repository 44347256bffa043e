"""What a step's time is made of: the chain of work that ends last, back to the start of the step.

Each node began when the last of what it waited for ended: a dependency, the node before it on its
stream, a message's transfer, the last rank class to join a collective, or the kernel that the
overlap policy ties it to. Followed backwards from the node that ends last, these make a path without
gaps: to shorten the step, something on it has to be shortened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flint.backends.cost.simulate.exposure import labels_of
from flint.backends.cost.simulate.timeline import (
    ClassTimeline,
    Policy,
    Timeline,
    limits,
    previous_on,
    turns,
)
from flint.ir.program import Kind


@dataclass(frozen=True, slots=True)
class Segment:
    """Work of one kind and source on the critical path."""

    kind: str  #: Of a kernel or collective, or message, or host for what was launched late.
    over: str  #: Mesh axes of communication; "" for kernels.
    scope: str  #: Its scope in the source.
    location: str  #: File and line of the user's source.
    count: int  #: Pieces on the path.
    total_ns: float  #: Its time on the path, in ns.
    share: float  #: The same as a share of the step, 0 to 1.


@dataclass(frozen=True, slots=True)
class PathPiece:
    """One node on the path: it takes `end_ns - start_ns` of the step.

    With `is_launch` not the node does, but its host, which launched it late.
    """

    rank_class: int
    node: int
    start_ns: float
    end_ns: float
    is_launch: bool = False


def critical_path(timeline: Timeline, policy: Policy) -> tuple[Segment, ...]:
    """The path's segments, longest first. Their times add up to the step time."""
    labels: dict[int, list[tuple[str, str, str]]] = {}
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for piece in path(timeline, policy):
        work = timeline.classes[piece.rank_class].work
        row, program = int(work.nodes.row[piece.node]), work.program
        if piece.rank_class not in labels:
            labels[piece.rank_class] = labels_of(program)
        kind, over, _ = ("host", "", "") if piece.is_launch else labels[piece.rank_class][row]
        scope, location = (
            program.strings[program.scope[row]],
            program.strings[program.location[row]],
        )
        entry = found.setdefault((kind, over, scope, location), [0, 0.0])
        entry[0] += 1
        entry[1] += piece.end_ns - piece.start_ns
    total = timeline.total_ns
    segments = (
        Segment(*key, int(count), round(ns, 3), round(ns / total, 6))
        for key, (count, ns) in found.items()
    )
    return tuple(sorted(segments, key=lambda s: (-s.total_ns, s.kind, s.over, s.scope, s.location)))


def path(timeline: Timeline, policy: Policy) -> Iterator[PathPiece]:
    """The nodes of the path that take time, last first, each piece ending where the next starts."""
    if not timeline.total_ns:
        return
    tracks = _Tracks(timeline, policy)
    number = int(np.argmax([c.total_ns for c in timeline.classes]))
    node = int(np.argmax(timeline.classes[number].end_ns))
    moment = timeline.total_ns
    while node >= 0:
        track = tracks[number]
        sender = track.sender(node)
        if sender is not None:
            number, node = sender, tracks[sender].sends[track.message(node)]
            continue
        start = track.start[node]
        if start < moment:
            yield PathPiece(number, node, start, moment)
            moment = start
        number, node = _meeting(tracks, number, node)
        waited, until = tracks[number].before(node)
        if until < moment and tracks[number].work.launch_ns:
            yield PathPiece(number, node, until, moment, is_launch=True)
        node, moment = waited, until


def _meeting(tracks: _Tracks, number: int, node: int) -> tuple[int, int]:
    """The class that joined the collective at `node` last, and its node; the node itself if alone."""
    work = tracks[number].work
    together = work.together.get(tracks[number].rows[node])
    if together is None:
        return number, node
    key = tracks[number].collective(node)
    members = [(c, tracks[c].collectives[key]) for c in (number, *together)]
    return max(members, key=lambda member: tracks[member[0]].ready(member[1]))


class _Tracks(dict[int, "_Traced"]):
    """Rank classes by index, looked at when the path reaches them."""

    def __init__(self, timeline: Timeline, policy: Policy) -> None:
        super().__init__()
        self.timeline, self.policy = timeline, policy

    def __missing__(self, number: int) -> _Traced:
        found = self[number] = _Traced(self.timeline.classes[number], self.policy)
        return found


class _Traced:
    """One rank class, and for each node what it waited for."""

    def __init__(self, timeline: ClassTimeline, policy: Policy) -> None:
        self.work = timeline.work
        program, nodes = self.work.program, self.work.nodes
        self.start, self.end = timeline.start_ns.tolist(), timeline.end_ns.tolist()
        self.rows = nodes.row.tolist()
        self.first, self.deps = nodes.dep_start.tolist(), nodes.deps.tolist()
        by_stream = self.work.stream[nodes.row]
        self.limits = limits(policy, self.work)
        self.previous = previous_on(by_stream)
        self.turns = turns(program, nodes)
        kinds = program.kind[nodes.row]
        self.sends = {self.message(n): n for n in np.flatnonzero(kinds == Kind.SEND).tolist()}
        shared = np.isin(nodes.row, list(self.work.together))
        self.collectives = {self.collective(n): n for n in np.flatnonzero(shared).tolist()}

    def message(self, node: int) -> tuple[int, int]:
        """What names the message that `node` sends or receives."""
        return int(self.work.program.channel[self.rows[node]]), self.turns[node]

    def collective(self, node: int) -> tuple[object, int]:
        return self.work.program.met_over(self.rows[node]), self.turns[node]

    def sender(self, node: int) -> int | None:
        """The rank class whose message a receive waited for; None if it was there before."""
        source = self.work.peers.get(self.rows[node])
        return source if self.end[node] > self.start[node] else None

    def ready(self, node: int) -> float:
        """When all that `node` waited for in its own class had happened."""
        return self.before(node)[1]

    def before(self, node: int) -> tuple[int, float]:
        """What `node` waited for last and when that happened; (-1, 0) at the start of the step."""
        waited = self.deps[self.first[node] : self.first[node + 1]]
        if self.previous[node] >= 0:
            waited = [*waited, self.previous[node]]
        last = max(waited, key=lambda n: (self.end[n], n), default=-1)
        when = self.end[last] if last >= 0 else 0.0
        limit = self.limits[node]
        if limit >= 0 and self.start[limit] > when:
            return limit, self.start[limit]
        return last, when
