"""The file of known models: an npz of columns, without pickled objects."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.io.bounded import FileKind, read_bounded
from flint.io.malformed import Malformed, readable
from flint.io.npz import arrays_of, column_of, require_schema
from flint.tools.share.leaks.calibration import FamilyAccuracy, Share, Threshold
from flint.tools.share.leaks.fingerprints import BUCKETS, COUNTED, View
from flint.tools.share.leaks.known import Entry, Known, Measured
from flint.tools.share.leaks.sizes import TOTALS

#: Version of the columns, and of what fingerprints are made of.
SCHEMA = "flint.known/1"
#: Shares of `FamilyAccuracy`, as they are stored.
_SHARES = ("one_left_out", "model_left_out", "code_left_out")
#: Most bytes of columns that a file may unpack to.
MOST_BYTES = 256 << 20
_HELP = "give a file that benchmarks/sharing/known_models.py wrote"


def known_bytes(known: Known) -> bytes:
    """The file. Equal known models give equal bytes."""
    measured = known.measured
    entries = np.array([astuple(e) for e in known.entries])
    columns = {
        "schema": np.array(SCHEMA),
        "entries": entries,
        "hashes": np.stack([known.hashes[v] for v in View], axis=1),
        "program_entry": known.program_entry.astype(np.uint32),
        "program_hashes": np.stack([known.program_hashes[v] for v in View], axis=1),
        "histograms": np.stack([known.histograms[v] for v in COUNTED]).astype(np.uint32),
        "totals": known.totals,
        "families": np.array([_row(measured.families[v]) for v in COUNTED], dtype=float),
        "members": np.array([astuple(t) for t in (measured.workloads, measured.models)]),
    }
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **columns)
    return file.getvalue()


def load_known(path: str | Path) -> Known:
    """Known models of a file that `known_bytes` made. Raises FlintError FL930 for anything else."""
    return read_known(read_bounded(Path(path), FileKind.KNOWN, "FL930", _HELP), str(path))


def read_known(data: bytes, source: str) -> Known:
    """Known models of a file's bytes. Raises FlintError FL930 if they are none."""
    with readable("FL930", f"{source} is no file of known models", _HELP):
        return _known(_columns(data))


def _known(columns: Mapping[str, NDArray[Any]]) -> Known:
    views = {v: i for i, v in enumerate(View)}
    return Known(
        tuple(Entry(*map(str, entry)) for entry in columns["entries"]),
        {v: columns["hashes"][:, i] for v, i in views.items()},
        columns["program_entry"].astype(np.int64),
        {v: columns["program_hashes"][:, i] for v, i in views.items()},
        {v: columns["histograms"][i].astype(np.int64) for i, v in enumerate(COUNTED)},
        columns["totals"],
        _measured(columns["families"], columns["members"]),
    )


def _row(found: FamilyAccuracy) -> list[float | None]:
    """Right and workloads of each share, then the baseline. None is stored as NaN."""
    shares = [getattr(found, name) for name in _SHARES]
    return [*(number for s in shares for number in astuple(s)), found.largest_family]


def _measured(families: NDArray[Any], members: NDArray[Any]) -> Measured:
    found = {view: _accuracy(row.tolist()) for view, row in zip(COUNTED, families, strict=True)}
    workloads, models = (Threshold(*row) for row in members.tolist())
    return Measured(found, workloads, models)


def _accuracy(row: list[float]) -> FamilyAccuracy:
    pairs = zip(row[:-1:2], row[1::2], strict=True)
    one, model, code = (Share(right if count else None, int(count)) for right, count in pairs)
    return FamilyAccuracy(one, model, code, largest_family=row[-1])


def _columns(data: bytes) -> dict[str, NDArray[Any]]:
    """The columns of a file, of the types and sizes that they must have. Raises Malformed for others."""
    columns = arrays_of(data, MOST_BYTES, may_be_nan=("families",))
    require_schema(columns, SCHEMA)
    count, programs = (len(_rows(columns, name)) for name in ("entries", "program_entry"))
    types: dict[str, tuple[str, tuple[int, ...]]] = {
        "entries": ("U", (count, len(fields(Entry)))),
        "hashes": ("uint64", (count, len(View))),
        "program_entry": ("uint32", (programs,)),
        "program_hashes": ("uint64", (programs, len(View))),
        "histograms": ("uint32", (len(COUNTED), count, BUCKETS)),
        "totals": ("float64", (count, len(TOTALS))),
        "families": ("float64", (len(COUNTED), 2 * len(_SHARES) + 1)),
        "members": ("float64", (2, 2)),
    }
    for name, (dtype, shape) in types.items():
        found = column_of(columns, name, dtype)
        if found.shape != shape:
            raise Malformed(f"{name} is of shape {found.shape}, not {shape}")
    if programs and int(columns["program_entry"].max()) >= count:
        raise Malformed("a program is of an entry that there is not")
    shares, counts = columns["families"][:, [0, 2, 4, 6]], columns["families"][:, [1, 3, 5]]
    tried = np.append(counts > 0, np.ones((len(counts), 1), bool), axis=1)
    inside = np.nan_to_num(shares, nan=-1.0)
    if ((inside < 0) | (inside > 1))[tried].any() or not (counts >= 0).all():
        raise Malformed("families has shares that are not from 0 to 1, or counts below 0")
    if (columns["members"] < 0).any() or (columns["members"][:, 1] > 1).any():
        raise Malformed("members has a distance or a rate that cannot be")
    return columns


def _rows(columns: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in columns or not columns[name].ndim:
        raise Malformed(f"it lacks {name}")
    return columns[name]
