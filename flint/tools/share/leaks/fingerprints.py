"""Fingerprints: numbers that are equal for workloads that an observer cannot tell apart.

Names are no part of them. Each view (`View`) is one that an observer may be left with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import UInt64s
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.leaks.hashing import joined, of_bytes, of_multiset
from flint.tools.share.leaks.neighbourhoods import DEPTHS, Labels, first_labels, refined, sizes_of

#: Numbers of a histogram of neighbourhoods.
BUCKETS = 512
#: Depth of the neighbourhoods that are counted.
COUNTED_DEPTH = 2


class View(StrEnum):
    """What an observer sees of a program."""

    TOPOLOGY = "topology without labels"
    OPS = "topology and op classes"
    SIZES = "sizes alone"
    ALL = "topology, op classes and sizes"
    COLLECTIVES = "kinds and order of collectives"
    ROWS = "number of rows"


#: For each view of neighbourhoods its labels.
_LABELS = {View.TOPOLOGY: Labels.NONE, View.OPS: Labels.OPS, View.ALL: Labels.SIZES}
#: Neighbourhoods that are counted.
COUNTED = (View.TOPOLOGY, View.OPS)


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Of a program, or of all programs of a workload.

    `wl[view]` are hashes to depth 0, 1, 2 and 3; `hashes[view]` is the deepest, or the only one.
    `histograms[view]` counts neighbourhoods of depth 2 by hash, in `BUCKETS` numbers.
    """

    rows: int
    hashes: Mapping[View, int]
    wl: Mapping[View, tuple[int, ...]]
    histograms: Mapping[View, NDArray[np.int64]]


def fingerprint_of(program: Program) -> Fingerprint:
    """The fingerprint of one program. Neither names nor numbers of table entries change it."""
    wl: dict[View, tuple[int, ...]] = {}
    histograms: dict[View, NDArray[np.int64]] = {}
    for view, labels in _LABELS.items():
        depths = list(islice(refined(program, first_labels(program, labels)), DEPTHS))
        wl[view] = tuple(map(of_multiset, depths))
        if view in COUNTED:
            histograms[view] = _histogram(depths[COUNTED_DEPTH])
    hashes = {
        **{view: found[-1] for view, found in wl.items()},
        View.SIZES: of_multiset(joined(sizes_of(program))),
        View.COLLECTIVES: _collectives(program),
        View.ROWS: len(program),
    }
    return Fingerprint(len(program), hashes, wl, histograms)


def fingerprint_of_workload(workload: Workload) -> Fingerprint:
    """The fingerprint of all programs together: whichever their order, equal ones count once."""
    return together([fingerprint_of(p) for p in workload.programs])


def together(programs: Sequence[Fingerprint]) -> Fingerprint:
    """One fingerprint of several. That of one program is its own."""
    distinct = list({p.hashes[View.ALL]: p for p in programs}.values())
    if len(distinct) == 1:
        return distinct[0]
    views, deep = list(distinct[0].hashes), list(distinct[0].wl)
    hashes = {view: _of_set(p.hashes[view] for p in distinct) for view in views}
    rows = sum(p.rows for p in distinct)
    return Fingerprint(
        rows,
        {**hashes, View.ROWS: rows},
        {v: tuple(_of_set(p.wl[v][d] for p in distinct) for d in range(DEPTHS)) for v in deep},
        {v: np.sum([p.histograms[v] for p in distinct], axis=0) for v in COUNTED},
    )


def _of_set(hashes: Iterable[int]) -> int:
    return of_multiset(np.array(sorted(set(hashes)), dtype=np.uint64))


def _histogram(labels: UInt64s) -> NDArray[np.int64]:
    buckets = (labels % np.uint64(BUCKETS)).astype(np.int64)
    return np.bincount(buckets, minlength=BUCKETS)


def _collectives(program: Program) -> int:
    rows = np.flatnonzero(program.kind >= Kind.COLLECTIVE)
    return of_bytes(program.kind[rows].tobytes() + b"/" + program.collective[rows].tobytes())
