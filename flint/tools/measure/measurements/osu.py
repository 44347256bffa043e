"""Output of the OSU micro-benchmarks: latency of messages, their bandwidth, and collectives.

A table is a title (`# OSU MPI-CUDA Allreduce Latency Test v7.3`), a header and rows of a size and
microseconds, or MB (1e6 bytes) per second. `osu_latency` is the time of one message, one way.
`osu_bw` sends many at once: the time of one is its bytes by the bandwidth, without its latency, so
that rows below 1 MiB are omitted. How many ranks a collective had is in no line: the log has to hold
the command (`mpirun -np 16`), or the file's name `16ranks`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from flint.errors import FlintError
from flint.ir.op_class import Collective
from flint.tools.measure.measurements.nccl_tests import launched
from flint.tools.measure.measurements.rows import CollectedRows, CollectiveTime, Measurements

FORMAT = "OSU micro-benchmarks"
_TITLE = re.compile(r"#\s*OSU\s+\S+\s+(.*?)(?:\s+v?[\d.]+)?\s*$")
_RANKS = re.compile(r"(\d{1,7})[ _-]?ranks", re.IGNORECASE)
_COLLECTIVES = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "reduce scatter": Collective.REDUCE_SCATTER,
    "all-to-all": Collective.ALL_TO_ALL,
    "alltoall": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
    "bcast": Collective.BROADCAST,
}
_ONE_NODE = "no command says on how many nodes the two ranks of messages were (srun -N 2 -n 2): one is assumed"
_MESSAGES = ("latency", "multi-threaded latency", "multi latency")
#: Bytes from which a bandwidth says the time of a message.
_STREAMED = 1 << 20


@dataclass
class _Table:
    title: str
    ranks: int
    nodes: int


def recognizes(text: str) -> bool:
    """Whether a text has the title of one of these benchmarks."""
    return re.search(r"^\s*#\s*OSU\s+(?:MPI|NCCL|RCCL|Open)", text, re.MULTILINE) is not None


def read(text: str, name: str) -> Measurements:
    """All tables of a log. Raises FlintError FL842 for collectives of no one knows how many ranks."""
    found = CollectedRows(name, FORMAT)
    table, (ranks, nodes) = _Table("", 0, 0), (_named(name), 0)
    for line in text.splitlines():
        line = line[:500]
        if title := _TITLE.match(line.strip()):
            table = _Table(title[1].lower(), ranks, nodes)
        elif line.lstrip().startswith("#"):
            continue
        elif row := re.match(r"\s*(\d+)\s+(\S+)", line):
            _take(table, int(row[1]), row[2], found)
        else:
            ranks, nodes = launched(line) or (_named(line) or ranks, nodes)
    return found.done()


def _named(text: str) -> int:
    found = _RANKS.search(text)
    return int(found[1]) if found else 0


def _take(table: _Table, size: int, value: str, found: CollectedRows) -> None:
    try:
        number = float(value)
    except ValueError:
        found.leave_out("without a number for the time")
        return
    if "bandwidth" in table.title:
        _take_bandwidth(table, size, number, found)
    elif "latency" not in table.title:
        found.leave_out("of a benchmark that is not known")
    elif (collective := _collective_of(table.title)) is not None:
        if table.ranks < 2:
            raise FlintError(
                "FL842",
                f"{found.name}: it does not say how many ranks ran '{table.title}'",
                help="keep the command (mpirun -np 16 ...), or name the file osu_16ranks.txt",
            )
        # The size of an all-to-all goes to each peer, that of others is the input of a rank.
        size *= table.ranks if collective is Collective.ALL_TO_ALL else 1
        found.add(CollectiveTime(collective, size, table.ranks, table.nodes, "i8", number * 1e3))
    elif table.title.replace(" test", "") in _MESSAGES:
        _take_message(table, size, number * 1e3, found)
    else:
        found.leave_out("of a benchmark that is not known")


def _take_bandwidth(table: _Table, size: int, number: float, found: CollectedRows) -> None:
    if "bi-directional" in table.title or "multiple" in table.title:
        found.leave_out("of bandwidths of several messages both ways")
    elif size < _STREAMED:
        found.leave_out("of bandwidths of many small messages at once")
    elif number > 0:
        _take_message(table, size, size / number * 1e3, found)


def _take_message(table: _Table, size: int, time_ns: float, found: CollectedRows) -> None:
    found.add(CollectiveTime(Collective.NONE, size, 2, min(table.nodes, 2), "i8", time_ns))
    if not table.nodes and _ONE_NODE not in found.notes:
        found.notes.append(_ONE_NODE)


def _collective_of(title: str) -> Collective | None:
    if "personalized exchange" in title:
        return Collective.ALL_TO_ALL
    return next((c for word, c in _COLLECTIVES.items() if word in title), None)
