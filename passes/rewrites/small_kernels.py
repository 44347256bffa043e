"""Kernels shorter than traces can say are merged with one that they run beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s
from flint.ir.columns import carried, yielded
from flint.ir.edit import Editor, passed_over
from flint.ir.program import Flag, Int64s, Kind, Program
from flint.passes.base import Pass

#: What a merged kernel takes over from the longest of its parts. `group` goes with the opcode:
#: a slice (`sdy.all_slice`) is a kernel that has one.
_OF_THE_LONGEST = (
    "opcode",
    "op",
    "dims",
    "product",
    "group",
    "dtype",
    "shape",
    "name",
    "scope",
    "location",
    "cause",
    "phase",
)


@dataclass(frozen=True, eq=False)
class MergeSmallKernels(Pass):
    """Merge kernels below `least_ns` with the one before or after them in the same region.

    `duration_ns` has one entry a row, 0 for what is not to be merged. A kernel joins the one before
    it if one of the two is small, together they take at most `most_ns`, nothing between them reads
    the first, and the second waits for no communication that kernels before it in the region have
    not waited for: merging delays nothing by more than `most_ns`. flops, bytes and time add up,
    and the name is that of the longest part.
    """

    name: ClassVar[str] = "merge-small-kernels"
    duration_ns: Float64s
    least_ns: float = 1e3
    most_ns: float = 20e3

    def apply(self, program: Program) -> Program:
        """Return the program with one row for what is merged."""
        return self.merged(program)[0]

    def merged(self, program: Program) -> tuple[Program, Float64s]:
        """The program and the duration of each of its rows, in ns."""
        merged, durations = self.merged_with(program, ())
        return merged, durations[0]

    def merged_with(
        self, program: Program, others: Sequence[Float64s]
    ) -> tuple[Program, list[Float64s]]:
        """The same, with the durations of the rows by `others`, too: they are added up alike."""
        duration = self.duration_ns
        if not ((duration > 0) & (duration < self.least_ns)).any():
            return program, [duration, *others]
        plain = (program.kind == Kind.VALUE) & ~carried(program) & ~yielded(program)
        program, duration = passed_over(program, plain), duration[~plain]
        others = [other[~plain] for other in others]
        last = _Groups(program, duration, self).last()
        keep = last == np.arange(len(program))
        sums = [_sums(each, last)[keep] for each in (duration, *others)]
        return _merged(program, duration, last), sums


@dataclass
class _Groups:
    """Which rows are merged, found in one walk. State is of the region that the walk is in."""

    program: Program
    duration: Float64s
    limits: MergeSmallKernels
    open: list[int] = field(default_factory=list)  # rows of the group that may still grow
    total: float = 0.0
    waited: set[int] = field(default_factory=set)  # communication that kernels have waited for

    def last(self) -> Int64s:
        """For each row, the last row of its group."""
        found = np.arange(len(self.program))
        region, stream = self.program.region.tolist(), self.program.stream.tolist()
        communicates = (self.program.kind >= Kind.COLLECTIVE).tolist()
        duration = self.duration.tolist()
        place = None
        for row in range(len(found)):
            if (region[row], stream[row]) != place:
                place = (region[row], stream[row])
                self.open, self.waited = [], set()
            deps = self.program.dependencies(row).tolist()
            if duration[row] <= 0 or communicates[row]:
                if not set(self.open).isdisjoint(deps):
                    self.open = []
                continue
            waits = {d for d in deps if communicates[d]}
            if self._joins(duration[row], waits):
                self.open.append(row)
                self.total += duration[row]
                found[self.open] = row
            else:
                self.open, self.total = [row], duration[row]
            self.waited |= waits
        return found

    def _joins(self, duration: float, waits: set[int]) -> bool:
        if not self.open or not waits <= self.waited:
            return False
        least = self.limits.least_ns
        small = self.total < least or duration < least
        return small and self.total + duration <= self.limits.most_ns


def _merged(program: Program, duration: Float64s, last: Int64s) -> Program:
    edit = Editor(program)
    edit.merge(last, sums=("flops", "result_bytes", "operand_bytes"))
    ends, longest = _longest(duration, last)
    copied = {name: getattr(program, name)[longest] for name in _OF_THE_LONGEST}
    edit.set(ends, flags=_merged_flags(program, last)[ends], **copied)
    return edit.build().program


def _merged_flags(program: Program, last: Int64s) -> NDArray[np.uint8]:
    """For each last row of a group its flags: its own, or what is true of several rows as one.

    Those share no storage with what they read, and read their operands in another order than the
    product among them. What is not known of one of them is not known of them all.
    """
    several = np.bincount(last, minlength=len(program)) > 1
    unsure = program.flags & np.uint16(Flag.UNPRICED)
    together = np.zeros_like(program.flags)
    np.bitwise_or.at(together, last, unsure)
    return np.where(several, together, program.flags)


def _longest(duration: Float64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """The last row of every group, and the row of that group that takes longest."""
    order = np.lexsort((np.arange(len(last)), duration, last))
    ends = np.append(last[order][1:] != last[order][:-1], True)[: len(last)]
    return last[order][ends], order[ends]


def _sums(values: NDArray[Any], last: Int64s) -> NDArray[Any]:
    """For each last row of a group the sum of its values; 0 for other rows."""
    total = np.zeros_like(values)
    np.add.at(total, last, values)
    return total
