"""Whose value each row has: its own, that of the row it views, or what a loop has made.

And what loops, branches and operators that change their operands mean for who reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flint.ir.columns import is_any
from flint.ir.op_class import MERGED, OpClass
from flint.ir.program import Collective, Flag, Int64s, Kind, Phase, Program, RegionKind

# What loops and branches mean for who reads what, and for how long.


@dataclass(frozen=True, slots=True)
class Carry:
    """A value that a loop carries: `row` stands for it in the body, `produced` is its next value.

    `initial` is the row outside the loop that it begins as, or -1.
    """

    row: int
    produced: int
    region: int
    initial: int


@dataclass(eq=False)
class Nesting:
    """Regions of a program, answered quickly for many rows. Built by `nesting`."""

    program: Program
    carries: dict[int, Carry] = field(default_factory=dict)
    given_on: dict[tuple[int, int], Carry] = field(default_factory=dict)
    chains: list[tuple[int, ...]] = field(default_factory=list)
    _reads: dict[tuple[int, int], int] = field(default_factory=dict)

    def seen_from(self, row: int, reader_region: int) -> Carry | None:
        """The carried value that `row`, read from `reader_region`, is the last value of, or None.

        Of several loops that `row` leaves, the outermost that carries it counts.
        """
        region = int(self.program.region[row])
        if region == reader_region or region < 0:
            return None
        outside = self.chains[reader_region]
        found = None
        for index in self.chains[region]:
            if index in outside:
                break
            found = self.given_on.get((index, row), found)
        return found

    def last_moment(self, reader: int, reader_region: int, born_region: int) -> int:
        """When `reader` has read a value for the last time in a step.

        A loop around the reader, and not around where the value was made, reads it in each turn.
        """
        if reader_region == born_region:
            return 2 * reader
        key = (reader_region, born_region)
        if key not in self._reads:
            self._reads[key] = self._outermost_loop(*key)
        index = self._reads[key]
        return 2 * reader if index < 0 else 2 * self.program.regions[index].stop - 1

    def _outermost_loop(self, reader_region: int, born_region: int) -> int:
        around_both = self.chains[born_region]
        outermost = -1
        for index in self.chains[reader_region]:
            if index in around_both:
                break
            if self.program.regions[index].kind is RegionKind.LOOP:
                outermost = index
        return outermost


def nesting(program: Program) -> Nesting:
    """The nesting of a program."""
    found = Nesting(program)
    for index, region in enumerate(program.regions):
        outer = found.chains[region.parent] if region.parent >= 0 else ()
        found.chains.append((index, *outer))
        for row, produced in region.carries:
            carry = Carry(row, produced, index, _initial(program, row, region.start))
            found.carries[row] = carry
            found.given_on.setdefault((index, produced), carry)
    found.chains.append(())  # the answer for region -1
    return found


def _initial(program: Program, row: int, start: int) -> int:
    alias = int(program.alias[row])
    if 0 <= alias < start:
        return alias
    return next((d for d in program.dependencies(row).tolist() if d < start), -1)


@dataclass(frozen=True, eq=False)
class RowValues:
    """Values of a program: number i is what row i makes, n + j what `changing[j]` ends as.

    `of_row[i]` is the value of row i. `changing` are the carried values that their loops change,
    those of inner loops first; what a loop gives on as it was is a view of its initial value.
    """

    nesting: Nesting
    of_row: list[int]
    changing: list[Carry]
    #: Number of the value that a carried row ends as.
    last_of: dict[int, int]

    def __len__(self) -> int:
        return len(self.of_row) + len(self.changing)

    def read(self, row: int, reader_region: int) -> int:
        """The value that a reader in a region gets from a row."""
        carry = self.nesting.seen_from(row, reader_region)
        if carry is None:
            return self.of_row[row]
        return self.last_of.get(carry.row, self.of_row[carry.row])

    def born_region(self, value: int) -> int:
        """The region in which a value is made; what a loop ends as is there outside it."""
        program = self.nesting.program
        if value < len(self.of_row):
            return int(program.region[value])
        return program.regions[self.changing[value - len(self.of_row)].region].parent


def values(program: Program) -> RowValues:
    """Find the value of each row, in row order; a loop's carried values when it has ended."""
    found = RowValues(nesting(program), list(range(len(program))), [], {})
    sees = _what_views_see(program)
    ending = sorted(range(len(program.regions)), key=lambda i: (program.regions[i].stop, -i))
    regions = program.region.tolist()
    for row in range(len(program)):
        while ending and program.regions[ending[0]].stop <= row:
            _end_loop(found, ending.pop(0))
        target = int(sees[row])
        if target >= 0 and row not in found.nesting.carries:
            found.of_row[row] = _origin(found, found.read(target, regions[row]))
    for index in ending:
        _end_loop(found, index)
    for row in range(len(program)):
        found.of_row[row] = _origin(found, found.of_row[row])
    return found


def _end_loop(found: RowValues, index: int) -> None:
    """Which of its carried values a loop has changed."""
    for row, produced in found.nesting.program.regions[index].carries:
        carry = found.nesting.carries[row]
        given_on = _origin(found, found.read(produced, index))
        if given_on == row and carry.initial >= 0:
            parent = found.nesting.program.regions[index].parent
            found.of_row[row] = _origin(found, found.read(carry.initial, parent))
        else:
            found.last_of[row] = len(found)
            found.changing.append(carry)


def _origin(found: RowValues, value: int) -> int:
    of_row = found.of_row
    while value < len(of_row) and of_row[value] != value:
        value = of_row[value]
    return value


def _what_views_see(program: Program) -> NDArray[np.int64]:
    """For each row the row that it is a view of, or -1. A join is one of the branch that runs."""
    single = np.where(
        np.diff(program.dep_start) == 1, np.append(program.deps, -1)[program.dep_start[:-1]], -1
    )
    seen = np.where(program.alias >= 0, program.alias, single)
    views = (program.flags & Flag.VIEW) != 0
    views |= (program.kind == Kind.VALUE) & (program.alias >= 0)
    views &= (program.op != OpClass.PART) | updates_apart(program)
    sees = np.where(views, seen, -1).astype(np.int64)
    for row in np.flatnonzero(program.op == OpClass.JOIN).tolist():
        inside = [d for d in program.dependencies(row).tolist() if program.region[d] >= 0]
        inside = [d for d in inside if program.region[d] != program.region[row]]
        sees[row] = next((d for d in inside if program.trips[d] > 0), -1)
    return sees


def updates_apart(program: Program) -> NDArray[np.bool_]:
    """Rows that are one of several updates: views of what was there, that come after the row that changed it."""
    return np.asarray((program.op == OpClass.PART) & (np.diff(program.dep_start) == 2))


# Operators of PyTorch that change what they are given, and what they only come after.
#
# A row depends on what it reads, and on rows that read what it changes: those only have to be over.
# Which are which follows from the bytes that it reads.


@dataclass(frozen=True, eq=False)
class EagerUpdates:
    """Row i changes `changes[i]` in place, if it is there.

    `reads` says of each entry of `Program.deps` whether it is more than an order.
    """

    changes: dict[int, int]
    reads: NDArray[np.bool_]


def eager_updates(program: Program, values: RowValues, num_bytes: Int64s) -> EagerUpdates:
    """Find them, in row order; `num_bytes` are those of each row's value.

    What reads a value that a row changes comes before it: it is an order if all that the row reads
    is there without it. What gathers all of a value anew, after others read it, makes a new value:
    FSDP frees the memory in between (`resize_(0)`). Other memory that is written anew is kept.
    """
    found = EagerUpdates({}, np.ones(len(program.deps), dtype=np.bool_))
    if not ((program.flags & Flag.LAUNCHED) != 0).any():
        return found
    placed = ((program.flags & Flag.IN_PLACE) != 0) & (program.alias >= 0)
    given = (program.kind == Kind.PARAMETER) & ((program.flags & Flag.DONATED) != 0)
    gathered = (program.op == OpClass.UNPACK) | (program.collective == Collective.ALL_GATHER)
    allocated = (program.kind == Kind.VALUE) & (np.diff(program.dep_start) == 0)
    memory = set(np.flatnonzero((program.kind == Kind.PARAMETER) | allocated).tolist())
    finder = _UpdateFinder(program, values, set(np.flatnonzero(given).tolist()), found)
    whole = num_bytes.tolist()
    placed &= ~is_any(program, MERGED)
    for row in np.flatnonzero(program.kind != Kind.VALUE).tolist():
        if not placed[row]:
            finder.mark(row, finder.fences(row))
            continue
        before = values.read(int(program.alias[row]), int(program.region[row]))
        orders = finder.orders(row, before)
        orders |= finder.fences(row) - {before}  # it may work within what it changes
        renews = gathered[row] and program.result_bytes[row] >= _size(whole, before)
        if (
            renews
            and finder.first(before) not in memory
            and orders
            and finder.is_enough(row, orders | {before})
        ):
            orders.add(before)
        else:
            found.changes[row] = before
            whole[row] = max(_size(whole, before), whole[row])
        finder.mark(row, orders)
    return found


def _size(whole: list[int], value: int) -> int:
    return whole[value] if value < len(whole) else 0


@dataclass(frozen=True, eq=False)
class _UpdateFinder:
    program: Program
    values: RowValues
    donated: set[int]
    found: EagerUpdates

    def mark(self, row: int, orders: set[int]) -> None:
        """Say that `row` only comes after some of its dependencies."""
        start = int(self.program.dep_start[row])
        for place, value in enumerate(self.read(row) if orders else ()):
            self.found.reads[start + place] = value not in orders

    def fences(self, row: int) -> set[int]:
        """Values of which `row` only waits for, on its stream or another: what others have is enough."""
        program, orders = self.program, set[int]()
        for d, value in zip(program.dependencies(row).tolist(), self.read(row), strict=True):
            waits = program.kind[d] == Kind.COLLECTIVE or program.stream[d] > 0
            waits &= program.kind[d] != Kind.VALUE  # who reads a view reads it
            if waits and self.is_enough(row, {*orders, value}):
                orders.add(value)
        return orders

    def first(self, value: int) -> int:
        """The value that others were made of in place, up to this one."""
        while value in self.found.changes:
            value = self.found.changes[value]
        return value

    def read(self, row: int) -> list[int]:
        """The values of a row's dependencies."""
        region = int(self.program.region[row])
        return [self.values.read(d, region) for d in self.program.dependencies(row).tolist()]

    def orders(self, row: int, before: int) -> set[int]:
        """Values of which `row` only waits for, as they were made of what it changes.

        A gradient may be too, that of a convolution's weight: then what the forward pass made.
        """
        depends = set(self.read(row))
        changed = self.changed_beside(row, before)
        changed |= {v for v in depends if self.first(v) in self.donated}
        made = {v for v in depends - changed if v < len(self.program)}
        made = {v for v in made if not changed.isdisjoint(self.read(v))}
        forward = {v for v in made if self.program.phase[v] == Phase.FORWARD}
        whole = next((some for some in (made, forward) if self.is_enough(row, some)), set())
        return self.with_others(row, whole, made)

    def with_others(self, row: int, orders: set[int], others: set[int]) -> set[int]:
        """`orders`, and of `others` those that are too small for what `row` reads, if all are."""
        sizes = self.program.result_bytes[self.program.dependencies(row)].tolist()
        there = dict(sorted(zip(self.read(row), sizes, strict=True)))  # of views the largest
        left = sum(b for v, b in there.items() if v not in orders) - self.program.operand_bytes[row]
        small = {v for v in others - orders if there[v] <= left}
        return orders | small if sum(there[v] for v in small) <= left else orders

    def changed_beside(self, row: int, before: int) -> set[int]:
        """The oldest values, not made of each other, up to the bytes that `row` writes."""
        sizes = self.program.result_bytes
        found, left = {before}, int(sizes[row])
        for value in [before, *sorted(set(self.read(row)) - {before})]:
            size = int(sizes[value]) if value < len(self.program) else left + 1
            if size <= left and found.isdisjoint(self.read(value)):
                found.add(value)
                left -= size
        return found

    def is_enough(self, row: int, without: set[int]) -> bool:
        """Whether a row's other dependencies have all the bytes that it reads."""
        reads = self.program.dependencies(row).tolist()
        pairs = zip(reads, self.read(row), strict=True)
        there = sum(int(self.program.result_bytes[d]) for d, v in pairs if v not in without)
        return there >= int(self.program.operand_bytes[row])
