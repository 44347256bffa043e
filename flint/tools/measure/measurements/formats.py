"""Which reader a file of measurements has, by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, gunzip, parse_json, read_bounded
from flint.tools.measure.measurements import (
    aiconfigurator,
    nccl_json,
    nccl_tests,
    osu,
    tables,
    torch_benchmark,
)
from flint.tools.measure.measurements.rows import Measurements

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
    columns = tables.columns_of(text)
    if aiconfigurator.recognizes(columns) or aiconfigurator.recognizes(_plain_columns(text)):
        return aiconfigurator.read_csv(text, name)
    if tables.recognizes(text):
        return tables.read(text, name)
    if nccl_tests.recognizes(text):
        return nccl_tests.read(text, name)
    raise FlintError("FL854", f"{name} has an unknown format", help=_HELP)


def _plain_columns(text: str) -> list[str]:
    return [c.strip() for c in text.partition("\n")[0].split(",")]


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
