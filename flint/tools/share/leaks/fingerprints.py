"""Fingerprints: numbers that are equal for workloads that an observer cannot tell apart.

Names are no part of them. Each view (`View`) is one that an observer may be left with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s, UInt64s
from flint.ir.program import Program

# 64-bit hashes of columns: equal on every machine, and for every process.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(values: UInt64s) -> UInt64s:
    """A bijection of 64 bits that leaves no pattern: the finaliser of splitmix64 (Steele, 2014)."""
    x = values + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def joined(columns: Iterable[NDArray[np.generic]]) -> UInt64s:
    """For each row one hash of its values in all columns (of integers), in their order."""
    found: UInt64s | None = None
    for column in columns:
        values = mixed(column.astype(np.int64).view(np.uint64))
        found = values if found is None else mixed(found * np.uint64(3) + values)
    assert found is not None, "at least one column"
    return found


def of_bytes(data: bytes) -> int:
    """A hash of bytes."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def of_multiset(values: UInt64s) -> int:
    """A hash of values in whichever order."""
    return of_bytes(np.sort(values).astype("<u8").tobytes())


# Weisfeiler-Leman labels: what a row and the rows around it look like, to a depth.
#
# The one-dimensional test (Weisfeiler and Leman, 1968; Shervashidze et al., 2011): a label at depth d
# is made of the row's label at depth d - 1 and of those of its neighbors. Rows that it reads and rows
# that read it count apart.

#: Depths to which neighborhoods are hashed.
DEPTHS = 4
_READS, _READ_BY = np.uint64(0x5851F42D4C957F2D), np.uint64(0x14057B7EF767814F)


class View(StrEnum):
    """What an observer sees of a program."""

    TOPOLOGY = "topology without labels"
    OPS = "topology and op classes"


def first_labels(program: Program, view: View) -> UInt64s:
    """For each row its label at depth 0."""
    if view is View.TOPOLOGY:
        return np.zeros(len(program), dtype=np.uint64)
    return joined([program.op, program.kind, program.collective])


def refined(program: Program, labels: UInt64s) -> Iterator[UInt64s]:
    """Labels of depth 0, 1, 2, ... without end."""
    reads, stops = program.deps, program.dep_start
    readers = program.dep_owner[np.argsort(reads, kind="stable")]
    counts = np.bincount(reads, minlength=len(program))
    read_stops = np.concatenate(([0], np.cumsum(counts)))
    while True:
        yield labels
        around = mixed(_sums(mixed(labels ^ _READS)[reads], stops))
        around += _sums(mixed(labels ^ _READ_BY)[readers], read_stops)
        labels = mixed(mixed(labels) + around)


def _sums(values: UInt64s, stops: NDArray[np.int64]) -> UInt64s:
    """Sums, modulo 2^64, of values `stops[i]:stops[i + 1]`: a hash of them in any order."""
    totals = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(values, dtype=np.uint64)))
    return totals[stops[1:]] - totals[stops[:-1]]


#: Numbers of a histogram of neighborhoods.
BUCKETS = 512
#: Depth of the neighborhoods that are counted.
COUNTED_DEPTH = 2


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Of a program, or of all programs of a workload.

    `hash` is that of neighborhoods of depth 3 with op classes, of one program. `histograms[view]` counts those of
    depth 2 by hash, in `BUCKETS` numbers.
    """

    hash: int
    histograms: Mapping[View, NDArray[np.int64]]


def fingerprint_of(program: Program) -> Fingerprint:
    """The fingerprint of one program. Neither names nor numbers of table entries change it."""
    depths = {
        view: list(islice(refined(program, first_labels(program, view)), DEPTHS)) for view in View
    }
    return Fingerprint(
        of_multiset(depths[View.OPS][-1]),
        {view: _histogram(found[COUNTED_DEPTH]) for view, found in depths.items()},
    )


def together(programs: Sequence[Fingerprint]) -> Fingerprint:
    """The fingerprint of all programs of a workload: whichever their order, those of equal structure count once."""
    distinct = {p.hash: p.histograms for p in programs}
    hashes = of_multiset(np.array(list(distinct), dtype=np.uint64))
    return Fingerprint(
        hashes if len(distinct) > 1 else next(iter(distinct)),
        {view: np.sum([h[view] for h in distinct.values()], axis=0) for view in View},
    )


def _histogram(labels: UInt64s) -> NDArray[np.int64]:
    buckets = (labels % np.uint64(BUCKETS)).astype(np.int64)
    return np.bincount(buckets, minlength=BUCKETS)


# How far a workload is from each known one: of its neighborhoods, and of its totals.


def shares(histograms: NDArray[np.int64]) -> Float64s:
    """Counts of neighborhoods as shares of all rows: numbers of layers count less than kinds."""
    counts = histograms.astype(np.float64)
    found: Float64s = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1.0)
    return found


def structure_distances(known: Float64s, one: Float64s) -> Float64s:
    """For each known workload the share of rows (0 to 1) that have another neighborhood."""
    found: Float64s = np.abs(known - one).sum(axis=-1) / 2
    return found


def size_distances(known: Float64s, one: Float64s) -> Float64s:
    """For each known workload the largest difference of its totals, in powers of two, at most 1."""
    found: Float64s = np.minimum(np.abs(known - one).max(axis=-1), 1.0)
    return found
