"""Reductions of gradients leave the backward pass: microbatches add up first, devices once a step.

The gradient of a parameter ends in a chain of linear rows: the sum over devices, and what it takes
to lay the result out. Sums over microbatches and such a chain commute, so the chain from its first
collective on (the *tail*) runs once, on what the microbatches gave together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from flint.passes.columns import Mask, carried, use_counts
from flint.passes.kernels import CONVERT
from flint.passes.opcodes import ADD, ALL_SLICE, LAYOUT
from flint.passes.pipeline.edit import Edit, spec
from flint.passes.pipeline.opened import OpenBody
from flint.passes.pipeline.reach import producers, storage_bytes
from flint.program import Collective, Flag, Kind, Program, RegionKind

#: Updates of a slice of a stack.
WRITES = frozenset({"stablehlo.dynamic_update_slice", "hlo.dynamic-update-slice"})
#: Rows that put a value in a place of a larger one, or take it from there.
PLACING = frozenset({"stablehlo.pad", "hlo.pad", "stablehlo.slice", "hlo.slice"})
#: Products with what is the same for every microbatch.
SCALING = frozenset(
    f"{dialect}.{name}" for dialect in ("stablehlo", "hlo") for name in ("multiply", "divide")
)
#: Changes of layout that may come before a sum over devices as well as after it.
TRANSPOSES = frozenset({"stablehlo.transpose", "stablehlo.reshape", "hlo.transpose", "hlo.reshape"})
#: Linear rows of one operand.
LINEAR = (
    LAYOUT
    | CONVERT
    | PLACING
    | frozenset({ALL_SLICE, "stablehlo.negate", "hlo.negate", "sdy.reshard"})
)
#: Sums over some elements, which may be over none.
SUMS = frozenset({"stablehlo.reduce", "hlo.reduce"})
_MOST_COEFFICIENT_ROWS = 16


@dataclass(frozen=True)
class Type:
    """What a value is on a device."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int

    def stacked(self, count: int) -> Type:
        """`count` such values."""
        return Type(self.dtype, (count, *self.shape), self.num_bytes * count)


@dataclass(frozen=True)
class Apply:
    """One row of a tail; an all-reduce may have been moved to a value of another `type`."""

    row: int
    type: Type | None = None


@dataclass(frozen=True)
class Stack:
    """A tail that runs on each slice of a stack: row `write` of `loop` wrote the results."""

    loop: int
    initial: int
    write: int
    steps: tuple[Step, ...]


Step = Apply | Stack


@dataclass(frozen=True)
class Change:
    """A row of the backward pass that has to hold unreduced values."""

    row: int
    reads: tuple[int, ...]
    type: Type
    written: int  # bytes that it writes at a time
    loop: int = -1  # the loop that carries it on, if one does
    carried: int = -1
    initial: int = -1


@dataclass(frozen=True)
class Bypass:
    """A row of the backward pass that reads `new` instead of the reduced `old`."""

    row: int
    old: int
    new: int


@dataclass(frozen=True)
class Tail:
    """How a gradient is made of what the backward pass gives: `base`, of `type`, then `steps`."""

    base: int
    type: Type
    steps: tuple[Step, ...]
    changes: tuple[Change | Bypass, ...] = ()

    def then(self, steps: Iterable[Step]) -> Tail:
        """The tail with more steps after it."""
        return replace(self, steps=(*self.steps, *steps))


class Tails:
    """Finds the tails of gradients in one body."""

    def __init__(self, body: OpenBody, shared: Mask) -> None:
        self.program, self.shared = body.program, shared
        self.uses = use_counts(body.program)
        for row in body.results.values():
            self.uses[row] += 1
        self.carried = carried(body.program)
        self.produced = producers(body.program)
        self.yields: dict[int, list[int]] = {}
        for value, row in self.produced.items():
            self.yields.setdefault(row, []).append(value)

    def find(self, row: int, region: int = -1) -> Tail | None:
        """The tail of the value `row` as `region` reads it, or None if it has no collective."""
        later: list[Step] = []
        p = self.program
        while not self.shared[row]:
            inner = int(p.region[row])
            if inner != region:
                found = self._out_of_loop(row, inner, region)
                return found.then(reversed(later)) if found else self._cut(row, later)
            if self.uses[row] != 1 or self.carried[row]:
                break
            if p.opcodes[p.opcode[row]] in ADD:
                found = self._sum(row, region)
                return found.then(reversed(later)) if found else self._cut(row, later)
            operand = self._operand(row)
            if operand is None:
                break
            later.append(Apply(row))
            row = operand
        return self._cut(row, later)

    def type_of(self, row: int) -> Type:
        """Type of the whole value that a row gives."""
        p = self.program
        return Type(p.dtypes[p.dtype[row]], p.shapes[p.shape[row]], storage_bytes(p, row))

    # kinds of rows ------------------------------------------------------------------------------

    def _operand(self, row: int) -> int | None:
        """What a linear row is linear in."""
        p = self.program
        deps = p.dependencies(row).tolist()
        read = [d for d in deps if not self.shared[d]]
        if len(read) != 1 or not self._is_linear(row, read[0]):
            return None
        if not all(self._is_coefficient(d) for d in deps if self.shared[d]):
            return None
        return int(read[0])

    def _is_linear(self, row: int, operand: int) -> bool:
        p = self.program
        opcode = p.opcodes[p.opcode[row]]
        if p.kind[row] == Kind.COLLECTIVE:
            return "[" not in opcode  # such as a maximum
        if p.kind[row] == Kind.VALUE and p.flags[row] & Flag.VIEW:
            return True
        if opcode in SUMS:
            shapes = (p.shapes[p.shape[row]], p.shapes[p.shape[operand]])
            return math.prod(shapes[0]) == math.prod(shapes[1])
        return opcode in LINEAR or opcode in SCALING

    def _is_coefficient(self, row: int) -> bool:
        """Whether a shared row can be computed again next to a tail."""
        return is_constant(self.program, row)

    # structure ----------------------------------------------------------------------------------

    def _cut(self, row: int, later: list[Step]) -> Tail | None:
        """The tail from the earliest collective on, given what comes after `row`, last first."""
        steps = later[::-1]
        for at, step in enumerate(steps):
            if isinstance(step, Apply) and self.program.kind[step.row] == Kind.COLLECTIVE:
                base = self._row_of(steps[at - 1]) if at else row
                return Tail(base, self.type_of(base), tuple(steps[at:]))
        return None

    @staticmethod
    def _row_of(step: Step) -> int:
        return step.row if isinstance(step, Apply) else step.write

    def _sum(self, row: int, region: int) -> Tail | None:
        """The sum of two values with equal tails: added first, reduced once."""
        deps = self.program.dependencies(row).tolist()
        if len(deps) != 2:
            return None
        tails = [self.find(d, region) for d in deps]
        if tails[0] is None or tails[1] is None:
            return None
        first, second = self._laid_out(tails[0]), self._laid_out(tails[1])
        if first.type != second.type:
            return None
        if self._signature(first.steps) != self._signature(second.steps):
            return None
        change = Change(row, (first.base, second.base), first.type, first.type.num_bytes)
        changes = (*first.changes, *second.changes, change)
        return Tail(row, first.type, second.steps, changes)

    def _laid_out(self, tail: Tail) -> Tail:
        """The tail with all-reduces after changes of layout and placements, not before them."""
        steps = tail.steps
        reduces: list[Apply] = []
        moved: list[Apply] = []
        for step in steps:
            if not isinstance(step, Apply) or not (self._reorders(step) or self._adds(step)):
                break
            (reduces if self._adds(step) else moved).append(step)
        if not moved or not reduces or steps[0] is moved[0]:
            return tail
        type_ = self.type_of(moved[-1].row)
        place = {step.row: tail.base for step in reduces}
        changes: list[Change | Bypass] = list(tail.changes)
        base = tail.base
        for step in moved:
            old = self._operand(step.row)
            assert old is not None, f"row {step.row} is not linear"
            if old in place or old != base:
                changes.append(Bypass(step.row, old, base))
            base = step.row
        rest = steps[len(reduces) + len(moved) :]
        after = tuple(Apply(step.row, type_) for step in reduces)
        return Tail(base, type_, (*after, *rest), tuple(changes))

    def _adds(self, step: Apply) -> bool:
        return bool(self.program.collective[step.row] == Collective.ALL_REDUCE)

    def _reorders(self, step: Apply) -> bool:
        opcode = self.program.opcodes[self.program.opcode[step.row]]
        return opcode in PLACING or opcode in TRANSPOSES

    def _signature(self, steps: tuple[Step, ...]) -> tuple[object, ...]:
        """What tells two tails apart. Where a value is placed is not known, so a row says it.

        A reduce-scatter is an all-reduce and a slice.
        """
        p = self.program
        found: list[object] = []
        for step in steps:
            if isinstance(step, Stack):
                found.append((p.regions[step.loop].trip_count, self._signature(step.steps)))
                continue
            row = p.row(step.row)
            if row.collective is Collective.REDUCE_SCATTER:
                found += [(Collective.ALL_REDUCE, row.group), (ALL_SLICE, row.group)]
            elif row.collective is Collective.ALL_REDUCE:
                found.append((Collective.ALL_REDUCE, row.group))
            elif row.opcode in PLACING:
                found.append(row.number)
            else:
                found.append((row.opcode, row.group))
        return tuple(found)

    def _out_of_loop(self, row: int, loop: int, region: int) -> Tail | None:
        """The tail of what a loop stacks or adds up."""
        p = self.program
        if loop < 0 or p.regions[loop].parent != region:
            return None
        if p.regions[loop].kind is not RegionKind.LOOP or len(self.yields.get(row, ())) != 1:
            return None
        (value,) = self.yields[row]
        initial = p.dependencies(value).tolist()
        alone = self.uses[row] == 2 and self.uses[value] == 1
        if not alone or len(initial) != 1 or not is_constant(p, initial[0]):
            return None
        read = [d for d in p.dependencies(row).tolist() if not self.shared[d] and d != value]
        if len(read) != 1 or value not in p.dependencies(row):
            return None
        tail = self.find(read[0], loop)
        if tail is None:
            return None
        opcode = p.opcodes[p.opcode[row]]
        if opcode in WRITES and p.alias[row] == value:
            return self._stack(row, value, initial[0], loop, tail)
        if opcode in ADD:
            return self._total(row, value, initial[0], loop, tail)
        return None

    def _stack(self, row: int, value: int, initial: int, loop: int, tail: Tail) -> Tail:
        """A loop writes unreduced slices; another one reduces them slice by slice."""
        whole = tail.type.stacked(self.program.regions[loop].trip_count)
        index = [d for d in self.program.dependencies(row).tolist() if self.shared[d]]
        reads = (value, tail.base, *index)
        change = Change(row, reads, whole, tail.type.num_bytes, loop, value, initial)
        step = Stack(loop, initial, row, tail.steps)
        return Tail(row, whole, (step,), (*tail.changes, change))

    def _total(self, row: int, value: int, initial: int, loop: int, tail: Tail) -> Tail:
        """A loop adds unreduced values; the sum is reduced after it."""
        one = tail.type
        change = Change(row, (value, tail.base), one, one.num_bytes, loop, value, initial)
        return Tail(row, one, tail.steps, (*tail.changes, change))


def is_constant(program: Program, row: int) -> bool:
    """Whether a row is made of a few constants, so that another program can have it too."""
    found: set[int] = set()
    pending = [row]
    while pending and len(found) <= _MOST_COEFFICIENT_ROWS:
        at = pending.pop()
        region = int(program.region[at])
        carries = program.regions[region].carries if region >= 0 else ()
        if program.kind[at] not in (Kind.VALUE, Kind.COMPUTE) or any(at == c for c, _ in carries):
            return False
        found.add(at)
        pending.extend(d for d in program.dependencies(at).tolist() if d not in found)
    return not pending


def apply_changes(edit: Edit, changes: Iterable[Change | Bypass]) -> None:
    """Let rows of the backward pass hold unreduced values."""
    p = edit.program
    for c in changes:
        if isinstance(c, Bypass):
            deps = [c.new if d == c.old else d for d in edit.deps(c.row)]
            alias = int(p.alias[c.row])
            edit.change(c.row, deps=deps, alias=c.new if alias == c.old else alias)
            continue
        whole = spec(c.type.dtype, c.type.shape, c.type.num_bytes)
        if p.opcodes[p.opcode[c.row]] in ADD and p.flops[c.row]:
            edit.change(c.row, flops=math.prod(c.type.shape))
        width = 1 if p.opcodes[p.opcode[c.row]] in WRITES else 2
        moved = 0 if p.kind[c.row] == Kind.VALUE else width * c.written
        edit.change(c.row, deps=c.reads, **{**whole, "result_bytes": c.written})
        edit.change(c.row, operand_bytes=moved)
        if c.loop >= 0:
            region = p.regions[c.loop]
            initial = edit.copy(
                c.initial,
                region.start,
                region.parent,
                p.dependencies(c.initial).tolist(),
                **whole,
            )
            edit.change(c.carried, deps=(initial,), alias=initial, **whole)


def reducing(program: Program, row: int) -> bool:
    """Whether a row sums over devices."""
    kinds = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
    return bool(program.collective[row] in kinds)
