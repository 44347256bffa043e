"""Collectives of one kind and group joined into larger ones, as libraries and compilers do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from flint.ir.columns import consumers
from flint.ir.edit import Editor
from flint.ir.program import Collective, Flag, Int64s, Kind, Phase, Program
from flint.passes.base import Pass

#: Columns that add up.
_SUMS = ("flops", "result_bytes", "operand_bytes", "comm_bytes")


@dataclass(frozen=True)
class CombineCollectives(Pass):
    """Join collectives of one kind, group, type and region while they are at most `most_bytes`.

    Bytes are those of the result, as XLA counts them; a larger collective stays alone. `collectives` are the kinds, `phases` where (none: everywhere). Collectives are taken in
    program order. One joins those before it if there is a place in the program where all are ready
    and none is needed yet; the joined one stands at the first of theirs that is such a place.
    """

    name: ClassVar[str] = "combine-collectives"
    most_bytes: int
    collectives: tuple[Collective, ...] = (Collective.ALL_REDUCE,)
    phases: tuple[Phase, ...] = ()

    def apply(self, program: Program) -> Program:
        """Return the program with one row for each joined collective."""
        place = np.arange(len(program), dtype=np.int64)
        for rows in self._alike(program):
            for joined in _joined(program, rows, self.most_bytes):
                place[joined.rows] = joined.place
        return program if (place == np.arange(len(program))).all() else _merged(program, place)

    def _alike(self, program: Program) -> Iterator[list[int]]:
        """Rows that may be joined, in program order, by what they have to have in common."""
        chosen = (program.kind == Kind.COLLECTIVE) & (program.group >= 0)
        chosen &= np.isin(program.collective, self.collectives)
        if self.phases:
            chosen &= np.isin(program.phase, self.phases)
        found: dict[tuple[int, ...], list[int]] = {}
        columns = (program.region, program.collective, program.group, program.dtype)
        for row in np.flatnonzero(chosen).tolist():
            found.setdefault(tuple(int(c[row]) for c in columns), []).append(row)
        yield from (rows for rows in found.values() if len(rows) > 1)


@dataclass
class _Joined:
    """Collectives that become one. All are ready after row `ready`, and the first need is `need`."""

    rows: list[int] = field(default_factory=list)
    ready: int = -1
    need: int = 0
    total: int = 0

    @property
    def place(self) -> int:
        """The first of the rows at which all are ready."""
        return next(r for r in self.rows if r > self.ready)

    def join(self, row: int, ready: int, need: int, size: int, most: int) -> bool:
        """Take a row if it fits; whether it did."""
        after, before = max(self.ready, ready), min(self.need, need)
        place = next((r for r in (*self.rows, row) if r > after), before)
        if place >= before or self.total + size > most:
            return False
        self.rows.append(row)
        self.ready, self.need, self.total = after, before, self.total + size
        return True


def _joined(program: Program, rows: list[int], most: int) -> list[_Joined]:
    start, readers = consumers(program)
    found: list[_Joined] = []
    for row in rows:
        read = program.dependencies(row)
        ready = int(read.max()) if len(read) else -1
        mine = readers[start[row] : start[row + 1]]
        need = int(mine.min()) if len(mine) else len(program)
        size = int(program.result_bytes[row])
        needed = bool(found) and not set(found[-1].rows).isdisjoint(read.tolist())
        if needed or not (found and found[-1].join(row, ready, need, size, most)):
            found.append(_Joined([row], ready, need, size))
    return found


def _merged(program: Program, place: Int64s) -> Program:
    edit = Editor(program)
    edit.merge(place, sums=_SUMS)
    shared = np.flatnonzero(program.alias >= 0)
    edit.set(shared, alias=place[program.alias[shared]])
    joined = np.unique(place[place != np.arange(len(program))])
    edit.set(joined, alias=-1, flags=program.flags[joined] & ~np.uint16(Flag.IN_PLACE | Flag.VIEW))
    return edit.build().program


#: What collectives of a set have in common.
_Key = tuple[int, ...]


def independent(program: Program, kind: Collective, most_bytes: int) -> list[list[int]]:
    """Sets of two or more collectives of one kind, region, group, type and operator.

    None of a set needs another of it. Sets are filled one after the other, in program order, as
    XLA's combiners fill them, up to `most_bytes` of their results together.
    """
    needs = _needs(program, kind)
    size = program.result_bytes.tolist()
    found = []
    for rows in _alike(program, kind).values():
        left = rows
        while len(left) > 1:
            chosen, left = _independent(left, needs, size, most_bytes)
            if len(chosen) > 1:
                found.append(chosen)
                _join(chosen, needs)
    return found


def _independent(
    rows: list[int], needs: dict[int, int], size: list[int], most_bytes: int
) -> tuple[list[int], list[int]]:
    """Rows of which none needs another, greedily and up to so many bytes, and the rest."""
    chosen: list[int] = []
    rest: list[int] = []
    have = wanted = total = 0
    for at, row in enumerate(rows):
        if needs[row] & have or wanted >> row & 1:
            rest.append(row)
            continue
        total += size[row]
        if chosen and most_bytes is not None and total > most_bytes:
            return chosen, [*rest, *rows[at:]]
        chosen.append(row)
        have |= 1 << row
        wanted |= needs[row]
    return chosen, rest


def _join(rows: list[int], needs: dict[int, int]) -> None:
    """What needs one of the rows needs all, and what all of them need."""
    have = sum(1 << row for row in rows)
    wanted = 0
    for row in rows:
        wanted |= needs[row]
    for row, mask in needs.items():
        if mask & have:
            needs[row] = mask | have | wanted
    needs.update(dict.fromkeys(rows, wanted))


def _alike(program: Program, kind: Collective) -> dict[_Key, list[int]]:
    found: dict[_Key, list[int]] = {}
    summed = (program.kind == Kind.COLLECTIVE) & (program.collective == kind)
    columns = (program.region, program.group, program.dtype, program.opcode)
    for row in np.flatnonzero(summed).tolist():
        found.setdefault(tuple(int(c[row]) for c in columns), []).append(row)
    return found


def _needs(program: Program, kind: Collective) -> dict[int, int]:
    """For each collective of a kind, those that it needs, directly or not, as bits.

    What is read from a loop or branch needs all that is in it.
    """
    bits = {row for rows in _alike(program, kind).values() for row in rows}
    needs = [0] * len(program)
    inside = [0] * (len(program.regions) + 1)
    region = program.region.tolist()
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    chains = _chains(program)
    for row in range(len(program)):
        mask = 0
        for read in deps[start[row] : start[row + 1]]:
            left = [r for r in chains[region[read]] if r not in chains[region[row]]]
            mask |= inside[left[-1]] if left else needs[read] | (read in bits) << read
        needs[row] = mask
        for outer in chains[region[row]]:
            inside[outer] |= mask | (row in bits) << row
    return {row: needs[row] for row in bits}


def _chains(program: Program) -> list[tuple[int, ...]]:
    """For each region itself and those around it, from inside; none for -1."""
    found: list[tuple[int, ...]] = []
    for index, region in enumerate(program.regions):
        found.append((index, *(found[region.parent] if region.parent >= 0 else ())))
    return [*found, ()]
