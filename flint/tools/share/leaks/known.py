"""Known public models: their fingerprints, by which a shared workload may be recognised."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.io.bounded import FileKind, read_bounded
from flint.io.malformed import Malformed, readable
from flint.io.npz import arrays_of, column_of, require_schema
from flint.ir.arrays import Float64s, Int64s, Mask, UInt64s
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.leaks.fingerprints import (
    BUCKETS,
    COUNTED,
    View,
    fingerprint_of,
    shares,
    size_distances,
    structure_distances,
    together,
)

# Totals of a workload: what remains of sizes where single sizes are changed.

#: Totals of one device and step, and devices, in the order of `log_totals`.
TOTALS = ("flops", "moved bytes", "communicated bytes", "bytes of parameters", "devices")


def log_totals(workload: Workload) -> NDArray[np.float64]:
    """log2(1 + total) for each of `TOTALS`, of the program that has most of it.

    A level that keeps totals within 2 % moves each by at most 0.03.
    """
    most = np.max([_totals(p) for p in workload.programs], axis=0)
    logs: NDArray[np.float64] = np.log2(1.0 + np.append(most, workload.mesh.size))
    return logs


def _totals(program: Program) -> list[float]:
    moved = program.operand_bytes + program.result_bytes
    columns = (program.flops, moved, program.comm_bytes)
    parameters = program.kind == Kind.PARAMETER
    worked = np.where(program.kind >= Kind.COMPUTE, program.trips, 0).astype(np.float64)
    return [
        *(float(np.dot(worked, column)) for column in columns),
        float(program.result_bytes[parameters].sum()),
    ]


# How good the attacks are, measured on the known workloads themselves, each left out in turn.

#: Share of known workloads that membership may wrongly name members, where ties allow it.
WANTED_FALSE_POSITIVES = 0.05
#: Distances closer than this are equal: sums of shares round.
EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class Share:
    """How often an attack is right, over so many workloads; None where it could not be tried."""

    right: float | None
    workloads: int


@dataclass(frozen=True, slots=True)
class FamilyAccuracy:
    """How often the nearest neighbour is of the same family.

    `one_left_out`: among all other known workloads; the same model on another mesh may be one of
    them. `model_left_out`: among those of other models, over workloads whose family has another
    model. `code_left_out`: among those of other source code, over workloads whose family somebody
    else wrote too. Ties count by the share of tied neighbours that are right. `largest_family` is
    what naming the largest family always would reach.
    """

    one_left_out: Share
    model_left_out: Share
    code_left_out: Share
    largest_family: float


@dataclass(frozen=True, slots=True)
class Threshold:
    """Distance up to which a workload counts as a member, and how many non-members do then."""

    distance: float
    false_positive_rate: float


def family_accuracy(
    shares: Float64s, families: Sequence[str], models: Sequence[str], codes: Sequence[str]
) -> FamilyAccuracy:
    """The accuracy of nearest neighbours among shares (workloads, buckets)."""
    family = _numbered(families)
    distances = np.stack([structure_distances(shares, one) for one in shares])
    return FamilyAccuracy(
        _left_out(distances, family, np.arange(len(shares))),
        _left_out(distances, family, _numbered(models)),
        _left_out(distances, family, _numbered(codes)),
        max(Counter(families).values()) / len(families),
    )


def _left_out(distances: Float64s, family: Int64s, groups: Int64s) -> Share:
    """Workloads of the same group left out, over those whose family is in another group."""
    found = []
    for i, away in enumerate(distances):
        others, same = groups != groups[i], family == family[i]
        if (others & same).any():
            found.append(_right(away, others, same))
    return Share(float(np.mean(found)) if found else None, len(found))


def member_distances(
    shares: Float64s, totals: Float64s, one: Float64s, of_one: Float64s
) -> Float64s:
    """For each known workload how far one is from being it: of structure and of totals, summed."""
    return structure_distances(shares, one) + size_distances(totals, of_one)


def member_threshold(shares: Float64s, totals: Float64s, groups: Sequence[object]) -> Threshold:
    """The largest distance at which few known workloads pass for one of another group.

    Of each the nearest of another group is taken: groups are workloads themselves, or models. Where
    more than `WANTED_FALSE_POSITIVES` have a twin the threshold is 0, and the rate that it has is
    told.
    """
    group = _numbered(groups)
    nearest = []
    for i in range(len(shares)):
        distances = member_distances(shares, totals, shares[i], totals[i])
        nearest.append(float(distances[group != group[i]].min()))
    ordered = np.sort(nearest)
    allowed = [d for d in ordered if np.mean(ordered <= d + EQUAL) <= WANTED_FALSE_POSITIVES]
    distance = float(max(allowed, default=0.0))
    return Threshold(distance, float(np.mean(ordered <= distance + EQUAL)))


def _right(distances: Float64s, others: Mask, same: Mask) -> float:
    least = distances[others].min()
    tied = others & (distances <= least + EQUAL)
    return float(same[tied].mean())


def _numbered(names: Sequence[object]) -> Int64s:
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[n] for n in names], dtype=np.int64)


# The file of known models: an npz of columns, without pickled objects.

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
        _stored_measures(columns["families"], columns["members"]),
    )


def _row(found: FamilyAccuracy) -> list[float | None]:
    """Right and workloads of each share, then the baseline. None is stored as NaN."""
    shares = [getattr(found, name) for name in _SHARES]
    return [*(number for s in shares for number in astuple(s)), found.largest_family]


def _stored_measures(families: NDArray[Any], members: NDArray[Any]) -> Measured:
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


#: Fewer families say nothing about how well attacks tell them apart.
LEAST_FAMILIES = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A known workload: a public model, its mesh, options of the capture, and the code of the model.

    `code` tells apart who wrote it: the same model in other code is another program.
    """

    family: str
    model: str
    mesh: str
    options: str
    code: str

    def __str__(self) -> str:
        return (
            f"{self.model} on {self.mesh}"
            + f" ({' '.join(filter(None, (self.code, self.options)))})"
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """How good attacks are among the known workloads: by view, and of membership.

    `workloads` says when something is a known workload, `models` when it is of a known model.
    """

    families: Mapping[View, FamilyAccuracy]
    workloads: Threshold
    models: Threshold


@dataclass(frozen=True, eq=False)
class Known:
    """Known workloads: entry i of every array is of `entries[i]`.

    `hashes[view]` are of workloads; `program_hashes[view]` of their programs, program j being one
    of entry `program_entry[j]`. `histograms[view]` (entries, buckets) count neighbourhoods,
    `totals` (entries, totals) are `sizes.log_totals`.
    `measured` is stored: to leave out each in turn takes longer than a report may.
    """

    entries: tuple[Entry, ...]
    hashes: Mapping[View, UInt64s]
    program_entry: NDArray[np.int64]
    program_hashes: Mapping[View, UInt64s]
    histograms: Mapping[View, NDArray[np.int64]]
    totals: Float64s
    measured: Measured

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def shares(self) -> Mapping[View, Float64s]:
        """Neighbourhoods as shares of each workload's rows."""
        return {view: shares(counts) for view, counts in self.histograms.items()}

    @property
    def families(self) -> tuple[str, ...]:
        """Distinct families, sorted."""
        return tuple(sorted({e.family for e in self.entries}))

    @property
    def models(self) -> tuple[str, ...]:
        """Distinct models, sorted."""
        return tuple(sorted({e.model for e in self.entries}))


def known_of(captures: Iterable[tuple[Entry, Workload]]) -> Known:
    """Fingerprints of captures. Raises FlintError FL931 if they are of fewer than two families."""
    entries: list[Entry] = []
    whole, programs, owners, totals = [], [], [], []
    for entry, workload in captures:
        own = [fingerprint_of(p) for p in workload.programs]
        whole.append(together(own))
        programs += own
        owners += [len(entries)] * len(own)
        totals.append(log_totals(workload))
        entries.append(entry)
    if len({e.family for e in entries}) < LEAST_FAMILIES:
        raise FlintError(
            "FL931",
            f"known models of fewer than {LEAST_FAMILIES} families: {len(entries)} captures",
            help="attacks are measured by how they tell families apart: add captures of another",
        )
    histograms = {v: np.stack([f.histograms[v] for f in whole]) for v in COUNTED}
    return Known(
        tuple(entries),
        {v: np.array([f.hashes[v] for f in whole], dtype=np.uint64) for v in View},
        np.array(owners, dtype=np.int64),
        {v: np.array([f.hashes[v] for f in programs], dtype=np.uint64) for v in View},
        histograms,
        np.stack(totals),
        _measured(entries, histograms, np.stack(totals)),
    )


def _measured(
    entries: Sequence[Entry], histograms: Mapping[View, NDArray[np.int64]], totals: Float64s
) -> Measured:
    names = [[e.family for e in entries], [e.model for e in entries], [e.code for e in entries]]
    found = {view: shares(counts) for view, counts in histograms.items()}
    accuracy = {v: family_accuracy(s, *names) for v, s in found.items()}
    seen = found[View.OPS]
    return Measured(
        accuracy,
        member_threshold(seen, totals, range(len(entries))),
        member_threshold(seen, totals, names[1]),
    )


@cache
def public_models() -> Known:
    """The public models that come with Flint, read when they are first asked for."""
    return read_known((files("flint.tools.share.leaks") / "known.npz").read_bytes(), "known.npz")
