"""What loops and branches mean for who reads what, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field

from flint.ir.program import Program, RegionKind


@dataclass(frozen=True, slots=True)
class Carry:
    """A value that a loop carries: `row` stands for it in the body, `produced` is its next value.

    `initial` is the row outside of the loop that it begins as, or -1.
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
