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
from flint.ir.program import Kind, Program

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


def of_table(entries: Iterable[str]) -> UInt64s:
    """For each entry of a table the hash of its text: tables number alike entries differently."""
    return np.array([of_bytes(e.encode()) for e in entries], dtype=np.uint64)


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
    SIZES = "sizes alone"
    ALL = "topology, op classes and sizes"
    COLLECTIVES = "kinds and order of collectives"
    ROWS = "number of rows"


#: Views of neighborhoods: what an observer sees of a row beside its edges is nothing, its op class, kind and kind of
#: collective, or also types, shapes, bytes, FLOPs, trips, groups and the mesh.
NEIGHBORHOODS = (View.TOPOLOGY, View.OPS, View.ALL)


def first_labels(program: Program, view: View) -> UInt64s:
    """For each row its label at depth 0."""
    if view is View.TOPOLOGY:
        return np.zeros(len(program), dtype=np.uint64)
    ops = [program.op, program.kind, program.collective]
    return joined(ops if view is View.OPS else [*ops, *sizes_of(program)])


def sizes_of(program: Program) -> list[NDArray[np.generic]]:
    """Columns of the sizes of rows, and of the mesh: no op class and no edge."""
    mesh = of_table(["x".join(str(s) for s in program.mesh.sizes if s > 1)])
    shapes = ("x".join(map(str, shape)) for shape in program.shapes)
    groups = [g.size(program.mesh) for g in program.groups]
    return [
        _looked_up(mesh, np.zeros(len(program), dtype=np.int64)),
        _looked_up(of_table(shapes), program.shape),
        _looked_up(of_table(program.dtypes), program.dtype),
        np.array([*groups, 0], dtype=np.int64)[program.group],
        program.result_bytes,
        program.operand_bytes,
        program.flops,
        program.comm_bytes,
        program.trips,
    ]


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


def _looked_up(table: UInt64s, column: NDArray[np.generic]) -> NDArray[np.generic]:
    found: NDArray[np.generic] = table[column].view(np.int64)
    return found


#: Numbers of a histogram of neighborhoods.
BUCKETS = 512
#: Depth of the neighborhoods that are counted.
COUNTED_DEPTH = 2


#: Neighborhoods that are counted.
COUNTED = (View.TOPOLOGY, View.OPS)


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Of a program, or of all programs of a workload.

    `hashes[view]` are of neighborhoods of depth 3, where the view has them. `histograms[view]` counts neighborhoods of depth 2 by hash, in `BUCKETS` numbers.
    """

    hashes: Mapping[View, int]
    histograms: Mapping[View, NDArray[np.int64]]


def fingerprint_of(program: Program) -> Fingerprint:
    """The fingerprint of one program. Neither names nor numbers of table entries change it."""
    depths = {
        view: list(islice(refined(program, first_labels(program, view)), DEPTHS))
        for view in NEIGHBORHOODS
    }
    hashes = {
        **{view: of_multiset(found[-1]) for view, found in depths.items()},
        View.SIZES: of_multiset(joined(sizes_of(program))),
        View.COLLECTIVES: _collectives(program),
        View.ROWS: len(program),
    }
    counts = {view: _histogram(depths[view][COUNTED_DEPTH]) for view in COUNTED}
    return Fingerprint(hashes, counts)


def together(programs: Sequence[Fingerprint]) -> Fingerprint:
    """The fingerprint of all programs of a workload: whichever their order, equal ones count once."""
    distinct = list({p.hashes[View.ALL]: p for p in programs}.values())
    if len(distinct) == 1:
        return distinct[0]
    rows = sum(p.hashes[View.ROWS] for p in distinct)
    hashes = {view: _of_set(p.hashes[view] for p in distinct) for view in View}
    counts = {v: np.sum([p.histograms[v] for p in distinct], axis=0) for v in COUNTED}
    return Fingerprint({**hashes, View.ROWS: rows}, counts)


def _of_set(hashes: Iterable[int]) -> int:
    return of_multiset(np.array(sorted(set(hashes)), dtype=np.uint64))


def _histogram(labels: UInt64s) -> NDArray[np.int64]:
    buckets = (labels % np.uint64(BUCKETS)).astype(np.int64)
    return np.bincount(buckets, minlength=BUCKETS)


def _collectives(program: Program) -> int:
    rows = np.flatnonzero(program.kind >= Kind.COLLECTIVE)
    return of_bytes(program.kind[rows].tobytes() + b"/" + program.collective[rows].tobytes())


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
