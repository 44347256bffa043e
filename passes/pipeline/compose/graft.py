"""Copy a part into the program that is being composed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from flint.ir.builder import ProgramBuilder
from flint.ir.dims import NO_DIMS, DimsRow
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Phase, Program
from flint.passes.pipeline.split.parts import Key, StageProgram

#: So many of a unit's last rows hold back the unit after it. Rows before them were ready earlier,
#: and a device computes one thing at a time; with all of them, dependencies would be most of a trace.
LAST_ROWS = 2


@dataclass
class Grafted:
    """Where the rows of a part went: `rows[i]` is the new row of row i."""

    part: StageProgram
    rows: dict[int, int] = field(default_factory=dict)

    def output(self, key: Key) -> int:
        """The new row that holds an output."""
        return self.rows[self.part.outputs[key]]

    def last_rows(self) -> list[int]:
        """The last new rows that work and that no work of the part follows: then it has ended."""
        program = self.part.program
        start, deps = program.dep_start.tolist(), program.deps.tolist()
        works = (program.kind >= Kind.COMPUTE).tolist()
        followed: set[int] = set()  # also through rows that do no work
        for row in reversed(range(len(program))):
            if works[row] or row in followed:
                followed.update(deps[start[row] : start[row + 1]])
        ends = [row for row in self.rows if works[row] and row not in followed]
        return [self.rows[row] for row in ends[-LAST_ROWS:]]


#: Called with a row of the part once it, and every loop that it is in, has been copied.
After = Callable[[int, int], None]


def graft(
    builder: ProgramBuilder,
    part: StageProgram,
    inputs: Mapping[Key, int],
    *,
    turn: int = -1,
    only: Collection[int] | None = None,
    after: After | None = None,
) -> Grafted:
    """Append the rows of `part`, reading `inputs`; rows that wait for no other wait for `turn`.

    `only` restricts the copy to some rows, closed under what they depend on inside the part.
    """
    copy = _Copy(builder, part, turn, after)
    copy.done.rows.update({row: inputs[key] for key, row in part.inputs.items() if key in inputs})
    for row in range(len(part.program)):
        if only is None or row in only:
            copy.row(row)
    copy.close_before(len(part.program))
    return copy.done


class _Copy:
    def __init__(
        self, builder: ProgramBuilder, part: StageProgram, turn: int, after: After | None
    ) -> None:
        self.builder = builder
        self.program: Program = part.program
        self.inputs = set(part.inputs.values())
        self.deps: list[int] = part.program.deps.tolist()
        self.dep_start: list[int] = part.program.dep_start.tolist()
        self.aliases: list[int] = part.program.alias.tolist()
        self.regions: list[int] = part.program.region.tolist()
        self.turn = turn
        self.after = after
        self.done = Grafted(part)
        self.base = len(builder)
        self.open: list[int] = []
        self.waiting: list[int] = []

    def row(self, number: int) -> None:
        self.close_before(number)
        if number in self.inputs:
            assert number in self.done.rows, f"nothing is given for {self._key_of(number)}"
            return
        self._open_around(number)
        self.done.rows[number] = self._add(number)
        if not self.open:
            self._tell(number)
        else:
            self.waiting.append(number)

    def close_before(self, number: int) -> None:
        """End the regions that stop at or before `number`."""
        regions = self.program.regions
        while self.open and regions[self.open[-1]].stop <= number:
            region, rows = regions[self.open.pop()], self.done.rows
            kept = [(c, p) for c, p in region.carries if c in rows and p in rows]
            self.builder.end_region([(rows[c], rows[p]) for c, p in kept])
        if not self.open:
            waiting, self.waiting = self.waiting, []
            for row in waiting:
                self._tell(row)

    def _open_around(self, number: int) -> None:
        chain = []
        region = self.regions[number]
        while region >= 0 and region not in self.open:
            chain.append(region)
            region = self.program.regions[region].parent
        for index in reversed(chain):
            r = self.program.regions[index]
            choice = r.choice if r.choice < 0 else r.choice + self.base
            self.builder.begin_region(
                r.kind,
                r.trip_count,
                name=r.name,
                location=r.location,
                choice=choice,
                barrier=r.barrier,
            )
            self.open.append(index)

    def _add(self, number: int) -> int:
        rows = self.done.rows
        deps = [rows[d] for d in self.deps[self.dep_start[number] : self.dep_start[number + 1]]]
        if self.turn >= 0 and not any(d >= self.turn for d in deps):
            deps.append(self.turn)  # all rows after it wait for it
        alias = self.aliases[number]
        return self.builder.copy(self.program, number, deps, rows[alias] if alias >= 0 else -1)

    def _tell(self, number: int) -> None:
        if self.after is not None:
            self.after(number, self.done.rows[number])

    def _key_of(self, number: int) -> Key:
        return next(key for key, row in self.done.part.inputs.items() if row == number)


def add_value(
    builder: ProgramBuilder,
    opcode: str,
    like: Program,
    row: int,
    *,
    kind: Kind = Kind.VALUE,
    op: OpClass = OpClass.VALUE,
    deps: Collection[int] = (),
    name: str = "",
    phase: Phase = Phase.UNKNOWN,
    dims: DimsRow = NO_DIMS,
) -> int:
    """Append a row that holds a tensor of the type of row `row` of `like`, and does no work."""
    tensor = like.row(row)
    return builder.add(
        opcode,
        kind,
        op=op,
        deps=deps,
        dtype=tensor.dtype,
        shape=tensor.shape,
        result_bytes=tensor.result_bytes,
        name=name or tensor.name,
        scope=tensor.scope,
        cause=tensor.cause,
        phase=phase or tensor.phase,
        flags=tensor.flags if kind is Kind.PARAMETER else 0,
        dims=dims,
    )
