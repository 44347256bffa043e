"""Times of kernels that were measured in exactly their shape, beside a cluster file.

A file names a CSV of them, `[chip] measured_kernels = "ours.kernels.csv"`, by a path from its own
folder that does not leave it. A kernel is found by its kind, type, dimensions, mask and whether it
finds the place of each element; where dimensions do not say all (element-wise kernels have none, and
queries may share their keys), by its bytes too.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, read_bounded

COLUMNS = (
    *("kind", "dtype", "batch", "m", "n", "k", "causal"),
    *("read_bytes", "written_bytes", "time_ns"),
)
#: A column more, for files with kernels that find the place of each element.
INDEXED = "indexed"
#: Shapes of one file.
MOST_SHAPES = 100_000


class Key(NamedTuple):
    """What a kernel is found by; bytes are 0 where they do not matter."""

    kind: str
    dtype: str
    batch: int
    m: int
    n: int
    k: int
    causal: bool
    read_bytes: int
    written_bytes: int
    indexed: bool = False


@dataclass(frozen=True, eq=False)
class KernelTable:
    """Times in ns by key, and the file's name."""

    name: str
    times: dict[Key, float] = field(default_factory=dict)
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({len(self.times):,} shapes)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelTable) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def as_csv(times: Iterable[tuple[Key, float]]) -> str:
    """A file of times, sorted: the same for the same times."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    found = sorted(times)
    more = any(key.indexed for key, _ in found)
    writer.writerow([*COLUMNS, INDEXED] if more else COLUMNS)
    for key, time in found:
        cells = [*key[:6], int(key.causal), *key[7:9], f"{time:.6g}"]
        writer.writerow([*cells, int(key.indexed)] if more else cells)
    return out.getvalue()


def read_table(name: object, folder: Path, place: str) -> KernelTable:
    """The table that a cluster file in `folder` names.

    Raises FlintError FL852 for a name that is not a path inside the folder, and for a file that cannot be
    read or is no such table.
    """
    if isinstance(name, KernelTable):
        return name
    path = folder / _inside(name, place)
    data = read_bounded(path, FileKind.KERNEL_TIMES, "FL852", _HELP)
    try:
        times = dict(_rows(data.decode("utf-8", "replace")))
    except Malformed as error:
        raise _broken(path.name, str(error), place) from error
    return KernelTable(str(name), times, hashlib.sha256(data).hexdigest())


#: Numbers as `as_csv` writes them.
_WHOLE = re.compile("[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9.]{1,40}(?:e[-+]?[0-9]{1,3})?")
_HELP = "flint calibrate --residuals writes such a file beside the cluster file that names it"


def _inside(name: object, place: str) -> PurePosixPath:
    path = PurePosixPath(name) if isinstance(name, str) else PurePosixPath("/")
    bad = path.is_absolute() or ".." in path.parts or not path.name or "\\" in str(name)
    if bad or ":" in str(name) or "\0" in str(name):
        raise FlintError(
            "FL852",
            "key 'chip.measured_kernels' should be the name of a file beside this one",
            place=place,
            help=_HELP,
        )
    return path


def _rows(text: str) -> Iterable[tuple[Key, float]]:
    reader = _lines(text)
    columns = tuple(next(reader, ()))
    if columns not in (COLUMNS, (*COLUMNS, INDEXED)):
        raise Malformed(f"its first line is not {','.join(COLUMNS)}")
    for at, row in enumerate(reader, 2):
        if at > MOST_SHAPES + 1:
            raise Malformed(f"it has more than {MOST_SHAPES:,} shapes")
        if len(row) != len(columns):
            raise Malformed(f"line {at} has {len(row)} cells")
        numbers = [int(cell) for cell in (*row[2:9], *row[10:]) if _WHOLE.fullmatch(cell)]
        time = float(row[9]) if _DECIMAL.fullmatch(row[9]) else math.nan
        if not 0 < time < 1e15 or len(numbers) < len(columns) - 3:
            raise Malformed(f"line {at} has an impossible number")
        batch, m, n, k, causal, read, written, *indexed = numbers
        said = bool(indexed and indexed[0])
        yield Key(row[0], row[1], batch, m, n, k, bool(causal), read, written, said), time


def _lines(text: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text))
    except csv.Error as error:
        raise Malformed(str(error)) from error


def _broken(name: str, said: str, place: str) -> FlintError:
    return FlintError(
        "FL852", f"{name} is not a table of measured kernels: {said}", place=place, help=_HELP
    )
