"""Rows by trigram: each row's class follows from the two before, what it reads from how far others read.

A row is of the class, kind, collective and phase that followed the same two in training; begins and
ends of loops are words like others. Its other columns are those of a training row of its word; its
shape is that of what it reads first. Loops run as often as the layers that are asked for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.sharing.evaluation.baselines.rows import (
    columns_of,
    communicates,
    communication,
    long_axes,
)
from benchmarks.sharing.evaluation.corpus import Capture, largest_program
from flint.ir.builder import ProgramBuilder
from flint.ir.columns import bytes_of_type, carried
from flint.ir.mesh import Mesh
from flint.ir.op_class import ELEMENTWISE
from flint.ir.program import Kind, Program, RegionKind, Row
from flint.ir.workload import Workload
from flint.tools.share.conditions import MOST_ROWS, Conditions

Word = tuple[int, ...]
#: Where loops begin and end.
BEGIN: Word = (-1,)
END: Word = (-2,)
#: Training rows that are kept for one word, and loops in loops.
MOST_EXAMPLES, MOST_LOOPS = 200, 3
#: Rows where nothing is asked for.
_USUAL_ROWS = 1000


@dataclass(eq=False)
class Counts:
    """What followed two words, and examples of rows with the distances that they read at."""

    after: dict[tuple[Word, Word], list[Word]] = field(default_factory=lambda: defaultdict(list))
    examples: dict[Word, list[tuple[Row, tuple[int, ...]]]] = field(
        default_factory=lambda: defaultdict(list)
    )


@dataclass(frozen=True, eq=False)
class Trigram:
    """Makes programs row by row."""

    counts: Counts

    def sample(self, conditions: Conditions, seed: int) -> Workload:
        """A program of as many rows as asked for, on the mesh asked for."""
        mesh = conditions.mesh or Mesh.parse("1")
        writer = _Writer(mesh, conditions.depth or 1, np.random.default_rng(seed))
        before = (END, END)
        for _ in range(4 * (conditions.rows or _USUAL_ROWS)):
            if len(writer.builder) >= min(conditions.rows or _USUAL_ROWS, MOST_ROWS):
                break
            words = self.counts.after.get(before) or self.counts.after[END, END]
            word = words[int(writer.rng.integers(len(words)))]
            writer.write(word, self.counts.examples)
            before = (before[1], word)
        return Workload.single(writer.end())


def train_trigram(captures: Sequence[Capture], seed: int) -> Trigram:
    """Counts of the training programs; a program begins after two ends."""
    counts = Counts()
    rng = np.random.default_rng(seed)
    for capture in captures:
        program = largest_program(capture.workload)
        before = (END, END)
        for word, row in _words(program):
            counts.after[before].append(word)
            before = (before[1], word)
            if row >= 0 and rng.random() < _share(len(counts.examples[word])):
                distances = tuple((row - program.dependencies(row)).tolist())
                counts.examples[word].append((program.row(row), distances))
    return counts_only(counts)


def counts_only(counts: Counts) -> Trigram:
    """A generator without default entries: look-ups do not change it."""
    return Trigram(Counts(dict(counts.after), dict(counts.examples)))


def _share(kept: int) -> float:
    """How likely one more example is kept: always at first, rarely later, never of too many."""
    return 0.0 if kept >= MOST_EXAMPLES else 1.0 if kept < MOST_EXAMPLES // 4 else 0.1


def _words(program: Program) -> Iterator[tuple[Word, int]]:
    """Words of a program in order, with the row of each; -1 for begins and ends of loops."""
    loops = [r for r in program.regions if r.kind is RegionKind.LOOP and r.start < r.stop]
    starts, stops = [r.start for r in loops], [r.stop for r in loops]
    begins = np.bincount(starts, minlength=len(program) + 1).tolist()
    ends = np.bincount(stops, minlength=len(program) + 1).tolist()
    columns = (program.op, program.kind, program.collective, program.phase, carried(program))
    for row, word in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        yield from [(END, -1)] * ends[row]
        yield from [(BEGIN, -1)] * begins[row]
        yield word, row
    yield from [(END, -1)] * ends[len(program)]


@dataclass(eq=False)
class _Loop:
    start: int
    carries: list[int] = field(default_factory=list)


@dataclass(eq=False)
class _Writer:
    """A program in the making; `types` are (dtype, shape, bytes) of its rows."""

    mesh: Mesh
    depth: int
    rng: np.random.Generator
    types: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)
    loops: list[_Loop] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.builder = ProgramBuilder(self.mesh)
        self.axes = long_axes(self.mesh)

    def write(
        self, word: Word, examples: Mapping[Word, Sequence[tuple[Row, tuple[int, ...]]]]
    ) -> None:
        """One more word. Loops in too many loops, and ends without begin, are passed over."""
        if word == BEGIN:
            if len(self.loops) < MOST_LOOPS:
                trips = self.depth if not self.loops else 1
                self.builder.begin_region(RegionKind.LOOP, max(trips, 1))
                self.loops.append(_Loop(len(self.builder)))
        elif word == END:
            if self.loops and len(self.builder) > self.loops[-1].start:
                self._end_loop()
        else:
            known = examples[word]
            self._row(*known[int(self.rng.integers(len(known)))], is_carried=bool(word[-1]))

    def end(self) -> Program:
        """The program: open loops end."""
        while self.loops:
            self._end_loop()
        return self.builder.build()

    def _end_loop(self) -> None:
        """Each carried value is produced by a row of its type, its last or itself."""
        loop = self.loops.pop()
        pairs = []
        for row in loop.carries:
            alike = [r for r in range(row, len(self.types)) if self.types[r] == self.types[row]]
            pairs.append((row, alike[-1]))
        self.builder.end_region(pairs)

    def _row(self, row: Row, distances: Sequence[int], *, is_carried: bool) -> None:
        at = len(self.builder)
        deps = sorted({at - d for d in distances if d <= at})
        columns = columns_of(row)
        if deps and row.kind is not Kind.PARAMETER:
            columns |= self._typed(row, deps)
        if communicates(row):
            if not (deps and self.axes):
                return
            columns |= communication(row, self.mesh, self.axes, self.rng)
            if row.kind is Kind.COLLECTIVE:
                columns["comm_bytes"] = max(columns["operand_bytes"], 1)
        if is_carried and self.loops:
            self.loops[-1].carries.append(at)
        self.builder.add(row.opcode, row.kind, deps=deps, **columns)
        self.types.append((columns["dtype"], columns["shape"], columns["result_bytes"]))

    def _typed(self, row: Row, deps: Sequence[int]) -> dict[str, Any]:
        """The type of the first operand; FLOPs for each element as of the training row."""
        dtype, shape, size = self.types[deps[0]]
        elements, before = math.prod(shape), math.prod(row.shape)
        found: dict[str, Any] = {"dtype": dtype, "shape": shape, "result_bytes": size}
        read = sum(self.types[d][2] for d in deps)
        found["operand_bytes"] = read if row.kind >= Kind.COMPUTE else 0
        if row.op in ELEMENTWISE and row.kind is Kind.COMPUTE:
            found["flops"] = row.flops // max(before, 1) * elements
            found["result_bytes"] = bytes_of_type(dtype, shape)
        return found
