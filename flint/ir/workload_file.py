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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.io.bounded import MIB, FileKind, parse_json
from flint.ir.mesh import Group, Route
from flint.ir.program import COLUMN_TYPES, COLUMNS, MAY_BE_LEFT_OUT, TABLES, Program, Region

if TYPE_CHECKING:
    from flint.ir.workload import Workload
    from flint.ir.workload_manifest import WorkloadManifest

#: Version of the file. Readers refuse other versions with a sentence.
SCHEMA = "flint.workload/2"
MANIFEST = "manifest.json"
#: Bytes of columns in a whole file, unpacked.
MOST_COLUMN_BYTES = 768 * MIB
_ZIP = b"PK"  # what a zip file begins with
_ZIP_ENTRY = b"PK\x01\x02"  # what an entry of its directory begins with
_MOST_ENTRIES = 1 << 18
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal workloads give equal bytes
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may need gigabytes to unpack
_HEADER_BYTES = 4096
#: What the file of an array begins with; numpy fills it up with blanks to 64 bytes.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype>[<|>=][a-zA-Z0-9]{1,8})', "
    rb"'fortran_order': (?P<order>True|False), 'shape': \((?P<shape>(?:[0-9]{1,18},? ?){0,3})\), \}"
    rb" *\n",
    re.DOTALL,
)
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


class _Wrong(Exception):
    """What is wrong with a file, in a sentence that begins with the entry."""


# Writing ----------------------------------------------------------------------------------------


def to_bytes(workload: Workload) -> bytes:
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


def _manifest(workload: Workload) -> bytes:
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
        return asdict(value) if isinstance(value, Group | Route | Region) else value

    return {name: [plain(v) for v in getattr(program, name)] for name in TABLES}


# Reading ----------------------------------------------------------------------------------------


def from_bytes(data: bytes, source: str) -> Workload:
    """Read what `to_bytes` wrote. Raises FlintError FL304, with what is wrong, for anything else."""
    if data and not data.startswith(_ZIP):
        raise FlintError(
            "FL304",
            f"{source} is not a .flint file",
            help=f"a program is captured first: flint capture {source} --mesh ... -o DIR",
        )
    try:
        with _archive(data, "the file") as archive:
            return _read(archive, source)
    except _Wrong as error:
        raise FlintError(
            "FL304",
            f"{source} is not a sound .flint file: {error}",
            help="it may be truncated or damaged; capture the program again",
        ) from error


def _read(archive: zipfile.ZipFile, source: str) -> Workload:
    from flint.ir.workload import Workload

    document = _document(archive)
    _check_schema(document, source)
    manifest = _typed(document)
    left = MOST_COLUMN_BYTES
    with _sound(MANIFEST):
        mesh = manifest.the_mesh()
    programs = []
    for i, tables in enumerate(manifest.programs):
        name = _columns_name(i)
        columns = _columns(_entry(archive, name, FileKind.WORKLOAD.most_bytes), name, left)
        left -= sum(c.nbytes for c in columns.values())
        programs.append(Program(mesh=mesh, **columns, **tables.tables()))
    classes = tuple(c.rank_class() for c in manifest.classes)
    workload = Workload(mesh, tuple(programs), classes, document["metadata"])
    with _sound("what it holds"):
        workload.verify()
    return workload


def _document(archive: zipfile.ZipFile) -> Any:
    try:
        return parse_json(_entry(archive, MANIFEST, FileKind.MANIFEST.most_bytes))
    except ValueError as error:
        raise _Wrong(f"{MANIFEST}: {error}") from error


def _check_schema(manifest: object, source: str) -> None:
    found = manifest.get("schema") if isinstance(manifest, dict) else None
    if found != SCHEMA:
        raise FlintError(
            "FL304",
            f"{source} has schema {str(found)[:40]!r}, this Flint reads {SCHEMA!r}",
            help="capture the program again with this version of Flint",
        )


def _typed(document: Any) -> WorkloadManifest:
    from pydantic import ValidationError

    from flint.ir.workload_manifest import WorkloadManifest, first_error

    try:
        return WorkloadManifest.model_validate(document)
    except ValidationError as error:
        raise _Wrong(f"{MANIFEST}, {first_error(error)}") from error


@contextmanager
def _sound(what: str) -> Iterator[None]:
    """Turn what a mesh or `verify` raises into what is wrong with the file."""
    try:
        yield
    except FlintError as error:
        raise _Wrong(f"{what}: {error.message}") from error
    except AssertionError as error:
        raise _Wrong(f"{what}: {error}") from error


@contextmanager
def _archive(data: bytes, name: str) -> Iterator[zipfile.ZipFile]:
    if data.count(_ZIP_ENTRY) > _MOST_ENTRIES:
        raise _Wrong(f"{name}: it has more than {_MOST_ENTRIES:,} entries")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except _DAMAGED as error:
        raise _Wrong(f"{name}: {error}") from error
    with archive:
        yield archive


def _entry(archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    """An entry, unpacked; not if it says that it is larger than `most_bytes`."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise _Wrong(f"it lacks {name}") from None
    if info.file_size > most_bytes:
        raise _Wrong(f"{name}: {info.file_size:,} bytes unpacked, at most {most_bytes:,} are read")
    if info.compress_type not in _METHODS:
        raise _Wrong(f"{name}: compressed by method {info.compress_type}, deflate is needed")
    try:
        with archive.open(info) as file:  # `read(name)` would unpack more than it says
            data = file.read(info.file_size)
    except _DAMAGED as error:
        raise _Wrong(f"{name}: {str(error)[:200]}") from error
    if len(data) < info.file_size:
        raise _Wrong(f"{name}: {len(data):,} of {info.file_size:,} bytes are there")
    return data


def _columns(npz: bytes, name: str, most_bytes: int) -> dict[str, Any]:
    """The columns of a program."""
    found: dict[str, Any] = {}
    with _archive(npz, name) as archive:
        for column in COLUMNS:
            if column in MAY_BE_LEFT_OUT and f"{column}.npy" not in archive.namelist():
                found[column] = np.zeros(len(found["kind"]), dtype=COLUMN_TYPES[column])
                continue
            data = _entry(archive, f"{column}.npy", most_bytes + _HEADER_BYTES)
            found[column] = _column(data, column, f"{name}, column {column}")
            most_bytes -= found[column].nbytes
    return found


def _column(data: bytes, column: str, where: str) -> NDArray[Any]:
    """An array of the column's type. Its header is believed when the bytes for it are there.

    Only headers as numpy writes them are read: its own reader takes them for Python.
    """
    header = _HEADER.match(data[:_HEADER_BYTES])
    if header is None:
        raise _Wrong(f"{where}: it does not begin as an array of numpy does")
    dtype = np.dtype(COLUMN_TYPES[column])
    if header["dtype"].decode() != dtype.str:
        raise _Wrong(f"{where}: of type {header['dtype'].decode()}, {dtype.str} is needed")
    shape = tuple(int(n) for n in header["shape"].replace(b",", b" ").split())
    needed, there = math.prod(shape) * dtype.itemsize, len(data) - header.end()
    if needed != there:
        raise _Wrong(f"{where}: {shape} entries need {needed:,} bytes, {there:,} are there")
    order: Literal["F", "C"] = "F" if header["order"] == b"True" else "C"
    return np.frombuffer(data, dtype, offset=header.end()).reshape(shape, order=order).copy()
