"""Workload: a mesh, the programs of its rank classes, and which ranks run which."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.kept import Kept
from flint.mesh import AxisRef, Group, Mesh, Route
from flint.program import COLUMN_TYPES, COLUMNS, TABLES, Program, Region, RegionKind

#: Version of the `.flint` file. Readers refuse other versions with a sentence.
SCHEMA = "flint.workload/1"
_ZIP = b"PK"  # what a zip file begins with
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal workloads give equal bytes
#: What reading or verifying a damaged file can raise: zip, zlib, JSON, numpy, missing and wrong
#: entries, meshes and axes that cannot be, and array sizes that no machine can hold.
_NOT_A_WORKLOAD = (
    zipfile.BadZipFile,
    zlib.error,
    FlintError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class RankClass:
    """Ranks that run the same program.

    `where` restricts axes to coordinates (`{"pipe": (2,)}`); an axis that is not named is free.
    `{}` is the whole mesh. `ranks` lists ranks explicitly where coordinates cannot say it.
    """

    name: str
    program: int
    where: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()

    def mask(self, mesh: Mesh) -> NDArray[np.bool_]:
        """For each rank of the mesh, whether it is in this class."""
        if self.ranks:
            inside = np.zeros(mesh.size, dtype=np.bool_)
            inside[list(self.ranks)] = True
            return inside
        grid = np.ones(mesh.sizes, dtype=np.bool_)
        for axis, coordinates in self.where.items():
            keep = np.zeros(mesh.axis_size(axis), dtype=np.bool_)
            keep[list(coordinates)] = True
            shape = [1] * len(mesh.sizes)
            shape[mesh.names.index(axis)] = -1
            grid = grid & keep.reshape(shape)
        return grid.reshape(-1)


@dataclass(frozen=True, eq=False)
class Workload:
    """What every device of a mesh does.

    `metadata` is JSON: producer, source, options. It holds no times and no paths of the machine,
    so that equal input gives equal bytes. `kept` holds what was last made of the workload (its
    kernels for a target profile, ...) and is no part of it.
    """

    mesh: Mesh
    programs: tuple[Program, ...]
    classes: tuple[RankClass, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept, init=False, repr=False)

    @classmethod
    def single(cls, program: Program, metadata: Mapping[str, Any] | None = None) -> Workload:
        """One program that every rank of its mesh runs."""
        return cls(program.mesh, (program,), (RankClass("all", 0),), dict(metadata or {}))

    def class_of_ranks(self) -> NDArray[np.int16]:
        """For each rank, the index of its class. Computed; two bytes per device."""
        found = np.full(self.mesh.size, -1, dtype=np.int16)
        for i, c in enumerate(self.classes):
            found[c.mask(self.mesh)] = i
        return found

    def program_of(self, rank: int) -> Program:
        """The program that `rank` runs."""
        return self.programs[self.classes[int(self.class_of_ranks()[rank])].program]

    def verify(self) -> None:
        """Raise AssertionError unless each rank is in exactly one class and programs verify."""
        count = np.zeros(self.mesh.size, dtype=np.int16)
        for c in self.classes:
            assert 0 <= c.program < len(self.programs), f"class {c.name} has no program"
            count += c.mask(self.mesh)
        wrong = np.flatnonzero(count != 1)
        assert not len(wrong), f"rank {wrong[:1]} is in {count[wrong[:1]]} classes"
        for program in self.programs:
            assert program.mesh == self.mesh, "a program is of another mesh"
            program.verify()

    def to_bytes(self) -> bytes:
        """The `.flint` file as bytes: a zip of manifest.json and one npz of columns a program."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            _add(archive, "manifest.json", _manifest(self))
            for i, program in enumerate(self.programs):
                _add(archive, f"program_{i}.npz", _columns_to_npz(program))
        return out.getvalue()

    def save(self, path: str | Path) -> None:
        """Write a `.flint` file, atomically. Raises FlintError FL502 if it cannot be written."""
        from flint.files import write_atomically

        write_atomically(Path(path), self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, source: str = "workload") -> Workload:
        """Read what `to_bytes` wrote. Raises FlintError FL304 for anything else."""
        if data and not data.startswith(_ZIP):
            raise FlintError(
                "FL304",
                f"{source} is not a .flint file",
                help=f"a program is captured first: flint capture {source} --mesh ... -o DIR",
            )
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                manifest = json.loads(archive.read("manifest.json"))
                _check_schema(manifest, source)
                workload = _from_manifest(manifest, archive)
                workload.verify()
                return workload
        except _NOT_A_WORKLOAD as error:
            if isinstance(error, FlintError) and error.code == "FL304":
                raise
            reason = error.message if isinstance(error, FlintError) else error
            raise FlintError(
                "FL304",
                f"{source} is not a complete .flint file ({type(error).__name__}: {reason})",
                help="it may be truncated or of another program; capture again",
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> Workload:
        """Read a `.flint` file. Raises FlintError FL301 (cannot read) or FL304 (not one)."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise FlintError("FL301", f"cannot read {path}: {error.strerror}") from error
        return cls.from_bytes(data, str(path))


def _check_schema(manifest: object, source: str) -> None:
    found = manifest.get("schema") if isinstance(manifest, dict) else None
    if found != SCHEMA:
        raise FlintError(
            "FL304",
            f"{source} has schema {found!r}, this Flint reads {SCHEMA!r}",
            help="capture the program again with this version of Flint",
        )


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=_ZIP_DATE)
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED
    archive.writestr(info, data)


def _columns_to_npz(program: Program) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in COLUMNS:
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


def _from_manifest(manifest: dict[str, Any], archive: zipfile.ZipFile) -> Workload:
    mesh = Mesh.parse(manifest["mesh"])
    programs = []
    for i, tables in enumerate(manifest["programs"]):
        with np.load(io.BytesIO(archive.read(f"program_{i}.npz")), allow_pickle=False) as npz:
            columns = _columns_from_npz(npz)
        programs.append(Program(mesh=mesh, **columns, **_tables_from_json(tables)))
    classes = [
        RankClass(
            c["name"],
            c["program"],
            {k: tuple(v) for k, v in c["where"].items()},
            tuple(c["ranks"]),
        )
        for c in manifest["classes"]
    ]
    return Workload(mesh, tuple(programs), tuple(classes), manifest["metadata"])


def _columns_from_npz(npz: Any) -> dict[str, Any]:
    """The columns of a program. Older files have no `product`: nothing is said of any row."""
    columns = {name: npz[name] for name in COLUMNS if name in npz or name != "product"}
    empty = np.zeros(len(columns["opcode"]), dtype=COLUMN_TYPES["product"])
    return {"product": empty, **columns}


def _tables_from_json(tables: dict[str, Any]) -> dict[str, Any]:
    def axes(refs: list[dict[str, Any]]) -> tuple[AxisRef, ...]:
        return tuple(AxisRef(**r) for r in refs)

    def pairs(rows: list[list[int]]) -> tuple[Any, ...]:
        return tuple(map(tuple, rows))

    return {
        "opcodes": tuple(tables["opcodes"]),
        "dtypes": tuple(tables["dtypes"]),
        "strings": tuple(tables["strings"]),
        "streams": tuple(tables["streams"]),
        "products": tuple(tables.get("products", ("",))),
        "shapes": pairs(tables["shapes"]),
        "groups": tuple(
            Group(axes(g["axes"]), pairs(g["ranks"]), tuple(g.get("positions", ())))
            for g in tables["groups"]
        ),
        "routes": tuple(
            Route(axes(r["axes"]), r["offset"], r["wrap"], pairs(r["pairs"]))
            for r in tables["routes"]
        ),
        "regions": tuple(
            Region(**{**r, "kind": RegionKind(r["kind"]), "carries": pairs(r["carries"])})
            for r in tables["regions"]
        ),
    }
