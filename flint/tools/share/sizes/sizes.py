"""Sizes of a workload: the variables that its dimensions are made of, and the workload with other ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.op_class import Collective, OpClass
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.sizes.columns import Columns, SizeTable
from flint.tools.share.sizes.expression import Expression, Factor
from flint.tools.share.sizes.infer import freeze_other_trips, inferred
from flint.tools.share.sizes.rows import Rows
from flint.tools.share.sizes.work import work_of


@dataclass(frozen=True, slots=True)
class Variable:
    """A size that may be another one: of one device.

    `layers`: whether it is the trip count of a loop. `uses`: how many rows have it in their shape.
    """

    number: int
    value: int
    layers: bool
    uses: int


@dataclass(frozen=True, eq=False)
class Sizes:
    """Of which variables the sizes of a workload of one program are made, as far as its columns tell.

    What rows do not explain is constant. So any values of the variables make a workload that is as
    consistent as the original, but not every one that its source could make. `table` and `columns` say how each
    number of each row follows; `pinned` are axes whose size is in a constant, `unexplained` rows that do not fit
    what they read, or whose numbers follow from nothing.
    """

    workload: Workload
    variables: tuple[Variable, ...]
    table: SizeTable
    columns: Columns
    pinned: frozenset[AxisRef]
    unexplained: frozenset[int]

    @classmethod
    def of(cls, workload: Workload) -> Sizes:
        """Read a workload: about 0.1 ms a row."""
        (program,) = workload.programs
        rows = inferred(program)
        works = [work_of(rows, row) for row in range(len(program))]
        freeze_other_trips(rows)
        numbers = _numbers(rows)
        table = SizeTable(rows.symbols, numbers)
        columns = Columns.of(rows, works, table)
        values = {n: rows.symbols.value((1, (s,))) for s, n in numbers.items()}
        variables = _variables(values, columns, table)
        pinned = frozenset(rows.symbols.pinned)
        return cls(workload, variables, table, columns, pinned, frozenset(rows.unexplained))

    # reading --------------------------------------------------------------------------------------

    def dimension(self, row: int) -> tuple[Expression, ...]:
        """What the dimensions of a row's first result are made of."""
        columns = self.columns
        return tuple(self.table.entries[e] for e in columns.shapes[int(columns.shape[row])])

    @property
    def unexplained_ops(self) -> frozenset[OpClass]:
        """Op classes of unexplained rows: a workload that was made of another one has no more of them."""
        return frozenset(OpClass(int(self.columns.program.op[row])) for row in self.unexplained)

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
        program = self.columns.resized(entries, chosen)
        return replace(self.workload, mesh=chosen, programs=(program,))

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
        p = self.columns.program
        held = {ref.name for ref in self.pinned} | _listed_axes(p) | (_moved_axes(p) - around)
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
    moves = (program.collective == Collective.PERMUTE).any() or (program.kind >= Kind.SEND).any()
    return {a.name for r in program.routes for a in r.axes} if moves else set()


def _numbers(rows: Rows) -> dict[int, int]:
    """Free symbols, numbered in the order in which rows use them."""
    found: dict[int, int] = {}
    for dims in rows.dims:
        for term in dims:
            for symbol in sorted(rows.symbols.free_symbols(term)):
                found.setdefault(symbol, len(found))
    return found


def _variables(
    values: Mapping[int, int], columns: Columns, table: SizeTable
) -> tuple[Variable, ...]:
    uses = dict.fromkeys(values, 0)
    counts = np.bincount(columns.shape, minlength=len(columns.shapes)).tolist()
    for shape, count in zip(columns.shapes, counts, strict=True):
        for number in {v for e in shape for v in table.entries[e].variables}:
            uses[number] += count
    loops = {v for t in columns.trips for v in table.entries[t].variables}
    return tuple(Variable(n, value, n in loops, uses[n]) for n, value in values.items())
