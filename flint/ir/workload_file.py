"""The `.flint` file: a zip of manifest.json and one npz of columns for each program.

What is read is checked from the outside in: sizes that entries declare, types of the manifest,
headers of the columns, then what `Workload.verify` proves. Nothing is unpacked that is too large.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from flint.errors import FlintError
from flint.io.bounded import MIB, FileKind, parse_json
from flint.io.malformed import Malformed
from flint.io.npz import HEADER_BYTES, archive_of, array_of, entry_of
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
            help=f"a program is captured first: flint capture {source} --mesh ... -o DIR",
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
            f"{source} has schema {str(found)[:40]!r}, this Flint reads {SCHEMA!r}",
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
    """The columns of a program."""
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
