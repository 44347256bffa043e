"""To what every nanosecond of a device's step belongs: compute, wire, waiting for others, launch, unknown.

What runs counts before what waits: a moment belongs to

1. `compute` while a kernel or copy runs,
2. `wire` while communication moves bytes,
3. `waiting` while communication waits for other ranks: inside its kernel, or before one that all
   ranks of a group begin together,
4. `launch` while the device has nothing to do and the host, which is busy, has not launched more, and
   in the short pauses in which a device begins a kernel that is there already,
5. `unknown` otherwise: the graph says nothing that the device would wait for. So are longer pauses of
   a stream.

Of communication whose group's ranks were all recorded, the timeline says who waits for whom. Where one
rank was recorded alone, the wire's part of a kernel is the model's time on the cluster, at most all of
it, at its end; what is before that is waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.replay.changes import communicates, on_device
from flint.backends.cost.simulate.timeline import ClassTimeline, previous_on
from flint.io.documents import Thousandths
from flint.ir.arrays import Float64s
from flint.ir.op_class import OpClass
from flint.ir.program import Int64s, Kind

#: The stream of what the host does (see docs/decisions/0048-measured-programs.md).
_HOST_STREAM = "host"
#: Between two kernels that are launched already: H100 takes 1 to 3 us, MI300X 3 to 4 (the profiles of
#: benchmarks/data/kineto).
_LONGEST_PAUSE_NS = 5_000.0


@dataclass(frozen=True, slots=True)
class Attribution:
    """To what the nanoseconds of a step belong; they add up to it."""

    compute_ns: Thousandths  #: Kernels and copies run.
    wire_ns: Thousandths  #: Communication moves bytes while nothing is computed.
    waiting_ns: Thousandths  #: Communication waits for other ranks while nothing is computed.
    launch_ns: Thousandths  #: The device has nothing to do: the host has not launched more.
    unknown_ns: Thousandths  #: Nothing runs, for no reason that the graph knows.

    @property
    def span_ns(self) -> float:
        """All of them."""
        busy = self.compute_ns + self.wire_ns
        return busy + self.waiting_ns + self.launch_ns + self.unknown_ns


def attribution(timeline: ClassTimeline, wire_ns: Float64s) -> Attribution:
    """What the step of a rank class belongs to. `wire_ns` goes by row, of communication."""
    total = timeline.total_ns
    pieces = _pieces(timeline, wire_ns)
    edges = np.unique(np.concatenate([[0.0, total], *(p.ravel() for p in pieces)]))
    edges = edges[(edges >= 0) & (edges <= total)]
    lengths = np.diff(edges)
    left = np.ones(len(lengths), dtype=np.bool_)
    found = []
    for piece in pieces:
        mine = _covered(piece, edges) & left
        found.append(float(lengths[mine].sum()))
        left &= ~mine
    compute, wire, waiting, launch = found
    return Attribution(compute, wire, waiting, launch, float(lengths[left].sum()))


def _pieces(timeline: ClassTimeline, wire_ns: Float64s) -> list[Float64s]:
    """Starts and ends (n, 2) of each kind of time, in the order in which they count."""
    work, start, end = timeline.work, timeline.start_ns, timeline.end_ns
    program, rows = work.program, work.nodes.row
    computes = on_device(program)[rows]
    host = (program.op == OpClass.HOST)[rows] & ~_long_pauses(timeline)
    sends = np.flatnonzero(communicates(program)[rows])
    split = end[sends] - np.minimum(_wire_of(timeline, sends, wire_ns), end[sends] - start[sends])
    ready = _ready(timeline, sends)
    return [
        np.stack((start[computes], end[computes]), axis=1),
        np.stack((split, end[sends]), axis=1),
        np.stack((np.minimum(ready, split), split), axis=1),
        np.stack((start[host], end[host]), axis=1),
    ]


def _long_pauses(timeline: ClassTimeline) -> NDArray[np.bool_]:
    """Nodes that are pauses of a stream of the device, too long for what the device needs."""
    work, program = timeline.work, timeline.work.program
    streams = [n for n, name in enumerate(program.streams) if name == _HOST_STREAM]
    paused = (program.op == OpClass.HOST) & ~np.isin(program.stream, streams)
    lasts = timeline.end_ns - timeline.start_ns
    return np.asarray(paused[work.nodes.row] & (lasts > _LONGEST_PAUSE_NS))


def _wire_of(timeline: ClassTimeline, nodes: Int64s, wire_ns: Float64s) -> Float64s:
    """How long the bytes of each node are on the wire, at its end."""
    work = timeline.work
    rows = work.nodes.row[nodes]
    others = np.isin(rows, [*work.together])
    received = work.program.kind[rows] == Kind.RECV
    alone = ~others & ~(received & np.isin(rows, [*work.peers]))
    ends = timeline.end_ns[nodes] - timeline.start_ns[nodes]
    modelled = np.where(wire_ns[rows] > 0, wire_ns[rows], np.inf)
    found: Float64s = np.where(alone, modelled, np.where(received, work.duration_ns[rows], ends))
    return found


def _ready(timeline: ClassTimeline, nodes: Int64s) -> Float64s:
    """When each node could have begun as far as its own rank goes."""
    work, end = timeline.work, timeline.end_ns
    previous = previous_on(work.stream[work.nodes.row])
    found = timeline.start_ns[nodes].copy()
    together = np.isin(work.nodes.row[nodes], [*work.together])
    for at in np.flatnonzero(together).tolist():
        node = int(nodes[at])
        waits = [*work.nodes.dependencies(node).tolist(), previous[node]]
        found[at] = max((float(end[w]) for w in waits if w >= 0), default=0.0)
    return found


def _covered(pieces: Float64s, edges: Float64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each time between two edges, whether one of the pieces covers it."""
    starts = np.searchsorted(edges, pieces[:, 0])
    ends = np.searchsorted(edges, pieces[:, 1])
    depth = np.zeros(len(edges), dtype=np.int64)
    np.add.at(depth, starts, 1)
    np.add.at(depth, ends, -1)
    return np.cumsum(depth)[:-1] > 0
