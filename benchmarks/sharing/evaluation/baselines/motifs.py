"""Motifs put together: pieces of training programs, cut at the borders of loops.

A piece is a loop with all that is in it, or rows between two loops, at most `LONGEST` of them. Pieces
are drawn until there are as many rows as asked for. What a piece reads from outside is a row of the
same type that is there already, or a new parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from benchmarks.sharing.evaluation.baselines.rows import (
    columns_of,
    communicates,
    communication,
    long_axes,
)
from benchmarks.sharing.evaluation.corpus import Capture, largest_program
from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program, RegionKind
from flint.ir.workload import Workload
from flint.tools.share.conditions import Conditions

#: Rows of a piece between loops, and rows where nothing is asked for.
LONGEST, _USUAL_ROWS = 200, 1000
#: How often what is read from outside is a row that is there, if one has the type.
REUSED = 0.8

Type = tuple[str, tuple[int, ...], int]


@dataclass(frozen=True, slots=True, eq=False)
class Motif:
    """Rows `start:stop` of a program."""

    program: Program
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, eq=False)
class Motifs:
    """Draws pieces, and makes one program of them."""

    pieces: Sequence[Motif]

    def sample(self, conditions: Conditions, seed: int) -> Workload:
        """A program of about as many rows as asked for, on the mesh asked for."""
        rng = np.random.default_rng(seed)
        wanted, chosen, rows = conditions.rows or _USUAL_ROWS, [], 0
        while rows < wanted:
            piece = self.pieces[int(rng.integers(len(self.pieces)))]
            chosen.append(piece)
            rows += len(piece)
        mesh = conditions.mesh or Mesh.parse("1")
        return Workload.single(_Joiner(mesh, conditions.depth or 1, rng).joined(chosen))


def train_motifs(captures: Sequence[Capture], seed: int) -> Motifs:
    """All pieces of the training programs."""
    return Motifs([m for c in captures for m in motifs_of(largest_program(c.workload))])


def motifs_of(program: Program) -> list[Motif]:
    """A program cut at the borders of its outermost loops; parameters are of no piece."""
    first = int((program.kind == Kind.PARAMETER).sum())
    found, at = [], first
    for region in program.regions:
        if region.parent < 0 and region.start < region.stop and region.start >= first:
            found += _between(program, at, region.start)
            found.append(Motif(program, region.start, region.stop))
            at = region.stop
    return [*found, *_between(program, at, len(program))]


def _between(program: Program, start: int, stop: int) -> list[Motif]:
    cuts = [*range(start, stop, LONGEST), stop]
    return [Motif(program, a, b) for a, b in pairwise(cuts) if a < b]


@dataclass(eq=False)
class _Joiner:
    """What becomes of pieces: `plan` says what each row reads, parameters are known at the end."""

    mesh: Mesh
    depth: int
    rng: np.random.Generator
    parameters: list[Type] = field(default_factory=list)
    plan: list[list[int]] = field(default_factory=list)  # ~p: parameter p
    by_type: dict[Type, list[int]] = field(default_factory=lambda: defaultdict(list))

    def joined(self, pieces: Sequence[Motif]) -> Program:
        """One program of all pieces."""
        for piece in pieces:
            self._link(piece)
        builder = ProgramBuilder(self.mesh)
        for dtype, shape, size in self.parameters:
            builder.add("parameter", Kind.PARAMETER, dtype=dtype, shape=shape, result_bytes=size)
        for piece in pieces:
            self._write(builder, piece)
        return builder.build()

    def _link(self, piece: Motif) -> None:
        """What the rows of a piece read: rows of it, and rows or parameters for those outside."""
        p, base, outside = piece.program, len(self.plan), dict[int, int]()
        for row in range(piece.start, piece.stop):
            reads = []
            for read in p.dependencies(row).tolist():
                if read >= piece.start:
                    reads.append(base + read - piece.start)
                    continue
                if read not in outside:
                    outside[read] = self._found(_type(p, read))
                reads.append(outside[read])
            self.plan.append(reads)
        for row in range(piece.start, piece.stop):
            if p.region[row] < 0:
                self.by_type[_type(p, row)].append(base + row - piece.start)

    def _found(self, wanted: Type) -> int:
        there = self.by_type.get(wanted)
        if there and self.rng.random() < REUSED:
            return there[-1]
        self.parameters.append(wanted)
        return ~(len(self.parameters) - 1)

    def _write(self, builder: ProgramBuilder, piece: Motif) -> None:
        p, axes, first = piece.program, long_axes(self.mesh), len(self.parameters)
        offset = len(builder) - piece.start
        begins = _begins(piece)
        open_regions: list[int] = []
        for row in range(piece.start, piece.stop):
            self._close(builder, p, open_regions, row, offset)
            self._open(builder, p, open_regions, begins.get(row, ()))
            found = p.row(row)
            columns, kind = columns_of(found), found.kind
            if communicates(found) and axes:
                columns |= communication(found, self.mesh, axes, self.rng)
            elif communicates(found):
                kind, columns["operand_bytes"], columns["op"] = Kind.VALUE, 0, OpClass.VALUE
            reads = self.plan[row + offset - first]
            deps = [first + d if d >= 0 else ~d for d in reads]
            builder.add(found.opcode, kind, deps=deps, **columns)
        self._close(builder, p, open_regions, piece.stop, offset)

    def _open(
        self, builder: ProgramBuilder, p: Program, inside: list[int], begins: Sequence[int]
    ) -> None:
        """Loops that run again run as often as the layers asked for, if no loop is around them."""
        for number in begins:
            region = p.regions[number]
            repeats = region.kind is RegionKind.LOOP and region.trip_count > 1
            trips = self.depth if repeats and not inside else region.trip_count
            builder.begin_region(region.kind, trips, choice=region.choice, barrier=region.barrier)
            inside.append(number)

    def _close(
        self, builder: ProgramBuilder, p: Program, inside: list[int], row: int, offset: int
    ) -> None:
        while inside and p.regions[inside[-1]].stop == row:
            region = p.regions[inside.pop()]
            builder.end_region([(a + offset, b + offset) for a, b in region.carries])


def _begins(piece: Motif) -> Mapping[int, list[int]]:
    """By row the regions that begin there, outer ones first."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, region in enumerate(piece.program.regions):
        if piece.start <= region.start < region.stop <= piece.stop:
            found[region.start].append(number)
    return found


def _type(program: Program, row: int) -> Type:
    return (
        program.dtypes[program.dtype[row]],
        program.shapes[program.shape[row]],
        int(program.result_bytes[row]),
    )
