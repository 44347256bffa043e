"""The `.flint` file: a zip of manifest.json and one npz of columns for each program.

What is read is checked from the outside in: sizes that entries declare, types of the manifest,
headers of the columns, then what `Workload.verify` proves. Nothing is unpacked that is too large.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError, Malformed
from flint.io.bounded import MIB, FileKind, parse_json
from flint.ir.mesh import Group, Mesh, Route
from flint.ir.program import COLUMN_TYPES, COLUMNS, MAY_BE_LEFT_OUT, TABLES, Program, Region
from flint.ir.rank_class import RankClass

if TYPE_CHECKING:
    from flint.ir.workload_manifest import WorkloadManifest


W = TypeVar("W")


class Contents(NamedTuple):
    """What a file holds: the parts of a Workload."""

    mesh: Mesh
    programs: tuple[Program, ...]
    classes: tuple[RankClass, ...]
    metadata: Mapping[str, Any]


#: Version of the file. Readers refuse other versions with a sentence.
SCHEMA = "flint.workload/2"
MANIFEST = "manifest.json"
#: Bytes of columns in a whole file, unpacked.
MOST_COLUMN_BYTES = 768 * MIB
_ZIP = b"PK"  # what a zip file begins with
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal workloads give equal bytes


# Writing ----------------------------------------------------------------------------------------


def to_bytes(workload: Contents) -> bytes:
    """The file. Raises FlintError FL304 for a workload too large to be read back."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        _add(archive, MANIFEST, _manifest(workload))
        for i, program in enumerate(workload.programs):
            _add(archive, _columns_name(i), _columns_to_npz(program))
    return out.getvalue()


def _columns_name(number: int) -> str:
    return f"program_{number}.npz"


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=_ZIP_DATE)
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED
    archive.writestr(info, data)


def _columns_to_npz(program: Program) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in COLUMNS:
            if name in MAY_BE_LEFT_OUT and not getattr(program, name).any():
                continue
            column = io.BytesIO()
            np.lib.format.write_array(column, getattr(program, name), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=_ZIP_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, column.getvalue())
    return out.getvalue()


def _manifest(workload: Contents) -> bytes:
    document = {
        "schema": SCHEMA,
        "mesh": workload.mesh.shape,
        "classes": [
            {**asdict(c), "where": {k: list(v) for k, v in c.where.items()}}
            for c in workload.classes
        ],
        "metadata": dict(workload.metadata),
        "programs": [_tables_to_json(p) for p in workload.programs],
    }
    return json.dumps(document, sort_keys=False, separators=(",", ":")).encode()


def _tables_to_json(program: Program) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Group) and not value.copy:
            return {name: given for name, given in asdict(value).items() if name != "copy"}
        return asdict(value) if isinstance(value, Group | Route | Region) else value

    return {name: [plain(v) for v in getattr(program, name)] for name in TABLES}


# Reading ----------------------------------------------------------------------------------------


def from_bytes(data: bytes, source: str, make: Callable[..., W]) -> W:
    """What `make` makes of the contents that `to_bytes` wrote, which are as `Contents` lists them.

    Raises FlintError FL304, with what is wrong, for anything else; AssertionErrors of `make` are.
    """
    if data and not data.startswith(_ZIP):
        raise FlintError(
            "FL304",
            f"{source} is not a .flint file",
            help=f"capture the program first: flint capture {source} --mesh ... -o DIR",
        )
    try:
        with archive_of(data, "the file") as archive:
            return _read(archive, source, make)
    except Malformed as error:
        raise FlintError(
            "FL304",
            f"{source} is not a sound .flint file: {error}",
            help="it may be truncated or damaged; capture the program again",
        ) from error


def _read(archive: zipfile.ZipFile, source: str, make: Callable[..., W]) -> W:
    document = _document(archive)
    _check_schema(document, source)
    manifest = _typed(document)
    left = MOST_COLUMN_BYTES
    with _sound(MANIFEST):
        mesh = manifest.the_mesh()
    programs = []
    for i, tables in enumerate(manifest.programs):
        name = _columns_name(i)
        columns = _columns(entry_of(archive, name, FileKind.WORKLOAD.most_bytes), name, left)
        left -= sum(c.nbytes for c in columns.values())
        programs.append(Program(mesh=mesh, **columns, **tables.tables()))
    classes = tuple(c.rank_class() for c in manifest.classes)
    with _sound("what it holds"):
        return make(mesh, tuple(programs), classes, document["metadata"])


def _document(archive: zipfile.ZipFile) -> Any:
    try:
        return parse_json(entry_of(archive, MANIFEST, FileKind.MANIFEST.most_bytes))
    except Malformed as error:
        raise Malformed(f"{MANIFEST}: {error}") from error


def _check_schema(manifest: object, source: str) -> None:
    found = manifest.get("schema") if isinstance(manifest, dict) else None
    if found != SCHEMA:
        raise FlintError(
            "FL304",
            f"{source} has schema {str(found)[:40]!r}, but this Flint reads {SCHEMA!r}",
            help="capture the program again with this version of Flint",
        )


def _typed(document: Any) -> WorkloadManifest:
    from flint.io.records import record_of
    from flint.ir.workload_manifest import WorkloadManifest

    try:
        return record_of(WorkloadManifest, document)
    except Malformed as error:
        raise Malformed(f"{MANIFEST}, {error}") from error


@contextmanager
def _sound(what: str) -> Iterator[None]:
    """Turn what a mesh or `verify` raises into what is wrong with the file."""
    try:
        yield
    except FlintError as error:
        raise Malformed(f"{what}: {error.message}") from error
    except AssertionError as error:
        raise Malformed(f"{what}: {error}") from error


def _columns(npz: bytes, name: str, most_bytes: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with archive_of(npz, name) as archive:
        for column in COLUMNS:
            if column in MAY_BE_LEFT_OUT and f"{column}.npy" not in archive.namelist():
                found[column] = np.zeros(len(found["kind"]), dtype=COLUMN_TYPES[column])
                continue
            data = entry_of(archive, f"{column}.npy", most_bytes + HEADER_BYTES)
            found[column] = array_of(data, f"{name}, column {column}", COLUMN_TYPES[column])
            most_bytes -= found[column].nbytes
    return found


# Archives of numpy's arrays (`.npz`), believed as far as their bytes reach.
#
# Sizes that entries declare are compared with bounds before anything is unpacked, and headers of
# arrays with the bytes that are there before anything is allocated. Nothing is unpickled.

_ZIP_ENTRY = b"PK\x01\x02"  # what an entry of its directory begins with
_MOST_ENTRIES = 1 << 18
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may need gigabytes to unpack
HEADER_BYTES = 4096
#: What the file of an array begins with; numpy fills it up with blanks to 64 bytes.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype>[<|>=][a-zA-Z0-9]{1,8})', "
    rb"'fortran_order': (?P<order>True|False), 'shape': \((?P<shape>(?:[0-9]{1,18},? ?){0,3})\), \}"
    rb" *\n",
    re.DOTALL,
)
#: Numbers, and text of a fixed length.
_DTYPE = re.compile(r"[<|](?:[fiu][1248]|b1|U[0-9]{1,6})")
#: What zipfile and zlib raise for a damaged archive.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)


@contextmanager
def archive_of(data: bytes, name: str) -> Iterator[zipfile.ZipFile]:
    """A zip file of bytes. Raises Malformed for what is none, and for one of too many entries."""
    if data.count(_ZIP_ENTRY) > _MOST_ENTRIES:
        raise Malformed(f"{name}: it has more than {_MOST_ENTRIES:,} entries")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except _DAMAGED as error:
        raise Malformed(f"{name}: {error}") from error
    with archive:
        yield archive


def entry_of(archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    """An entry, unpacked; not if it says that it is larger than `most_bytes`. Raises Malformed."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise Malformed(f"it lacks {name}") from None
    if info.file_size > most_bytes:
        raise Malformed(
            f"{name}: {info.file_size:,} bytes unpacked, but at most {most_bytes:,} are read"
        )
    if info.compress_type not in _METHODS:
        raise Malformed(f"{name}: compressed by method {info.compress_type}, not deflate")
    try:
        with archive.open(info) as file:  # `read(name)` would unpack more than it says
            data = file.read(info.file_size)
    except _DAMAGED as error:
        raise Malformed(f"{name}: {str(error)[:200]}") from error
    if len(data) < info.file_size:
        raise Malformed(f"{name}: only {len(data):,} of {info.file_size:,} bytes are present")
    return data


def array_of(data: bytes, where: str, dtype: str | None = None) -> NDArray[Any]:
    """An array, of `dtype` if that is given. Its header is believed when the bytes for it are there.

    Only headers as numpy writes them are read: its own reader takes them for Python. Raises Malformed.
    """
    header = _HEADER.match(data[:HEADER_BYTES])
    if header is None:
        raise Malformed(f"{where}: it does not begin like a numpy array")
    said = header["dtype"].decode()
    if dtype is not None and said != np.dtype(dtype).str:
        raise Malformed(f"{where}: of type {said}, not {np.dtype(dtype).str}")
    if dtype is None and not _DTYPE.fullmatch(said):
        raise Malformed(f"{where}: of type {said}, which is neither numbers nor text")
    kind = np.dtype(said)
    shape = tuple(int(n) for n in header["shape"].replace(b",", b" ").split())
    needed, there = math.prod(shape) * kind.itemsize, len(data) - header.end()
    if needed != there:
        raise Malformed(
            f"{where}: {shape} entries need {needed:,} bytes, but {there:,} are present"
        )
    order: Literal["F", "C"] = "F" if header["order"] == b"True" else "C"
    flat = np.frombuffer(data, kind, offset=header.end()) if there else np.zeros(0, kind)
    return flat.reshape(shape, order=order).copy()
