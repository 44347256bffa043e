"""The files that a calibration is given: which they are, and their rows together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flint.cluster.models import Chip
from flint.errors import FlintError
from flint.io.documents import Millionths
from flint.ir.workload import Workload
from flint.tools.measure.fitting.traces import TraceRows, trace_rows
from flint.tools.measure.measurements.formats import read_measurements
from flint.tools.measure.measurements.rows import CollectiveTime, KernelTime, Measurements

#: What a measured workload is called among formats.
TRACE = "measured trace"


@dataclass(frozen=True)
class CalibrationFile:
    """One file that was read."""

    name: str  #: Its name, without folders.
    format: str  #: What it was read as.
    kernels: int  #: Rows of kernels that are used.
    collectives: int  #: Rows of collectives that are used.
    left_out: dict[str, int]  #: Rows that are not, by reason.
    notes: tuple[str, ...] = ()  #: How it was understood.
    unknown_share: Millionths = 0.0
    """Share of a trace's kernel time of which only the time is known, 0 to 1."""


@dataclass
class Data:
    """All rows, and the files that they are from."""

    sources: list[CalibrationFile] = field(default_factory=list)
    kernels: list[KernelTime] = field(default_factory=list)
    collectives: list[CollectiveTime] = field(default_factory=list)
    launches_ns: list[float] = field(default_factory=list)

    @property
    def names(self) -> str:
        """The files' names, for sources of constants: no folders, sorted."""
        return ", ".join(sorted({s.name for s in self.sources}))


def read_data(paths: Sequence[Path], chip: Chip) -> Data:
    """The rows of all files.

    Raises FlintError FL842 to FL855 for measurements that cannot be read, and what reading profiles and
    .flint files raises.
    """
    found = Data()
    for path in paths:
        workload = _workload(path)
        if workload is None:
            _take(read_measurements(path), found)
        else:
            _take_trace(path.name or path.resolve().name, trace_rows(workload, chip), found)
    return found


def _workload(path: Path) -> Workload | None:
    """The measured workload of a .flint file or a profile; None for other files."""
    if path.suffix == ".flint" or path.is_dir():
        from flint.cli.inputs import load_workload

        workload = load_workload(path)
        if workload.measured_by is None:
            raise FlintError(
                "FL848",
                f"{path.name} has no measured times: it was captured, not recorded",
                help="give a workload that flint import made from a profile",
            )
        return workload
    return _imported(path)


def _imported(path: Path) -> Workload | None:
    from flint.tools.measure.profiles.build import workload_of
    from flint.tools.measure.profiles.formats import holds_profile, read_profiles

    return workload_of(read_profiles(path)) if holds_profile(path) else None


def _take(read: Measurements, found: Data) -> None:
    found.kernels += read.kernels
    found.collectives += read.collectives
    found.sources.append(
        CalibrationFile(
            read.name,
            read.format,
            len(read.kernels),
            len(read.collectives),
            dict(read.left_out),
            read.notes,
        )
    )


def _take_trace(name: str, rows: TraceRows, found: Data) -> None:
    left_out: Counter[str] = rows.left_out
    if not rows.kernels and not rows.collectives:
        raise FlintError(
            "FL848",
            f"{name} has no kernel with known sizes",
            help="record with shapes: profile(record_shapes=True)",
        )
    found.kernels += rows.kernels
    found.collectives += rows.collectives
    found.launches_ns += rows.launches_ns
    total = rows.known_ns + rows.unknown_ns
    found.sources.append(
        CalibrationFile(
            name,
            TRACE,
            len(rows.kernels),
            len(rows.collectives),
            dict(sorted(left_out.items())),
            unknown_share=rows.unknown_ns / total if total else 0.0,
        )
    )
