"""Files and documents of others, bounded before they are believed.

Only regular files are read (a pipe may never end, nor a device), none beyond the size that its kind
can have, and nothing is decompressed or parsed that would take more memory than such a file needs.
The limits are far above what Flint writes: see docs/decisions/0022-bounded-readers.md.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from enum import Enum
from errno import EFBIG
from pathlib import Path
from typing import Any, NoReturn

from flint.errors import FlintError, Malformed
from flint.io.files import read_regular

MIB = 1 << 20
#: What Python's objects take, at most, for each of these characters of JSON (CPython, 64 bits).
_JSON_COSTS = ((b"[", 88), (b"{", 264), (b",", 72), (b":", 72))
#: Memory that a parsed JSON document may take.
_MOST_JSON_BYTES = 1024 * MIB


class FileKind(Enum):
    """Kinds of files that are read whole, with the most bytes that one may have."""

    CLUSTER = ("a cluster file", 4 * MIB)
    SIMULATOR = ("a file of a simulator", 4 * MIB)
    GROUPS = ("a group file", 128 * MIB)
    MANIFEST = ("a manifest", 128 * MIB)
    TRACE = ("a trace", 512 * MIB)
    WORKLOAD = ("a .flint file", 512 * MIB)
    PROGRAM = ("a program", 512 * MIB)
    MODEL = ("a model file", 16 * MIB)
    PROJECT = ("a project file", 4 * MIB)
    LOCK = ("a lock file", 64 * MIB)
    MEASUREMENTS = ("a file of measurements", 256 * MIB)
    KERNEL_TIMES = ("a table of measured kernels", 32 * MIB)
    ROUTING = ("a file of expert loads", 32 * MIB)
    ALGORITHM = ("an algorithm of a collective", 32 * MIB)
    ESTIMATE = ("a saved estimate", 256 * MIB)
    STUDY = ("a study", 512 * MIB)

    def __init__(self, text: str, most_bytes: int) -> None:
        self.text = text
        self.most_bytes = most_bytes


def read_bounded(path: Path, kind: FileKind, code: str, help: str | None = None) -> bytes:
    """The content of a regular file.

    Raises FlintError `code`, with `help`, for what cannot be opened, is not a regular file, or is
    larger than its kind may be.
    """
    try:
        return read_regular(path, kind.most_bytes)
    except OSError as error:
        what = f": {kind.text} has at most {kind.most_bytes:,}" if error.errno == EFBIG else ""
        reason = f"{error.strerror or error}".partition(", more than")[0] + what
        raise FlintError(code, f"cannot read {path}: {reason}", help=help) from error


def is_file(path: Path) -> bool:
    """`path.is_file()`, and False for names that the system does not take (too long, a null)."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_directory(path: Path) -> bool:
    """`path.is_dir()`, and False for names that the system does not take (too long, a null)."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def gunzip(data: bytes, most_bytes: int) -> bytes:
    """All streams of a gzip file, one after another.

    Raises Malformed for a broken stream and for more than `most_bytes`.
    """
    found: list[bytes] = []
    size = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while piece := file.read(MIB):
                size += len(piece)
                if size > most_bytes:
                    raise Malformed(f"it unpacks to more than {most_bytes:,} bytes")
                found.append(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise Malformed(f"its gzip stream is broken ({error})") from error
    return b"".join(found)


def parse_json(data: bytes) -> Any:
    """A JSON document in UTF-8, strictly: no NaN, no number beyond all floats, no key twice.

    Raises Malformed for anything else, and for one that would take more memory than a file of Flint
    can.
    """
    needed = 5 * len(data) + sum(cost * data.count(mark) for mark, cost in _JSON_COSTS)
    if needed > _MOST_JSON_BYTES:
        raise Malformed(f"it would take {needed:,} bytes of memory, more than any such file needs")
    try:
        text = data.decode("utf-8")
        return json.loads(
            text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_unique
        )
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except ValueError as error:
        raise Malformed(str(error)) from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is larger than any float")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key '{name[:40]}' appears twice")
        found[name] = value
    return found
