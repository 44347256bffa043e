"""Known public models: their fingerprints, by which a shared workload may be recognized."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.leaks.fingerprints import (
    View,
    shares,
    size_distances,
    structure_distances,
)

# Totals of a workload: what remains of sizes where single sizes are changed.


def log_totals(workload: Workload) -> NDArray[np.float64]:
    """log2(1 + total) of FLOPs, bytes moved, communicated and of parameters, and of devices.

    The first four are of one device and step, each of the program that has most of it. A level that keeps totals within 2 % moves each by at most 0.03.
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


# How good the attacks are, measured on the known workloads themselves, each omitted in turn
# (`benchmarks/sharing/known_models.py`).

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


def member_distances(
    shares: Float64s, totals: Float64s, one: Float64s, of_one: Float64s
) -> Float64s:
    """For each known workload how far one is from being it: of structure and of totals, summed."""
    return structure_distances(shares, one) + size_distances(totals, of_one)


# The file of known models: an npz of columns, without pickled objects, that `benchmarks/sharing/known_models.py` writes.


def read_known(data: bytes) -> Known:
    """Known models of the bytes of such a file."""
    with np.load(io.BytesIO(data), allow_pickle=False) as columns:
        return Known(
            tuple(KnownEntry(*map(str, entry)) for entry in columns["entries"]),
            {v: columns["histograms"][i].astype(np.int64) for i, v in enumerate(View)},
            columns["totals"],
            _stored_measures(columns["families"], columns["members"]),
        )


def _stored_measures(families: NDArray[Any], members: NDArray[Any]) -> Measured:
    found = {view: _accuracy(row.tolist()) for view, row in zip(View, families, strict=True)}
    workloads, models = (Threshold(*row) for row in members.tolist())
    return Measured(found, workloads, models)


def _accuracy(row: list[float]) -> FamilyAccuracy:
    pairs = zip(row[:-1:2], row[1::2], strict=True)
    one, model, code = (Share(right if count else None, int(count)) for right, count in pairs)
    return FamilyAccuracy(one, model, code, largest_family=row[-1])


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

    `histograms[view]` (entries, buckets) count neighborhoods, `totals` (entries, totals) are `log_totals`.
    `measured` is stored: to leave out each in turn takes longer than a report may.
    """

    entries: tuple[KnownEntry, ...]
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


@cache
def public_models() -> Known:
    """The public models that come with Flint, read when they are first asked for."""
    return read_known((files("flint.tools.share.leaks") / "known.npz").read_bytes())
