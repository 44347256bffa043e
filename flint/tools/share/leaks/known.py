"""Known public models: their fingerprints, by which a shared workload may be recognized."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.ir.arrays import Float64s, Int64s, Mask, UInt64s
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.leaks.fingerprints import (
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


# How good the attacks are, measured on the known workloads themselves, each omitted in turn.

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
    """How often the nearest neighbor is of the same family.

    `one_left_out`: among all other known workloads; the same model on another mesh may be one of
    them. `model_left_out`: among those of other models, over workloads whose family has another
    model. `code_left_out`: among those of other source code, over workloads whose family somebody
    else wrote too. Ties count by the share of tied neighbors that are right. `largest_family` is
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
    """The accuracy of nearest neighbors among shares (workloads, buckets)."""
    family = _numbered(families)
    distances = np.stack([structure_distances(shares, one) for one in shares])
    return FamilyAccuracy(
        _left_out(distances, family, np.arange(len(shares))),
        _left_out(distances, family, _numbered(models)),
        _left_out(distances, family, _numbered(codes)),
        max(Counter(families).values()) / len(families),
    )


def _left_out(distances: Float64s, family: Int64s, groups: Int64s) -> Share:
    """Workloads of the same group omitted, over those whose family is in another group."""
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


# The file of known models: an npz of columns, without pickled objects, that `benchmarks/sharing/known_models.py` writes.


def read_known(data: bytes) -> Known:
    """Known models of the bytes of such a file."""
    with np.load(io.BytesIO(data), allow_pickle=False) as columns:
        return _known(columns)


def _known(columns: Mapping[str, NDArray[Any]]) -> Known:
    views = {v: i for i, v in enumerate(View)}
    return Known(
        tuple(KnownEntry(*map(str, entry)) for entry in columns["entries"]),
        {v: columns["hashes"][:, i] for v, i in views.items()},
        columns["program_entry"].astype(np.int64),
        {v: columns["program_hashes"][:, i] for v, i in views.items()},
        {v: columns["histograms"][i].astype(np.int64) for i, v in enumerate(COUNTED)},
        columns["totals"],
        _stored_measures(columns["families"], columns["members"]),
    )


def _stored_measures(families: NDArray[Any], members: NDArray[Any]) -> Measured:
    found = {view: _accuracy(row.tolist()) for view, row in zip(COUNTED, families, strict=True)}
    workloads, models = (Threshold(*row) for row in members.tolist())
    return Measured(found, workloads, models)


def _accuracy(row: list[float]) -> FamilyAccuracy:
    pairs = zip(row[:-1:2], row[1::2], strict=True)
    one, model, code = (Share(right if count else None, int(count)) for right, count in pairs)
    return FamilyAccuracy(one, model, code, largest_family=row[-1])


#: Fewer families say nothing about how well attacks tell them apart.
LEAST_FAMILIES = 2


@dataclass(frozen=True, slots=True)
class KnownEntry:
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
    of entry `program_entry[j]`. `histograms[view]` (entries, buckets) count neighborhoods,
    `totals` (entries, totals) are `sizes.log_totals`.
    `measured` is stored: to leave out each in turn takes longer than a report may.
    """

    entries: tuple[KnownEntry, ...]
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
        """Neighborhoods as shares of each workload's rows."""
        return {view: shares(counts) for view, counts in self.histograms.items()}

    @property
    def families(self) -> tuple[str, ...]:
        """Distinct families, sorted."""
        return tuple(sorted({e.family for e in self.entries}))

    @property
    def models(self) -> tuple[str, ...]:
        """Distinct models, sorted."""
        return tuple(sorted({e.model for e in self.entries}))


def known_of(captures: Iterable[tuple[KnownEntry, Workload]]) -> Known:
    """Fingerprints of captures. Raises FlintError FL931 if they are of fewer than two families."""
    entries: list[KnownEntry] = []
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
            help="attacks are measured by how they distinguish families: add captures of another",
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
    entries: Sequence[KnownEntry], histograms: Mapping[View, NDArray[np.int64]], totals: Float64s
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
    return read_known((files("flint.tools.share.leaks") / "known.npz").read_bytes())
