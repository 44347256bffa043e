"""A body while it is taken apart: no dead rows, and nothing read through a loop that only passes it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flint.ir.columns import Mask, is_any
from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program
from flint.passes.pipeline.split.parts import Key, PartitionedBody
from flint.passes.pipeline.split.reach import common_region, needed, producers
from flint.steps.captured import Port, Role

#: Arguments that differ from microbatch to microbatch.
MICROBATCH_ROLES = frozenset({Role.BATCH, Role.INPUT, Role.COTANGENT})


@dataclass(frozen=True, eq=False)
class OpenBody:
    """A program, what its PARAMETER rows are, and which rows hold what it gives."""

    program: Program
    arguments: Mapping[int, Key]
    results: Mapping[Key, int]

    def moved(
        self,
        edit: Editor,
        results: Mapping[Key, int] | None = None,
        arguments: Mapping[int, Key] | None = None,
    ) -> OpenBody:
        """The body after an edit, with other results and more arguments where given."""
        program, place = edit.build()
        given = {**self.arguments, **(arguments or {})}
        wanted = self.results if results is None else results
        return OpenBody(
            program,
            {int(place[row]): key for row, key in given.items() if place[row] >= 0},
            {key: int(place[row]) for key, row in wanted.items()},
        )

    def rows_of(self, *roles: Role) -> list[int]:
        """Rows of the arguments that have one of `roles`."""
        found = self.arguments.items()
        return [row for row, key in found if isinstance(key, Port) and key.role in roles]

    def varying(self) -> Mask:
        """Rows that are another value for each microbatch: its arguments, and random numbers."""
        return self.seeds(*MICROBATCH_ROLES) | is_any(self.program, OpClass.RANDOM)

    def seeds(self, *roles: Role) -> Mask:
        """A mask of `rows_of`."""
        mask = np.zeros(len(self.program), dtype=np.bool_)
        mask[self.rows_of(*roles)] = True
        return mask


def opened(body: PartitionedBody) -> OpenBody:
    """The live rows of a body. Arguments that no result needs are dropped too."""
    program = body.program
    passed = _passed_on(program)
    edit = Editor(program)
    for row in range(len(program)):
        deps = program.dependencies(row).tolist()
        if any(d in passed for d in deps):
            new = {d: _seen_from(program, passed, d, row) for d in deps}
            alias = int(program.alias[row])
            edit.change(row, deps=new.values(), alias=new.get(alias, -1))
    results: dict[Key, int] = {
        port: _seen_from(program, passed, row, -1)
        for port, row in zip(body.results, body.result_rows, strict=True)
    }
    arguments = dict(zip(body.argument_rows, body.arguments, strict=True))
    whole = OpenBody(program, arguments, {}).moved(edit, results)
    return alive(whole)


def alive(body: OpenBody) -> OpenBody:
    """The rows that results need."""
    keep = np.flatnonzero(needed(body.program, body.results.values())).tolist()
    return body.moved(Editor(body.program, keep))


def _passed_on(program: Program) -> dict[int, int]:
    """Carried rows that a loop passes on as they came, and the rows that they came from."""
    found = {}
    for carried, produced in producers(program).items():
        deps = program.dependencies(carried)
        if carried == produced and len(deps) == 1 and program.kind[carried] == Kind.VALUE:
            found[carried] = int(deps[0])
    return found


def _seen_from(program: Program, passed: Mapping[int, int], row: int, reader: int) -> int:
    """What `reader` (-1: from outside all loops) reads as `row`, around loops that pass it on."""
    while row in passed:
        inside = reader >= 0 and common_region(program, row, reader) == program.region[row]
        if inside:
            return row
        row = passed[row]
    return row
