"""Known public models: their fingerprints, by which a shared workload may be recognised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.ir.arrays import Float64s, UInt64s
from flint.ir.workload import Workload
from flint.tools.share.leaks.calibration import (
    FamilyAccuracy,
    Threshold,
    family_accuracy,
    member_threshold,
)
from flint.tools.share.leaks.distances import shares
from flint.tools.share.leaks.fingerprints import COUNTED, View, fingerprint_of, together
from flint.tools.share.leaks.sizes import log_totals

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
    from flint.tools.share.leaks.known_file import read_known

    return read_known((files("flint.tools.share.leaks") / "known.npz").read_bytes(), "known.npz")
