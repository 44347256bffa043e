"""The file of known models: an npz of columns, without pickled objects."""

from __future__ import annotations

import io
import zipfile
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.io.bounded import FileKind, read_bounded
from flint.sharing.leaks.calibration import FamilyAccuracy, Share, Threshold
from flint.sharing.leaks.fingerprints import BUCKETS, COUNTED, View
from flint.sharing.leaks.known import Entry, Known, Measured
from flint.sharing.leaks.sizes import TOTALS

#: Version of the columns, and of what fingerprints are made of.
SCHEMA = "flint.known/1"
#: Shares of `FamilyAccuracy`, as they are stored.
_SHARES = ("one_left_out", "model_left_out", "code_left_out")
#: Most bytes of columns that a file may unpack to.
MOST_BYTES = 256 << 20


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
    help_ = "give a file that benchmarks/sharing/known_models.py wrote"
    return read_known(read_bounded(Path(path), FileKind.KNOWN, "FL930", help_), str(path))


def read_known(data: bytes, source: str) -> Known:
    """Known models of a file's bytes. Raises FlintError FL930 if they are none."""
    try:
        columns = _columns(data)
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise FlintError(
            "FL930",
            f"{source} is no file of known models: {error}",
            help="give a file that benchmarks/sharing/known_models.py wrote",
        ) from error
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
    """The columns of a file, of the sizes that they must have. Raises ValueError for others."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
            raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        columns = {name: loaded[name] for name in loaded.files}
    if str(columns["schema"]) != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    count, programs = len(columns["entries"]), len(columns["program_entry"])
    shapes = {
        "entries": (count, len(fields(Entry))),
        "hashes": (count, len(View)),
        "program_entry": (programs,),
        "program_hashes": (programs, len(View)),
        "histograms": (len(COUNTED), count, BUCKETS),
        "totals": (count, len(TOTALS)),
        "families": (len(COUNTED), 2 * len(_SHARES) + 1),
        "members": (2, 2),
    }
    for name, shape in shapes.items():
        if columns[name].shape != shape:
            raise ValueError(f"{name} is of shape {columns[name].shape}, not {shape}")
    return columns
