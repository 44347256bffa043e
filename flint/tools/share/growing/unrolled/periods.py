"""Repeated blocks of rows: what layers without a loop look like.

Rows are alike if all their columns are, but names, places in the source and which rows they read. Rows
`i` and `i + p` alike over a long stretch are blocks of `p` rows, one after the other: layers of a forward
pass, those of a backward pass in turn, their parameters, updates of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flint.ir.columns import ROW_COLUMNS
from flint.ir.program import Int64s, Kind, Program

#: Columns that differ between layers that do the same.
_OF_ONE_LAYER = frozenset(
    {"name", "scope", "location", "cause", "alias", "compiled", "launcher", "dims"}
)
#: Blocks that are found at least: of two nobody knows what a third would read.
FEWEST_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """`blocks` blocks of `period` rows, from row `start` on."""

    start: int
    period: int
    blocks: int

    @property
    def stop(self) -> int:
        """The row after its last."""
        return self.start + self.period * self.blocks


@dataclass(frozen=True, slots=True)
class _Run:
    length: int
    period: int
    start: int

    @property
    def blocks(self) -> int:
        return self.length // self.period + 1


def segments_of(program: Program) -> tuple[Segment, ...]:
    """Repeated blocks of a program, by row; empty where less than three layers repeat.

    The longest stretch says how many blocks there are; others have as many, or one more or less, where
    rows at an end are not as in other layers. Shorter blocks come together: of layers that
    alternate between two kinds, two are one block.
    """
    runs = sorted(_runs(_labels(program)), key=lambda r: (-r.length, r.period, r.start))
    if not runs:
        return ()
    whole = runs[0].blocks
    found: list[Segment] = []
    for run in runs:
        times = max(round(run.blocks / whole), 1)
        period = run.period * times
        blocks = (run.length + run.period) // period
        if abs(blocks - whole) > 1 or blocks < FEWEST_BLOCKS:
            continue
        segment = Segment(run.start, period, blocks)
        if all(segment.stop <= s.start or s.stop <= segment.start for s in found):
            found.append(segment)
    return tuple(sorted(found, key=lambda s: s.start))


def layers_of(program: Program, segments: tuple[Segment, ...]) -> tuple[int, int]:
    """The number of layers, and how many of them are one block.

    Parameters say it, of which each layer has its own (the fewest, as each may have several moments); without
    parameters the stretch with most rows.
    """
    own = [s for s in segments if (program.kind[s.start : s.stop] == Kind.PARAMETER).all()]
    labels = _labels(program)
    told = own or [max(segments, key=lambda s: s.blocks * s.period)]
    each = [(s, _smallest_period(labels[s.start : s.stop], s.period)) for s in told]
    segment, part = min(each, key=lambda item: item[0].blocks * (item[0].period // item[1]))
    return segment.blocks * (segment.period // part), segment.period // part


def _smallest_period(labels: Int64s, period: int) -> int:
    """The shortest part of a block that repeats within it as well."""
    for part in range(1, period):
        if period % part == 0 and (labels[part:] == labels[:-part]).all():
            return part
    return period


def _labels(program: Program) -> Int64s:
    """For each row a number that rows which are alike share."""
    columns = [c for c in ROW_COLUMNS if c not in _OF_ONE_LAYER]
    entries = [getattr(program, c).astype(np.int64) for c in columns]
    entries += [*program.dims.T, np.diff(program.dep_start)]
    _, label = np.unique(np.stack(entries, axis=1), axis=0, return_inverse=True)
    return np.asarray(label.reshape(-1), dtype=np.int64)


def _runs(labels: Int64s) -> Iterator[_Run]:
    """Stretches in which every row is like the one a period later, of three blocks or more."""
    for period in range(1, len(labels) // FEWEST_BLOCKS + 1):
        alike = np.zeros(len(labels) - period + 2, dtype=np.int8)
        alike[1:-1] = labels[:-period] == labels[period:]
        steps = np.diff(alike)
        begins, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
        lengths = ends - begins
        for i in np.flatnonzero(lengths >= (FEWEST_BLOCKS - 1) * period).tolist():
            yield _Run(int(lengths[i]), period, int(begins[i]))
