"""Reductions of gradients leave the backward pass: microbatches add up first, devices once a step.

The gradient of a parameter ends in a chain of linear rows: the sum over devices, and what it takes
to lay the result out. Sums over microbatches and such a chain commute, so the chain from its first
collective on (the *tail*) runs once, on what the microbatches gave together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from flint.ir.columns import Mask, carried, use_counts
from flint.ir.edit import Editor
from flint.ir.op_class import LAYOUT, OpClass
from flint.ir.program import Collective, Flag, Kind, Program, RegionKind
from flint.passes.pipeline.split.parts import OpenBody
from flint.passes.pipeline.split.reach import producers, storage_bytes

#: Rows that put a value in a place of a larger one, or take it from there.
PLACING = frozenset({OpClass.PAD, OpClass.SLICE})
#: Products with what is the same for every microbatch.
SCALING = frozenset({OpClass.MULTIPLY, OpClass.DIVIDE})
#: Changes of layout that may come before a sum over devices as well as after it.
TRANSPOSES = frozenset({OpClass.TRANSPOSE, OpClass.RESHAPE})
#: Linear rows of one operand.
LINEAR = LAYOUT | PLACING | {OpClass.CONVERT, OpClass.ALL_SLICE, OpClass.NEGATE}
_MOST_COEFFICIENT_ROWS = 16


@dataclass(frozen=True)
class Type:
    """What a value is on a device."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int

    def reshaped(self, shape: tuple[int, ...]) -> Type:
        """A value of another shape."""
        each = self.num_bytes // max(math.prod(self.shape), 1)
        return Type(self.dtype, shape, each * math.prod(shape))

    def stacked(self, count: int) -> Type:
        """`count` such values."""
        return Type(self.dtype, (count, *self.shape), self.num_bytes * count)


@dataclass(frozen=True)
class Apply:
    """One row of a tail; an all-reduce may have been moved to a value of another `type`."""

    row: int
    type: Type | None = None


@dataclass(frozen=True)
class StackTail:
    """A tail that runs on each slice of a stack: row `write` of `loop` wrote the results."""

    loop: int
    initial: int
    write: int
    steps: tuple[Step, ...]


Step = Apply | StackTail


@dataclass(frozen=True)
class _Change:
    """A row of the backward pass that has to hold unreduced values."""

    row: int
    reads: tuple[int, ...]
    type: Type
    written: int  # bytes that it writes at a time, and
    moved: int  # bytes that it reads
    loop: int = -1  # the loop that carries it on, if one does
    carried: int = -1
    initial: int = -1


@dataclass(frozen=True)
class Tail:
    """How a gradient is made of what the backward pass gives: `base`, of `type`, then `steps`."""

    base: int
    type: Type
    steps: tuple[Step, ...]
    changes: tuple[_Change, ...] = ()

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
            if is_addition(p, row):
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
        p = self.program
        deps = p.dependencies(row).tolist()
        read = [d for d in deps if not self.shared[d]]
        if len(read) != 1 or not self._is_linear(row, read[0]):
            return None
        if not all(is_constant(p, d) for d in deps if self.shared[d]):
            return None
        return int(read[0])

    def _is_linear(self, row: int, operand: int) -> bool:
        p = self.program
        op = int(p.op[row])
        if p.kind[row] == Kind.COLLECTIVE:
            return op in (OpClass.ADD, OpClass.MOVE)  # not a maximum
        if p.kind[row] == Kind.VALUE and p.flags[row] & Flag.VIEW:
            return True
        if op == OpClass.REDUCE:  # over some elements, which may be over none
            shapes = (p.shapes[p.shape[row]], p.shapes[p.shape[operand]])
            return math.prod(shapes[0]) == math.prod(shapes[1])
        squares = len(p.dependencies(row)) == 1  # a product that reads one value twice
        return op in LINEAR or (op in SCALING and not squares)

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
        size = first.type.num_bytes
        change = _Change(row, (first.base, second.base), first.type, size, 2 * size)
        changes = (*first.changes, *second.changes, change)
        return Tail(row, first.type, second.steps, changes)

    def _laid_out(self, tail: Tail) -> Tail:
        """The tail with changes of layout and placements in front, out of it, where that is known.

        They are the same on unreduced values and in another type; on values that are not sliced
        yet, they are if it is clear which dimension the slice is of.
        """
        steps = [step for step in tail.steps if isinstance(step, Apply)]
        end = next((i for i, step in enumerate(steps) if not self._commutes(step)), len(steps))
        steps = steps[:end]
        lasting = [step for step in steps if not self._is_layout(step.row)]
        layout = [step.row for step in steps if self._is_layout(step.row)]
        if not layout or steps[0].row == layout[0] or end < len(tail.steps):
            return tail
        base, type_, changes = tail.base, tail.type, list(tail.changes)
        for row in layout:
            shape = self._unsliced(row, steps)
            if shape is None:
                return tail
            moved, type_ = type_.num_bytes, type_.reshaped(shape)
            operand = self._operand(row)
            deps = self.program.dependencies(row).tolist()
            reads = tuple(base if d == operand else d for d in deps)
            changes.append(_Change(row, reads, type_, type_.num_bytes, moved))
            base = row
        last = self.type_of(steps[-1].row)
        after, now = [], type_
        for step in lasting:
            sliced = self._class(step.row) == OpClass.ALL_SLICE
            now = self.type_of(step.row).reshaped(last.shape if sliced else now.shape)
            after.append(Apply(step.row, now))
        return Tail(base, type_, tuple(after), tuple(changes))

    def _class(self, row: int) -> OpClass:
        return OpClass(int(self.program.op[row]))

    def _is_layout(self, row: int) -> bool:
        return self._class(row) in PLACING | TRANSPOSES | {OpClass.REDUCE}

    def _commutes(self, step: Apply) -> bool:
        """Whether a step is a change of layout, or may come after all of these."""
        reshapes = self._class(step.row) in (OpClass.CONVERT, OpClass.ALL_SLICE)
        reduces = self.program.collective[step.row] == Collective.ALL_REDUCE
        return bool(reduces) or reshapes or self._is_layout(step.row)

    def _unsliced(self, row: int, steps: list[Apply]) -> tuple[int, ...] | None:
        """Shape of a change of layout if the slice before it came later; None if it is not clear."""
        rows = [step.row for step in steps]
        slices = [r for r in rows[: rows.index(row)] if self._class(r) == OpClass.ALL_SLICE]
        shape = self.type_of(row).shape
        if not slices:
            return shape
        operand = self._operand(slices[0])
        if len(slices) > 1 or operand is None:
            return None
        whole, part = self.type_of(operand).shape, self.type_of(slices[0]).shape
        cut = [i for i, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]
        same = [i for i, size in enumerate(shape) if size == part[cut[0]]]
        if len(cut) != 1 or len(same) != 1 or part.count(part[cut[0]]) != 1:
            return None
        times = whole[cut[0]] // part[cut[0]]
        return tuple(n * times if i == same[0] else n for i, n in enumerate(shape))

    def _signature(self, steps: tuple[Step, ...]) -> tuple[object, ...]:
        """What tells two tails apart. Where a value is placed is not known, so a row says it.

        A reduce-scatter is an all-reduce and a slice.
        """
        p = self.program
        found: list[object] = []
        for step in steps:
            if isinstance(step, StackTail):
                found.append((p.regions[step.loop].trip_count, self._signature(step.steps)))
                continue
            row = p.row(step.row)
            if row.collective is Collective.REDUCE_SCATTER:
                found += [(Collective.ALL_REDUCE, row.group), (OpClass.ALL_SLICE, row.group)]
            elif row.collective is Collective.ALL_REDUCE:
                found.append((Collective.ALL_REDUCE, row.group))
            elif row.op in PLACING:
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
        if p.op[row] == OpClass.UPDATE_SLICE and p.alias[row] == value:
            return self._stack(row, value, initial[0], loop, tail)
        if is_addition(p, row):
            return self._total(row, value, initial[0], loop, tail)
        return None

    def _stack(self, row: int, value: int, initial: int, loop: int, tail: Tail) -> Tail:
        """A loop writes unreduced slices; another one reduces them slice by slice."""
        whole = tail.type.stacked(self.program.regions[loop].trip_count)
        index = [d for d in self.program.dependencies(row).tolist() if self.shared[d]]
        reads = (value, tail.base, *index)
        size = tail.type.num_bytes
        change = _Change(row, reads, whole, size, size, loop, value, initial)
        step = StackTail(loop, initial, row, tail.steps)
        return Tail(row, whole, (step,), (*tail.changes, change))

    def _total(self, row: int, value: int, initial: int, loop: int, tail: Tail) -> Tail:
        """A loop adds unreduced values; the sum is reduced after it."""
        one = tail.type
        size = one.num_bytes
        change = _Change(row, (value, tail.base), one, size, 2 * size, loop, value, initial)
        return Tail(row, one, tail.steps, (*tail.changes, change))


def is_addition(program: Program, row: int) -> bool:
    """Whether a row adds values of one device: a sum over devices is a collective."""
    return bool(program.op[row] == OpClass.ADD and program.kind[row] != Kind.COLLECTIVE)


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


def apply_changes(edit: Editor, changes: Iterable[_Change]) -> None:
    """Let rows of the backward pass hold unreduced values."""
    p = edit.program
    for c in changes:
        whole = {"dtype": c.type.dtype, "shape": c.type.shape, "result_bytes": c.type.num_bytes}
        if is_addition(p, c.row) and p.flops[c.row]:
            edit.change(c.row, flops=math.prod(c.type.shape))
        moved = 0 if p.kind[c.row] == Kind.VALUE else c.moved
        edit.change(c.row, deps=c.reads, **{**whole, "result_bytes": c.written})
        edit.change(c.row, operand_bytes=moved)
        if p.alias[c.row] >= 0:  # a view of the one thing that it reads, or what a loop carries
            edit.change(c.row, alias=c.reads[0])
        if c.loop >= 0:
            region = p.regions[c.loop]
            initial = edit.copy(
                c.initial, region.start, region.parent, p.dependencies(c.initial).tolist(), **whole
            )
            edit.change(c.carried, deps=(initial,), alias=initial, **whole)


def reducing(program: Program, row: int) -> bool:
    """Whether a row sums over devices."""
    kinds = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
    return bool(program.collective[row] in kinds)
