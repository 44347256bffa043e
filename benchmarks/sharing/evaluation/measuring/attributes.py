"""What workloads are compared by: numbers of a program, and distributions over its rows.

Loops are not unrolled: a row counts once. A distribution is a histogram that sums to 1. Quantities
are counted in quarters of an octave of 1 + value, so that a distance of 1 is a factor of 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s, Int64s
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Phase, Program, RegionKind
from flint.tools.share.rules.communication import group_sizes

#: Bins of an octave, and bins of a histogram of logarithms (2^64 is the last).
PER_OCTAVE = 4
_LOG_BINS = 64 * PER_OCTAVE + 1
_MOST_DEPTH = 8
_MOST_GROUP = 24
_CLASSES = tuple(OpClass)
_CLASS_OF = np.zeros(256, dtype=np.int64)
_CLASS_OF[list(_CLASSES)] = np.arange(len(_CLASSES))


class Form(StrEnum):
    """What an attribute is, and so which distance is taken."""

    NUMBER = "a number of each workload"
    ORDERED = "a distribution over numbers"
    NAMED = "a distribution over names"


@dataclass(frozen=True, slots=True)
class Attribute:
    """`bin` is the width of a histogram's bin in the attribute's unit."""

    name: str
    form: Form
    says: str
    bin: float = 1.0


_LOG = 1.0 / PER_OCTAVE
ATTRIBUTES = (
    Attribute("layers", Form.NUMBER, "rows on the longest path, octaves"),
    Attribute("rows", Form.NUMBER, "rows of the program, octaves"),
    Attribute("layer size", Form.ORDERED, "rows of a layer, octaves", _LOG),
    Attribute("in-degree", Form.ORDERED, "rows that a row reads, octaves", _LOG),
    Attribute("out-degree", Form.ORDERED, "rows that read a row, octaves", _LOG),
    Attribute("edge length", Form.ORDERED, "layers that an edge goes up, octaves", _LOG),
    Attribute("elements", Form.ORDERED, "elements of a result, octaves", _LOG),
    Attribute("FLOPs", Form.ORDERED, "FLOPs of a row that has any, octaves", _LOG),
    Attribute("bytes", Form.ORDERED, "bytes read and written by a row, octaves", _LOG),
    Attribute("loop depth", Form.ORDERED, "loops around a row"),
    Attribute("op classes", Form.NAMED, "op class of a row"),
    Attribute("edge classes", Form.NAMED, "op classes at both ends of an edge"),
    Attribute("collectives", Form.NAMED, "kind and size of group of a collective, or none at all"),
    Attribute("phases", Form.NAMED, "phase of a row, which counts as often as it runs"),
)


def attributes_of(program: Program) -> Mapping[str, Float64s]:
    """Each attribute of a program that has rows: one number, or a histogram that sums to 1."""
    layer = layers_of(program)
    owner, read = program.dep_owner.astype(np.int64), program.deps.astype(np.int64)
    n = len(program)
    sizes = np.bincount(layer)[1:]
    moved = program.result_bytes.astype(np.float64) + program.operand_bytes
    return {
        "layers": np.array([np.log2(layer.max())]),
        "rows": np.array([np.log2(n)]),
        "layer size": _octaves(sizes),
        "in-degree": _octaves(np.bincount(owner, minlength=n)),
        "out-degree": _octaves(np.bincount(read, minlength=n)),
        "edge length": _octaves(layer[owner] - layer[read]),
        "elements": _octaves(elements_of(program)),
        "FLOPs": _octaves(program.flops[program.flops > 0]),
        "bytes": _octaves(moved[moved > 0]),
        "loop depth": _shares(loop_depths(program), _MOST_DEPTH),
        "op classes": _shares(_CLASS_OF[program.op], len(_CLASSES)),
        "edge classes": _edge_classes(program, owner, read),
        "collectives": _collectives(program),
        "phases": _shares(program.phase, len(Phase), program.trips.astype(np.float64)),
    }


def layers_of(program: Program) -> Int64s:
    """For each row its layer: 1, or one more than the highest that it reads."""
    starts, deps = program.dep_start.tolist(), program.deps.tolist()
    layer: list[int] = []
    for row in range(len(program)):
        read = deps[starts[row] : starts[row + 1]]
        layer.append(1 + max([layer[d] for d in read], default=0))
    return np.array(layer, dtype=np.int64)


def elements_of(program: Program) -> Float64s:
    """Elements of the first result of each row."""
    sizes = [float(np.prod(np.array(s, dtype=np.float64))) for s in program.shapes]
    return np.array(sizes, dtype=np.float64)[program.shape]


def loop_depths(program: Program) -> Int64s:
    """For each row, in how many loops it is."""
    depths: list[int] = []
    for region in program.regions:
        outer = depths[region.parent] if region.parent >= 0 else 0
        depths.append(outer + (region.kind is RegionKind.LOOP))
    return np.array([*depths, 0], dtype=np.int64)[program.region]


def _edge_classes(program: Program, owner: Int64s, read: Int64s) -> Float64s:
    classes = _CLASS_OF[program.op]
    pairs = classes[owner] * len(_CLASSES) + classes[read]
    return _shares(pairs, len(_CLASSES) ** 2)


def _collectives(program: Program) -> Float64s:
    """By kind and rounded log2 of the group's size; entry 0 is whole where nothing communicates."""
    rows = np.flatnonzero(program.kind >= Kind.COLLECTIVE)
    sizes = np.round(np.log2(group_sizes(program)[rows])).astype(np.int64)
    kinds = program.collective[rows].astype(np.int64) * (_MOST_GROUP + 1)
    found = _shares(kinds + np.minimum(sizes, _MOST_GROUP), len(Collective) * (_MOST_GROUP + 1))
    if not len(rows):
        found[0] = 1.0
    return found


def _octaves(values: NDArray[np.generic]) -> Float64s:
    bins = np.round(PER_OCTAVE * np.log2(1.0 + values.astype(np.float64))).astype(np.int64)
    return _shares(bins, _LOG_BINS)


def _shares(values: NDArray[np.generic], bins: int, weights: Float64s | None = None) -> Float64s:
    """A histogram that sums to 1; zeros where there is nothing."""
    inside = np.minimum(values.astype(np.int64), bins - 1)
    counts = np.bincount(inside, weights=weights, minlength=bins).astype(np.float64)
    return np.asarray(counts / max(counts.sum(), 1e-300))
