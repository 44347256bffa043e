"""Spoilt `.flint` files: archives, manifests, columns, and bombs of all three."""

from __future__ import annotations

import io
import json
import math
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bad.case import Case, Special
from benchmarks.bad.spoil import spoil_bytes, spoil_json

#: What is asked of a file that is accepted.
COMMANDS = (
    ("estimate", "w.flint", "-c", "h100-dgx", "--unpriced", "zero", "--json"),
    ("export", "w.flint", "-f", "graphml", "-o", "g.graphml"),
    ("export", "w.flint", "-f", "dot"),
    ("export", "w.flint", "-f", "json", "--rank", "1"),
    ("explain", "w.flint", "--list"),
    ("explain", "w.flint", "--collective", "0"),
    ("estimate", "w.flint", "-c", "v5p", "--unpriced", "zero", "--perfetto", "p.json"),
)
Entries = dict[str, bytes]


def case(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt workload."""
    path = bases / rng.choice(("small.flint", "small.flint", "plain/workload.flint"))
    if rng.random() < 0.2:
        path = bases / "pipeline" / "workload.flint"
    change, spoilt = spoil(rng, path)
    return Case("flint", number, f"{path.parent.name}: {change}", {"w.flint": spoilt}, COMMANDS)


def spoil(rng: random.Random, path: Path) -> tuple[str, bytes | Special]:
    """One change of a workload's file."""
    data = path.read_bytes()
    action = rng.choice(("bytes", "manifest", "manifest", "manifest", "column", "column", "zip"))
    if action == "bytes":
        return spoil_bytes(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    if action == "zip":
        change, make = rng.choice(_ARCHIVES)
        return change, make(rng, entries)
    if action == "manifest":
        change, entries["manifest.json"] = _spoil_manifest(rng, entries["manifest.json"])
    else:
        name = rng.choice([n for n in entries if n.endswith(".npz")])
        change, entries[name] = spoil_columns(rng, entries[name])
    return change, _zipped(entries)


def _spoil_manifest(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """Values anywhere, as often as not those of the metadata: they are few among tables."""
    document = json.loads(data)
    if rng.random() < 0.5:
        return spoil_json(rng, document)
    change, text = spoil_json(rng, document["metadata"])
    try:
        document["metadata"] = json.loads(text)
    except RecursionError:
        return change, text
    return f"metadata {change}", json.dumps(document).encode("utf-8", "surrogatepass")


def _zipped(entries: Entries, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def spoil_columns(rng: random.Random, npz: bytes) -> tuple[str, bytes]:
    """One change of a column of an npz."""
    with np.load(io.BytesIO(npz)) as loaded:
        columns: dict[str, Any] = {name: loaded[name] for name in loaded.files}
    name = rng.choice(list(columns))
    column = columns[name]
    action = rng.choice(("entry", "entry", "entry", "entry", "type", "shape", "remove", "header"))
    if action == "entry" and column.size and column.dtype.kind in "iuf":
        values: tuple[float, ...] = (0, 1, 2, 3, -1, 7, float(column.max()) + 1, 10**6, 2**61)
        if column.dtype.kind == "f":
            values = (*values, math.nan, math.inf, -math.inf, 1e300, -0.5)
        else:
            limits = np.iinfo(column.dtype)
            values = tuple(
                min(max(int(v), limits.min), limits.max) for v in (*values, 2**63, -(2**63))
            )
        value = rng.choice(values)
        count = rng.choice((1, 1, 1, 3, column.size))
        with np.errstate(over="ignore"):
            column.flat[rng.sample(range(column.size), min(count, column.size))] = value
        action = f"entry {value}"
    elif action == "type" and column.dtype.kind != "U":
        columns[name] = column.astype(
            rng.choice(("int32", "float64", "uint8", ">i8", "bool", "U3"))
        )
    elif action == "shape" and column.ndim:
        changed = (
            column[:-1],
            column.reshape(1, -1),
            np.repeat(column, 3),
            column[::-1],
            column[:0],
        )
        columns[name] = rng.choice(changed)
    elif action == "remove":
        del columns[name]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, value in columns.items():
            file = io.BytesIO()
            np.lib.format.write_array(file, np.asarray(value), allow_pickle=False)
            data = file.getvalue()
            if action == "header" and key == name:
                shape = f"({10 ** rng.randrange(1, 25)},)".encode()
                data = data.replace(b"'shape': (", b"'shape': " + shape + b"+(", 1)
                data = rng.choice(
                    (
                        data,
                        spoilt if isinstance(spoilt := spoil_bytes(rng, data)[1], bytes) else b"",
                    )
                )
            archive.writestr(f"{key}.npy", data)
    return f"column {name}: {action}", out.getvalue()


def _bomb(size: int) -> bytes:
    return bytes(size)


def _declare(rng: random.Random, entries: Entries) -> bytes:
    """An entry that says another size than it has."""
    data = bytearray(_zipped({**entries, "manifest.json": _bomb(1 << 26)}))
    at = data.rfind(b"PK\x01\x02", 0, data.rfind(b"PK\x05\x06"))
    data[at + 24 : at + 28] = rng.choice((100, 1 << 31, 0)).to_bytes(4, "little")
    return bytes(data)


def _columns_bomb(rng: random.Random, entries: Entries) -> bytes:
    """Every column is a gigabyte of zeros, packed a thousand to one, or says so."""
    rows = 10 ** rng.choice((5, 7, 9))
    out = io.BytesIO()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
        np.load(io.BytesIO(entries["program_0.npz"])) as loaded,
    ):
        for name in loaded.files:
            file = io.BytesIO()
            column = loaded[name][:1]
            np.lib.format.write_array(file, column, allow_pickle=False)
            shape = str(column.shape).encode()
            header = file.getvalue().replace(shape, str((rows, *column.shape[1:])).encode(), 1)
            archive.writestr(f"{name}.npy", header + bytes(min(rows * 8, 1 << 24)))
    return _zipped({**entries, "program_0.npz": out.getvalue()})


#: Ways to spoil the archive itself.
_ARCHIVES: tuple[tuple[str, Callable[[random.Random, Entries], bytes]], ...] = (
    ("manifest of zeros", lambda r, e: _zipped({**e, "manifest.json": _bomb(1 << 27)})),
    ("manifest of lists", lambda r, e: _zipped({**e, "manifest.json": b"[" + b"[]," * 10**7})),
    ("manifest of objects", lambda r, e: _zipped({**e, "manifest.json": b"[" + b"{}," * 10**6})),
    ("manifest of digits", lambda r, e: _zipped({**e, "manifest.json": b"9" * 10**6})),
    ("program of zeros", lambda r, e: _zipped({**e, "program_0.npz": _bomb(1 << 27)})),
    ("columns of zeros", _columns_bomb),
    ("sizes that lie", _declare),
    ("an entry less", lambda r, e: _zipped({k: e[k] for k in list(e)[r.randrange(2) :: 2]})),
    ("lzma", lambda r, e: _zipped(e, zipfile.ZIP_LZMA)),
    ("bzip2", lambda r, e: _zipped(e, zipfile.ZIP_BZIP2)),
    ("many entries", lambda r, e: _zipped({**e, **{str(i): b"" for i in range(30_000)}})),
    ("comment", lambda r, e: _zipped(e) + r.randbytes(r.randrange(1, 1000))),
)
