"""Weisfeiler-Leman labels: what a row and the rows around it look like, to a depth.

The one-dimensional test (Weisfeiler and Leman, 1968; Shervashidze et al., 2011): a label at depth d
is made of the row's label at depth d - 1 and of those of its neighbours. Rows that it reads and rows
that read it count apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import UInt64s
from flint.ir.program import Program
from flint.tools.share.leaks.hashing import joined, mixed, of_table

#: Depths to which neighbourhoods are hashed.
DEPTHS = 4
_READS, _READ_BY = np.uint64(0x5851F42D4C957F2D), np.uint64(0x14057B7EF767814F)


class Labels(StrEnum):
    """What an observer sees of a row beside its edges."""

    NONE = "topology"  #: nothing
    OPS = "op classes"  #: op class, kind, and kind of collective
    SIZES = "op classes and sizes"  #: these, types, shapes, bytes, flops, trips, groups, the mesh


def first_labels(program: Program, labels: Labels) -> UInt64s:
    """For each row its label at depth 0."""
    if labels is Labels.NONE:
        return np.zeros(len(program), dtype=np.uint64)
    ops = [program.op, program.kind, program.collective]
    return joined(ops if labels is Labels.OPS else [*ops, *sizes_of(program)])


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
