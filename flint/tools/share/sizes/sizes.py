"""Sizes of a workload: the variables that its dimensions are made of, and the workload with other ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.op_class import Collective, OpClass
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.sizes.columns import Columns, SizeTable
from flint.tools.share.sizes.expression import Expression, Factor
from flint.tools.share.sizes.infer import freeze_other_trips, freeze_saved, inferred, saved_terms
from flint.tools.share.sizes.rows import Rows
from flint.tools.share.sizes.symbols import Symbols
from flint.tools.share.sizes.work import Sum, work_of

# Numbers of a workload's metadata that follow from sizes: what stages of a pipeline save.

_SAVED = "saved_bytes_per_microbatch"


def saved_sums(workload: Workload, programs: Sequence[Rows]) -> dict[tuple[int, int], Sum]:
    """Bytes that a stage saves for a microbatch, by its position and its number there.

    What its program reads again must be as much; otherwise that stays as it is.
    """
    about = workload.metadata.get("pipeline") or {}
    found: dict[tuple[int, int], Sum] = {}
    for position, stages in enumerate(about.get("positions") or []):
        rows = _program_at(workload, programs, str(about.get("axis")), position)
        for chunk, stage in enumerate(stages):
            if _SAVED not in stage:
                continue
            number = int(stage[_SAVED])
            terms = None if rows is None else saved_terms(rows, chunk)
            if rows is not None and terms is not None:
                if sum(map(rows.symbols.value, terms)) == number:
                    found[position, chunk] = tuple(terms)
                    continue
                freeze_saved(rows)
            found[position, chunk] = ((number, ()),)
    return found


def _program_at(
    workload: Workload, programs: Sequence[Rows], axis: str, position: int
) -> Rows | None:
    at = {c.program for c in workload.classes if position in c.where.get(axis, (position,))}
    return programs[at.pop()] if len(at) == 1 else None


def resized_metadata(
    metadata: Mapping[str, Any], saved: Mapping[tuple[int, int], int]
) -> dict[str, Any]:
    """The metadata with other bytes that stages save, by position and number there."""
    found = dict(metadata)
    if saved:
        about = dict(found["pipeline"])
        about["positions"] = [
            [
                stage | {_SAVED: saved[position, chunk]} if (position, chunk) in saved else stage
                for chunk, stage in enumerate(stages)
            ]
            for position, stages in enumerate(about["positions"])
        ]
        found["pipeline"] = about
    return found


@dataclass(frozen=True, slots=True)
class Variable:
    """A size that may be another one: of one device.

    `layers`: whether it is the trip count of a loop. `uses`: how many rows of all programs have it in
    their shape.
    """

    number: int
    value: int
    layers: bool
    uses: int


@dataclass(frozen=True, eq=False)
class Sizes:
    """Of which variables the sizes of a workload are made, as far as its columns tell.

    What rows do not explain is constant. So any values of the variables make a workload that is as
    consistent as the original, but not every one that its source could make. `table` and `columns` say how each
    number of each row follows; `pinned` are axes whose size is in a constant, `saved` the entries of what stages
    of a pipeline save. `unexplained` are rows of each program that do not fit what they read, or whose numbers
    follow from nothing.
    """

    workload: Workload
    variables: tuple[Variable, ...]
    table: SizeTable
    columns: tuple[Columns, ...]
    pinned: frozenset[AxisRef]
    saved: Mapping[tuple[int, int], int]
    unexplained: tuple[frozenset[int], ...]

    @classmethod
    def of(cls, workload: Workload) -> Sizes:
        """Read a workload: about 0.1 ms a row."""
        symbols, programs = inferred(workload)
        saved = saved_sums(workload, programs)
        works = [[work_of(rows, row) for row in range(len(rows.program))] for rows in programs]
        freeze_other_trips(programs)
        for rows in programs:
            rows.end_microbatches()
        numbers = _numbers(symbols, programs)
        table = SizeTable(symbols, numbers)
        columns = tuple(
            Columns.of(rows, of_rows, table) for rows, of_rows in zip(programs, works, strict=True)
        )
        values = {n: symbols.value((1, (s,))) for s, n in numbers.items()}
        return cls(
            workload,
            _variables(values, columns, table),
            table,
            columns,
            frozenset(symbols.pinned),
            {where: table.sum(terms) for where, terms in saved.items()},
            tuple(frozenset(rows.unexplained) for rows in programs),
        )

    # reading --------------------------------------------------------------------------------------

    def dimension(self, program: int, row: int) -> tuple[Expression, ...]:
        """What the dimensions of a row's first result are made of."""
        columns = self.columns[program]
        return tuple(self.table.entries[e] for e in columns.shapes[int(columns.shape[row])])

    @cached_property
    def frozen(self) -> tuple[int, ...]:
        """Programs none of whose sizes can be changed: measured ones, and what nothing explains."""
        return tuple(
            number
            for number, columns in enumerate(self.columns)
            if not any(self.table.entries[e].variables for shape in columns.shapes for e in shape)
        )

    @property
    def unexplained_ops(self) -> frozenset[OpClass]:
        """Op classes of unexplained rows: a workload that was made of another one has no more of them."""
        pairs = zip(self.workload.programs, self.unexplained, strict=True)
        return frozenset(OpClass(int(p.op[row])) for p, rows in pairs for row in rows)

    def values(
        self, values: Mapping[int, int] | None = None, mesh: Mesh | None = None
    ) -> dict[Factor, int]:
        """Values of all variables and axes, with those that are given instead of the original's.

        Raises FlintError FL905 for a variable that there is not, and for a size below 1.
        """
        found: dict[Factor, int] = {v.number: v.value for v in self.variables}
        for number, value in (values or {}).items():
            if number not in found:
                raise FlintError("FL905", f"the workload has no variable {number}")
            if value < 1:
                raise FlintError(
                    "FL905", f"variable {number} cannot be {value}: sizes are 1 or more"
                )
            found[number] = int(value)
        shape = mesh or self.workload.mesh
        axes = {f for e in self.table.entries for f in e.factors if isinstance(f, AxisRef)}
        return found | {axis: shape.axis_size(axis) for axis in axes}

    # changing -------------------------------------------------------------------------------------

    def resized(
        self,
        values: Mapping[int, int],
        mesh: Mesh | None = None,
        around: frozenset[str] = frozenset(),
    ) -> Workload:
        """The workload with other values of variables, by number, and sizes of axes.

        Shapes, bytes, FLOPs, dims, payloads and trip counts follow; structure and names stay. A mesh
        has the same axes with other sizes; of axes `around` which permutations go, the caller knows how
        often they do. Raises FlintError FL905 for values that do not fit, and for a mesh that the workload
        cannot be told for.
        """
        chosen = mesh or self.workload.mesh
        if chosen != self.workload.mesh:
            self._require_mesh(chosen, around)
        entries = self.table.values(self.values(values, chosen))
        programs = tuple(c.resized(entries, chosen) for c in self.columns)
        saved = {where: entries[e] for where, e in self.saved.items()}
        metadata = resized_metadata(self.workload.metadata, saved)
        return replace(self.workload, mesh=chosen, programs=programs, metadata=metadata)

    def _require_mesh(self, mesh: Mesh, around: frozenset[str]) -> None:
        own = self.workload.mesh
        if mesh.names != own.names:
            raise FlintError(
                "FL905", f"a mesh of axes {', '.join(own.names)} is needed, not {mesh}"
            )
        changed = {n for n, a, b in zip(own.names, own.sizes, mesh.sizes, strict=True) if a != b}
        if len(self.workload.classes) != 1 or self.workload.classes[0].ranks:
            raise FlintError(
                "FL905", "the mesh of a workload with several rank classes stays as it is"
            )
        if any(size == 1 for n, size in mesh.shape.items() if n in changed):
            raise FlintError(
                "FL905", "an axis cannot become 1: its collectives would have no members"
            )
        held = {ref.name for ref in self.pinned}
        for p in self.workload.programs:
            held |= _listed_axes(p) | (_moved_axes(p) - around)
        if held & changed:
            axes = ", ".join(sorted(held & changed))
            raise FlintError("FL905", f"axes whose size is in constants cannot change: {axes}")


def _listed_axes(program: Program) -> set[str]:
    """Axes that groups have in part or list ranks of, and those of routes that list pairs."""
    found = {a.name for g in program.groups for a in g.axes if a.size is not None or g.is_listed}
    found |= {a.name for r in program.routes for a in r.axes if a.size is not None or r.pairs}
    listed = any(g.is_listed for g in program.groups) or any(not r.axes for r in program.routes)
    return found | set(program.mesh.names) if listed else found


def _moved_axes(program: Program) -> set[str]:
    """Axes along which permutations and messages run: how often they do may follow from their size."""
    if (
        not (program.collective == Collective.PERMUTE).any()
        and not (program.kind >= Kind.SEND).any()
    ):
        return set()
    return {a.name for r in program.routes for a in r.axes}


def _numbers(symbols: Symbols, programs: Iterable[Rows]) -> dict[int, int]:
    """Free symbols, numbered in the order in which rows use them."""
    found: dict[int, int] = {}
    for rows in programs:
        for dims in rows.dims:
            for term in dims:
                for symbol in sorted(symbols.free_symbols(term)):
                    found.setdefault(symbol, len(found))
    return found


def _variables(
    values: Mapping[int, int], columns: Iterable[Columns], table: SizeTable
) -> tuple[Variable, ...]:
    uses = dict.fromkeys(values, 0)
    loops: set[int] = set()
    for of_program in columns:
        counts = np.bincount(of_program.shape, minlength=len(of_program.shapes)).tolist()
        for shape, count in zip(of_program.shapes, counts, strict=True):
            for number in {v for e in shape for v in table.entries[e].variables}:
                uses[number] += count
        loops |= {v for t in of_program.trips for v in table.entries[t].variables}
    return tuple(Variable(n, value, n in loops, uses[n]) for n, value in values.items())
