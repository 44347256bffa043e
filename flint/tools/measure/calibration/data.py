"""The files that a calibration is given: which they are, and their rows together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flint.cluster.models import Chip
from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, gunzip, parse_json, read_bounded
from flint.io.documents import Millionths
from flint.ir.workload import Workload
from flint.tools.measure.fitting.traces import TraceRows, trace_rows
from flint.tools.measure.measurements import (
    aiconfigurator,
    nccl_json,
    nccl_tests,
    osu,
    tables,
    torch_benchmark,
)
from flint.tools.measure.measurements.rows import CollectiveTime, KernelTime, Measurements

# Which reader a file of measurements has, by its content.

#: Formats that there are, and how people know them.
FORMATS: Final = {
    nccl_tests.FORMAT: "output of nccl-tests or rccl-tests",
    nccl_json.FORMAT: "its JSON (-J FILE)",
    osu.FORMAT: "output of the OSU micro-benchmarks",
    tables.FORMAT: "CSV of kernels or collectives",
    aiconfigurator.FORMAT: "its tables, CSV or Parquet",
    torch_benchmark.FORMAT: "a printed Compare, or Measurements as JSON",
}
_HELP = (
    "what is read: nccl-tests, rccl-tests, OSU, CSV with documented columns, aiconfigurator, "
    "torch.utils.benchmark, profiles, and .flint files made from them (docs/calibrate.md)"
)
_TUNED = "BLOCK_SIZE_M"


def read_measurements(path: Path) -> Measurements:
    """What a file holds.

    Raises FlintError FL854 for a file that cannot be read or is of no known format, FL846 for a pickle,
    and what its reader raises (FL842 to FL850).
    """
    name = path.name
    data = read_bounded(path, FileKind.MEASUREMENTS, "FL854", _HELP)
    if data[:2] == b"\x1f\x8b":
        try:
            data = gunzip(data, FileKind.MEASUREMENTS.most_bytes)
        except Malformed as error:
            raise FlintError("FL854", f"cannot read {name}: {error}", help=_HELP) from error
    if data[:4] == b"PAR1":
        return aiconfigurator.read_parquet(data, name)
    _refuse_programs(data, name)
    return _of_text(_text(data, name), name)


def _refuse_programs(data: bytes, name: str) -> None:
    """Pickles run code when they are read."""
    if data[:1] == b"\x80" or data[:4] == b"PK\x03\x04":
        raise FlintError(
            "FL846",
            f"{name} is a pickle, which may run code, so it is not opened",
            help="print the Compare into a file, or write the times as CSV or JSON",
        )


def _text(data: bytes, name: str) -> str:
    if b"\0" in data[:65_536]:
        for mark, encoding in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
            if data.startswith(mark):  # PowerShell's redirection
                return data.decode(encoding, errors="replace")
        raise FlintError("FL854", f"{name} is a binary file of unknown format", help=_HELP)
    return data.decode("utf-8-sig", errors="replace")


def _of_text(text: str, name: str) -> Measurements:
    stripped = text.lstrip()
    if stripped[:1] in ("{", "[") and '"' in stripped[:2000]:
        return _of_json(text, name)
    if torch_benchmark.recognizes(text):
        return torch_benchmark.read(text, name)
    if osu.recognizes(text):
        return osu.read(text, name)
    plain = [c.strip() for c in text.partition("\n")[0].split(",")]
    if any(map(aiconfigurator.recognizes, (tables.columns_of(text), plain))):
        return aiconfigurator.read_csv(text, name)
    if tables.recognizes(text):
        return tables.read(text, name)
    if nccl_tests.recognizes(text):
        return nccl_tests.read(text, name)
    raise FlintError("FL854", f"{name} has an unknown format", help=_HELP)


def _of_json(text: str, name: str) -> Measurements:
    try:
        document: Any = parse_json(text.encode())
    except Malformed as error:
        raise FlintError("FL854", f"{name} is not JSON: {error}", help=_HELP) from error
    if nccl_json.recognizes(document):
        return nccl_json.read(document, name)
    if torch_benchmark.recognizes_json(document):
        return torch_benchmark.read_json(document, name)
    if _TUNED in text[:5000]:
        raise FlintError(
            "FL848",
            f"{name} is a table of tuned kernels, which has block sizes but no times",
            help="the benchmark that chose them printed the times; give those as CSV",
        )
    raise FlintError("FL854", f"{name} is JSON of unknown format", help=_HELP)


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
    counts = len(read.kernels), len(read.collectives)
    source = CalibrationFile(read.name, read.format, *counts, dict(read.left_out), read.notes)
    found.sources.append(source)


def _take_trace(name: str, rows: TraceRows, found: Data) -> None:
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
    share = rows.unknown_ns / total if total else 0.0
    counts, left_out = (
        (len(rows.kernels), len(rows.collectives)),
        dict(sorted(rows.left_out.items())),
    )
    found.sources.append(CalibrationFile(name, TRACE, *counts, left_out, unknown_share=share))
