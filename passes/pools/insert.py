"""New rows in the middle of a program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flint.ir.builder import ProgramBuilder
from flint.ir.program import Program, RegionKind


@dataclass(frozen=True)
class Insertion:
    """Rows that go before row `before` of a program, inside its region `region`.

    `rows` are the columns of each, as `ProgramBuilder.add` takes them; all depend on the rows
    `reads` and share storage with `alias`, and the rows `readers` depend on all of them. With a
    `trip_count` they are a loop of their own, called `name`.
    """

    before: int
    region: int
    rows: tuple[dict[str, Any], ...]
    reads: tuple[int, ...] = ()
    readers: tuple[int, ...] = ()
    alias: int = -1
    trip_count: int = 0
    name: str = ""


def inserted(program: Program, insertions: Sequence[Insertion]) -> Program:
    """A copy of `program` with new rows; those before one row keep the order that they have here.

    At the end of a region, what goes inside it has to come before what goes after it.
    """
    copy = _Copy(program, insertions)
    for row in range(len(program) + 1):
        for insertion in copy.before.get(row, ()):
            copy.insert(insertion)
        if row < len(program):
            copy.row(row)
    return copy.builder.build()


class _Copy:
    def __init__(self, program: Program, insertions: Sequence[Insertion]) -> None:
        self.program = program
        self.builder = ProgramBuilder(program.mesh)
        self.before: dict[int, list[Insertion]] = defaultdict(list)
        for insertion in insertions:
            self.before[insertion.before].append(insertion)
        self.rows: list[int] = []
        self.extra: dict[int, list[int]] = defaultdict(list)
        self.open: list[int] = []

    def insert(self, insertion: Insertion) -> None:
        self._enter(insertion.region, insertion.before)
        deps = [self.rows[r] for r in insertion.reads]
        alias = self.rows[insertion.alias] if insertion.alias >= 0 else -1
        if insertion.trip_count:
            self.builder.begin_region(RegionKind.LOOP, insertion.trip_count, name=insertion.name)
        for columns in insertion.rows:
            new = self.builder.add(deps=deps, alias=alias, **columns)
            for reader in insertion.readers:
                self.extra[reader].append(new)
        if insertion.trip_count:
            self.builder.end_region()

    def row(self, number: int) -> None:
        """Copy one row."""
        old = self.program.row(number)
        self._enter(old.region, number)
        columns = old._asdict()
        for computed in ("number", "opcode", "kind", "region", "deps", "alias"):
            del columns[computed]
        deps = [self.rows[d] for d in old.deps] + self.extra.get(number, [])
        alias = self.rows[old.alias] if old.alias >= 0 else -1
        self.rows.append(self.builder.add(old.opcode, old.kind, deps=deps, alias=alias, **columns))

    def _enter(self, region: int, number: int) -> None:
        """Close the regions that end here and open those around `region`."""
        wanted: list[int] = []
        while region >= 0:
            wanted.append(region)
            region = self.program.regions[region].parent
        while self.open and self.open[-1] not in wanted:
            self._leave(number)
        for index in reversed(wanted):
            if index not in self.open:
                r = self.program.regions[index]
                self.builder.begin_region(
                    r.kind,
                    r.trip_count,
                    name=r.name,
                    location=r.location,
                    choice=r.choice,
                    barrier=r.barrier,
                )
                self.open.append(index)

    def _leave(self, number: int) -> None:
        region = self.program.regions[self.open.pop()]
        assert region.stop <= number, "a row goes out of a region that has not ended"
        self.builder.end_region([(self.rows[c], self.rows[p]) for c, p in region.carries])
