"""Attacks on a shared workload by somebody who has captures of public models.

Look-up of hashes is `anonymity.py`; here are those that also recognize what was changed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flint.ir.arrays import Float64s
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.tools.share.leaks.fingerprints import Fingerprint, View, shares, structure_distances
from flint.tools.share.leaks.known import (
    EQUAL,
    FamilyAccuracy,
    Known,
    KnownEntry,
    Threshold,
    member_distances,
)

# Anonymity sets: how many known workloads an observer cannot tell from the shared one.


@dataclass(frozen=True, slots=True)
class AnonymitySet:
    """Known workloads with the fingerprint of the shared one in one view (looked up by hash).

    `among` is the number of known workloads. The world is closed: none (`entries` empty) says that
    no *known* workload looks so, which points at whoever made it, and hides nothing.
    """

    view: View
    entries: tuple[KnownEntry, ...]
    among: int

    @property
    def size(self) -> int:
        """How many known workloads look the same."""
        return len(self.entries)

    @property
    def models(self) -> tuple[str, ...]:
        """Their distinct models, sorted."""
        return tuple(sorted({e.model for e in self.entries}))

    @property
    def families(self) -> tuple[str, ...]:
        """Their distinct families, sorted."""
        return tuple(sorted({e.family for e in self.entries}))

    @property
    def identification_bits(self) -> float | None:
        """Bits that an observer learns who holds all known workloads alike likely.

        log2(among / size): 0 where all look the same. None where no known workload looks so.
        """
        return math.log2(self.among / self.size) if self.entries else None


def anonymity_set(of: Fingerprint, known: Known, view: View) -> AnonymitySet:
    """Known workloads that look like the one with this fingerprint, in the order of `known`."""
    rows = np.flatnonzero(known.hashes[view] == np.uint64(of.hashes[view]))
    return AnonymitySet(view, tuple(known.entries[i] for i in rows.tolist()), len(known))


@dataclass(frozen=True, slots=True)
class FamilyGuess:
    """The nearest known workload by shares of neighborhoods, and the nearest of another family.

    Distances are shares of rows (0 to 1) whose neighborhood of depth 2 differs. `accuracy` is the
    attack's own on the known workloads. Families that tie with the first are in `tied`.
    """

    view: View
    nearest: KnownEntry
    distance: float
    second: KnownEntry
    second_distance: float
    tied: tuple[str, ...]
    accuracy: FamilyAccuracy


@dataclass(frozen=True, slots=True)
class KnownMembership:
    """Whether the workload is one of the known ones: of the same model, or mesh and options too.

    The distance is that of op-class neighborhoods (0 to 1) and of totals (powers of two, at most
    1), summed. `candidates` are the known workloads within the threshold, nearest first.
    """

    distance: float
    threshold: Threshold
    candidates: tuple[KnownEntry, ...]

    @property
    def is_member(self) -> bool:
        """Whether the attack claims it."""
        return bool(self.candidates)

    @property
    def models(self) -> tuple[str, ...]:
        """Distinct models of the candidates, nearest first."""
        return tuple(dict.fromkeys(e.model for e in self.candidates))


@dataclass(frozen=True, slots=True)
class Memberships:
    """The claims that it is a known workload, and that it is of a known model."""

    workload: KnownMembership
    model: KnownMembership


def guess_family(of: Fingerprint, known: Known, view: View) -> FamilyGuess:
    """Nearest neighbor on neighborhoods of one view (`COUNTED`)."""
    distances = structure_distances(known.shares[view], shares(of.histograms[view]))
    order = np.argsort(distances, kind="stable").tolist()
    first = order[0]
    family = known.entries[first].family
    second = next(i for i in order if known.entries[i].family != family)
    tied = [i for i in order if distances[i] <= distances[first] + EQUAL]
    return FamilyGuess(
        view,
        known.entries[first],
        float(distances[first]),
        known.entries[second],
        float(distances[second]),
        tuple(sorted({known.entries[i].family for i in tied} - {family})),
        known.measured.families[view],
    )


def guess_membership(of: Fingerprint, totals: Float64s, known: Known) -> Memberships:
    """The distance to the nearest known workload against the thresholds of `known`."""
    own = shares(of.histograms[View.OPS])
    distances = member_distances(known.shares[View.OPS], known.totals, own, totals)
    measured = known.measured
    return Memberships(
        _membership(distances, known.entries, measured.workloads),
        _membership(distances, known.entries, measured.models),
    )


def _membership(
    distances: Float64s, entries: Sequence[KnownEntry], threshold: Threshold
) -> KnownMembership:
    inside = np.flatnonzero(distances <= threshold.distance + EQUAL)
    order = inside[np.argsort(distances[inside], kind="stable")]
    found = tuple(entries[i] for i in order.tolist())
    return KnownMembership(float(distances.min()), threshold, found)


# Look-up of single programs: a stage of a pipeline may give away what the whole does not.


@dataclass(frozen=True, slots=True)
class ProgramLookup:
    """One program: in each view how many known workloads have a program alike, and which families."""

    program: int
    rows: int
    workloads: Mapping[View, int]
    families: Mapping[View, tuple[str, ...]]


def look_up_programs(programs: Sequence[Fingerprint], known: Known) -> tuple[ProgramLookup, ...]:
    """Each program among those of known workloads, by hash."""
    return tuple(_look_up(i, p, known) for i, p in enumerate(programs))


def _look_up(number: int, program: Fingerprint, known: Known) -> ProgramLookup:
    found = {view: _workloads(program, known, view) for view in View}
    return ProgramLookup(
        number,
        program.rows,
        {view: len(rows) for view, rows in found.items()},
        {v: tuple(sorted({known.entries[i].family for i in rows})) for v, rows in found.items()},
    )


def _workloads(program: Fingerprint, known: Known, view: View) -> list[int]:
    alike = known.program_hashes[view] == np.uint64(program.hashes[view])
    rows: list[int] = np.unique(known.program_entry[alike]).tolist()
    return rows


# Shared bits: an upper bound of what a program tells, as trace wringing counts it.

_LEVEL = 6


@dataclass(frozen=True, slots=True)
class SharedBits:
    """Bits of the programs of a workload, compressed: less may tell the same, never more.

    `structure` are op classes, kinds and edges (how far behind each dependency lies); `sizes` are
    shapes, bytes, flops and dims beside them.
    """

    structure: int
    sizes: int
    rows: int

    @property
    def structure_per_row(self) -> float:
        """Bits of structure a row."""
        return self.structure / max(self.rows, 1)


def shared_bits(workload: Workload) -> SharedBits:
    """Bits of all programs, each compressed (zlib) by itself."""
    return SharedBits(
        sum(map(_structure, workload.programs)),
        sum(map(_sizes, workload.programs)),
        sum(map(len, workload.programs)),
    )


def _structure(program: Program) -> int:
    behind = program.dep_owner - program.deps
    counts = np.diff(program.dep_start).astype(np.uint16)
    columns = (program.op, program.kind, program.collective, counts, behind.astype(np.uint16))
    return _bits(b"".join(c.tobytes() for c in columns))


def _sizes(program: Program) -> int:
    columns = (program.shape, program.result_bytes, program.operand_bytes, program.flops)
    table = repr(program.shapes).encode()
    return _bits(b"".join(c.tobytes() for c in (*columns, program.dims)) + table)


def _bits(data: bytes) -> int:
    return 8 * len(zlib.compress(data, _LEVEL))
