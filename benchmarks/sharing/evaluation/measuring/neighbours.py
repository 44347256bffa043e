"""Hashes of parts of programs: bodies of loops, and neighbourhoods of rows."""

from __future__ import annotations

from itertools import islice

import numpy as np

from flint.ir.arrays import UInt64s
from flint.ir.columns import edges, rewired
from flint.ir.program import Program, RegionKind
from flint.tools.share.leaks.hashing import of_multiset
from flint.tools.share.leaks.neighbourhoods import DEPTHS, Labels, first_labels, refined

#: Bodies with fewer rows are alike by chance.
LEAST_BODY = 12


def body_hashes(program: Program) -> UInt64s:
    """A hash of each loop with `LEAST_BODY` rows or more directly in it: op classes, edges among them."""
    owner, read = edges(program)
    inside = (program.region[owner] == program.region[read]) & (program.region[owner] >= 0)
    labels = _deepest(rewired(program, (owner[inside], read[inside])))
    found = []
    for number, region in enumerate(program.regions):
        rows = np.flatnonzero(program.region == number)
        if region.kind is RegionKind.LOOP and len(rows) >= LEAST_BODY:
            found.append(of_multiset(labels[rows]))
    return np.array(found, dtype=np.uint64)


def neighbour_hashes(program: Program) -> UInt64s:
    """For each row the hash of what is around it to depth 3: op classes and edges."""
    return _deepest(program)


def _deepest(program: Program) -> UInt64s:
    *_, last = islice(refined(program, first_labels(program, Labels.OPS)), DEPTHS)
    return last
