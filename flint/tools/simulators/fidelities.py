"""One step by several fidelities side by side: analytic, compiled, simulated; and where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from typing_extensions import TypedDict

from flint.backends.chakra.reading.reader import Decoder, read_bytes, records, unpack
from flint.backends.chakra.schema import NodeType
from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.estimate import Estimate
from flint.backends.cost.simulate.exposure import IDLE
from flint.errors import FlintError, nearest
from flint.io.documents import as_object
from flint.ir.program import Collective, Kind
from flint.text import Column, format_bytes, format_duration, text_table

#: Version of the JSON form.
SCHEMA: Final = "flint.fidelities/1"
#: The fidelities by name: what each is.
FIDELITIES: Final[Mapping[str, str]] = {
    "analytic": "flint estimate of what a partitioner and Flint's passes made",
    "compiled": "flint estimate of what XLA's whole compiler made",
    "cycles": "flint estimate --timing compiler of what XLA's TPU compiler made",
    "simulated": "the traces, by ASTRA-sim's rules",
}


@dataclass(frozen=True, slots=True)
class FidelityMeasures:
    """What a fidelity says of the slowest device and its step."""

    step_time_ns: float  #: When the last rank ends its step, in ns.
    compute_ns: float | None  #: How long the device computes, in ns; null if that is not said.
    exposed_ns: float | None  #: The rest of the step, in ns; null if that is not said.
    kernels: int  #: Kernels that it executes.
    moved_bytes: int  #: Bytes that they read and write.
    collectives: int  #: Collectives in which it takes part.
    collective_bytes: int  #: Bytes of its inputs to them.
    messages: int  #: Messages that it sends.
    message_bytes: int  #: Bytes of them.
    memory_bytes: int | None = None
    """Most bytes of memory in use at once; null if that is not said."""


class FidelityDocument(TypedDict):
    """One of the fidelities."""

    fidelity: Literal["analytic", "compiled", "simulated"]  #: Which.
    by: str  #: Who says it, in words.
    reason: str  #: Why there is nothing; "" where there is.
    measures: FidelityMeasures | None  #: What it says; null where there is nothing.
    against_first: dict[str, float]
    """Relative differences from the first that says something, by name of the measure; 0.01 is 1 %."""


class FidelitiesDocument(TypedDict):
    """One step on a cluster by several fidelities."""

    schema: Literal["flint.fidelities/1"]  #: Kind and version of this document.
    name: str  #: Name of the program.
    cluster: str  #: Name of the cluster.
    fidelities: list[FidelityDocument]  #: In the order in which they were asked for.


@dataclass(frozen=True)
class Fidelity:
    """A column: who says it, and what; or why there is nothing."""

    name: str
    by: str
    measures: FidelityMeasures | None = None
    reason: str = ""


#: Makes a column. What a FlintError says keeps it from that is the reason in its place.
Source = Callable[[], Fidelity]


@dataclass(frozen=True)
class Fidelities:
    """A step on a cluster by several fidelities. Differences are against the first that is there."""

    name: str
    cluster: str
    columns: tuple[Fidelity, ...]

    @property
    def first(self) -> FidelityMeasures | None:
        """What the others are compared with."""
        return next((c.measures for c in self.columns if c.measures is not None), None)

    def to_json(self) -> dict[str, Any]:
        """Exact numbers, JSON-able."""
        document: FidelitiesDocument = {
            "schema": SCHEMA,
            "name": self.name,
            "cluster": self.cluster,
            "fidelities": [self._column(c) for c in self.columns],
        }
        return as_object(document)

    def _column(self, column: Fidelity) -> FidelityDocument:
        found = {
            "fidelity": column.name,
            "by": column.by,
            "reason": column.reason,
            "measures": column.measures,
            "against_first": self._against_first(column),
        }
        return cast("FidelityDocument", found)

    def _against_first(self, column: Fidelity) -> dict[str, float]:
        """Relative differences of what both say, and of which the first has some."""
        if self.first is None or column.measures is None:
            return {}
        first, here = asdict(self.first), asdict(column.measures)
        pairs = {key: (first[key], here[key]) for key in first}
        return {key: round(b / a - 1, 6) for key, (a, b) in pairs.items() if a and b is not None}

    def to_text(self) -> str:
        """For people."""
        rows = [self._row(*row) for row in _ROWS]
        columns = [Column(self.cluster), *(Column(c.name, right=True) for c in self.columns)]
        lines = [f"program  {self.name}", "", text_table(columns, rows), ""]
        lines += [
            f"{c.name}: {c.by}" if c.measures is not None else f"{c.name}: none, {c.reason}"
            for c in self.columns
        ]
        return "\n".join(lines)

    def _row(self, title: str, key: str, text: Callable[[float], str]) -> tuple[str, ...]:
        cells = [title]
        for column in self.columns:
            value = None if column.measures is None else getattr(column.measures, key)
            if value is None:
                cells.append("-")
                continue
            change = self._against_first(column).get(key)
            is_first = column.measures is self.first
            share = "" if is_first else f"  {'':>7}" if change is None else f"  {change:+7.1%}"
            cells.append(text(value) + share)
        return tuple(cells)


def _count(value: float) -> str:
    return f"{int(value):,}"


def _bytes(value: float) -> str:
    return format_bytes(int(value))


_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("step time", "step_time_ns", format_duration),
    ("computation", "compute_ns", format_duration),
    ("exposed communication, waits", "exposed_ns", format_duration),
    ("kernels", "kernels", _count),
    ("bytes that they move", "moved_bytes", _bytes),
    ("collectives", "collectives", _count),
    ("bytes of collectives", "collective_bytes", _bytes),
    ("messages", "messages", _count),
    ("bytes of messages", "message_bytes", _bytes),
    ("memory at the peak", "memory_bytes", _bytes),
)


def side_by_side(name: str, cluster: str, sources: Mapping[str, Source]) -> Fidelities:
    """Ask each source; what one cannot say, with the reason, keeps no other from being asked."""
    return Fidelities(name, cluster, tuple(_asked(n, source) for n, source in sources.items()))


def _asked(name: str, source: Source) -> Fidelity:
    try:
        return source()
    except FlintError as error:
        return Fidelity(name, FIDELITIES[name], reason=error.message)


def require_fidelity(name: str) -> None:
    """Raise FlintError FL718 unless there is a fidelity of this name."""
    if name not in FIDELITIES:
        raise FlintError(
            "FL718",
            f"no fidelity is called '{name}'{nearest(name, list(FIDELITIES))}",
            help=f"they are {', '.join(FIDELITIES)}; NAME=DIR takes it from another capture",
        )


def of_estimate(name: str, by: str, e: Estimate) -> Fidelity:
    """A column from an estimate: its slowest rank class."""
    number = max(range(len(e.classes)), key=lambda i: e.classes[i].end_ns)
    found = e.classes[number]
    program = e.timeline.classes[number].work.program
    table, rows = kernels_of(program)
    shares = [s for s in found.shares if not s.over and s.kind not in IDLE]
    permutes = program.collective == Collective.PERMUTE  # messages in traces
    collective = (program.kind == Kind.COLLECTIVE) & ~permutes
    message = (program.kind == Kind.SEND) | ((program.kind == Kind.COLLECTIVE) & permutes)
    measures = FidelityMeasures(
        step_time_ns=e.step_time_ns,
        compute_ns=found.compute_ns,
        exposed_ns=e.step_time_ns - found.compute_ns,
        kernels=sum(s.count for s in shares),
        moved_bytes=int((table.moved_bytes * program.trips[rows]).sum()),
        collectives=int(program.trips[collective].sum()),
        collective_bytes=int((program.comm_bytes * program.trips)[collective].sum()),
        messages=int(program.trips[message].sum()),
        message_bytes=int((program.comm_bytes * program.trips)[message].sum()),
        memory_bytes=found.memory.peak_bytes,
    )
    return Fidelity(name, by, measures)


def of_trace(path: Path, step_time_ns: int, compute_ns: int | None, by: str) -> Fidelity:
    """The column of a simulator: its times, and what the trace of the slowest rank holds."""
    sums = _sums(path)
    measures = FidelityMeasures(
        step_time_ns=step_time_ns,
        compute_ns=compute_ns,
        exposed_ns=None if compute_ns is None else step_time_ns - compute_ns,
        kernels=sums[NodeType.COMP][0],
        moved_bytes=sums[NodeType.COMP][1],
        collectives=sums[NodeType.COMM_COLL][0],
        collective_bytes=sums[NodeType.COMM_COLL][1],
        messages=sums[NodeType.COMM_SEND][0],
        message_bytes=sums[NodeType.COMM_SEND][1],
    )
    return Fidelity("simulated", by, measures)


def _sums(path: Path) -> Mapping[NodeType, tuple[int, int]]:
    """Nodes of each type in a trace, and their bytes: tensor_size or comm_size."""
    decoder, source = Decoder(), str(path)
    data = unpack(read_bytes(path), source)
    spans = records(data, source)
    next(spans)
    found = dict.fromkeys(NodeType, (0, 0))
    for start, stop in spans:
        node = decoder.node(data[start:stop], source, start)
        name = "tensor_size" if node.type is NodeType.COMP else "comm_size"
        size = node.attributes[name][1] if name in node.attributes else 0
        count, total = found[node.type]
        found[node.type] = count + 1, total + int(size)
    return found
