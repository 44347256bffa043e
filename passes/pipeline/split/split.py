"""A stage's joint function, partitioned, into the parts that a schedule orders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from flint.ir.columns import carried
from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Phase, RegionKind
from flint.passes.pipeline.split.classify import (
    BACKWARD,
    FORWARD,
    GATHER,
    WEIGHTS,
    RowClasses,
    classify,
)
from flint.passes.pipeline.split.gathers import gathered_once, regathered, shared_rows, with_gather
from flint.passes.pipeline.split.parts import (
    Key,
    OpenBody,
    Partial,
    PartitionedBody,
    Saved,
    StageParts,
    StageProgram,
    alive,
    opened,
)
from flint.passes.pipeline.split.reach import (
    common_region,
    dependent,
    producers,
    readers_as_bits,
    storage_bytes,
)
from flint.passes.pipeline.split.reduce_part import reduce_part
from flint.passes.pipeline.split.reductions import Tail, Tails, Type, apply_changes, reducing
from flint.steps.captured import Port, Role

# Cutting a body into parts: what each part holds, reads from earlier ones, and keeps for later ones.
#
# A loop may be in several parts; each has the loop with its own rows. What a part reads of another
# part's rows of the same iteration goes through a stack: one slice for each iteration.

#: `_Cut.place` of a value that is read whole, as it is after the loops around it.
WHOLE = -1
#: `_Cut.place` of a row that is in the part.
HERE = -2


@dataclass
class _Plan:
    rows: set[int] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    views: set[int] = field(default_factory=set)  # of whole values, seen again
    stacked: dict[int, int] = field(default_factory=dict)  # row: loop

    @property
    def saved(self) -> list[int]:
        """Rows of earlier parts, in order."""
        return sorted(self.whole | self.stacked.keys())


def cut(body: OpenBody, classes: RowClasses, parts: Iterable[int]) -> dict[int, StageProgram]:
    """The body's work as a program for each of `parts` (ascending)."""
    return _Cut(body, classes).parts(sorted(parts))


class _Cut:
    def __init__(self, body: OpenBody, classes: RowClasses) -> None:
        self.body, self.program, self.classes = body, body.program, classes
        self.produced = producers(body.program)
        self.carried = carried(body.program)
        own = body.program.kind == Kind.PARAMETER
        self.everywhere: list[bool] = (own | classes.shared).tolist()
        self.cheap: list[bool] = classes.cheap.tolist()
        self.part: list[int] = classes.part.tolist()
        self.region: list[int] = body.program.region.tolist()
        self.kept: dict[int, int] = {}  # rows that later parts read as stacks: loop
        self.first = 1 + max(body.arguments, default=-1)  # the first row that is not an argument

    def parts(self, numbers: list[int]) -> dict[int, StageProgram]:
        """Plan parts last to first, since the last says what the others keep; then make them."""
        wanted: dict[int, dict[Key, int]] = {number: {} for number in numbers}
        for key, row in self.body.results.items():
            number = min(self.classes.of_result(key, row), numbers[-1])
            wanted[number][key] = row
        plans: dict[int, _Plan] = {}
        for number in reversed(numbers):
            plan = plans[number] = self._plan(number, wanted[number].values())
            for row in plan.saved:
                origin = self.part[row]
                assert origin < number, f"part {number} reads row {row} of part {origin}"
                wanted[origin][Saved(row)] = row
            self.kept.update(plan.stacked)
        return {n: self._part(n, plans[n], wanted[n]) for n in numbers}

    # what is in a part --------------------------------------------------------------------------

    def _plan(self, number: int, roots: Iterable[int]) -> _Plan:
        plan = _Plan()
        pending = [(row, -1) for row in roots]
        while pending:
            row, reader = pending.pop()
            at = self._place(number, row, reader)
            if at == WHOLE:
                self._read_whole(plan, row, pending)
            elif at >= 0:
                plan.stacked[row] = at
            elif row not in plan.rows:
                plan.rows.add(row)
                pending.extend((d, row) for d in self.program.dependencies(row).tolist())
                if row in self.produced:
                    pending.append((self.produced[row], row))
        return plan

    def _place(self, number: int, row: int, reader: int) -> int:
        """HERE, WHOLE, or the loop whose iterations `reader` and `row` share."""
        if self.everywhere[row] or self.part[row] == number:
            return HERE
        common = common_region(self.program, row, reader) if reader >= 0 else -1
        passed_on = self.produced.get(row) == row
        if common == self.region[row] and (self.cheap[row] or passed_on):
            return HERE
        assert common < 0 or self.program.regions[common].kind is RegionKind.LOOP, "a split branch"
        return common

    def _read_whole(self, plan: _Plan, row: int, pending: list[tuple[int, int]]) -> None:
        """Read `row` after its loops; a view is seen again, so that its storage is kept once."""
        view = self.program.flags[row] & Flag.VIEW and not self.carried[row]
        if not view:
            plan.whole.add(row)
        elif row not in plan.views:
            plan.views.add(row)
            pending.append((int(self.program.alias[row]), -1))

    # a part as a program ------------------------------------------------------------------------

    def _part(self, number: int, plan: _Plan, wanted: Mapping[Key, int]) -> StageProgram:
        edit = Editor(self.program, plan.rows)
        self._set_phases(edit, number)
        saved = {row: self._parameter(edit, row, plan) for row in plan.saved}
        whole = self._whole_values(edit, number, plan, saved)
        slices: dict[tuple[int, int], int] = {}
        for row in sorted(plan.rows):
            new = {}
            for d in self.program.dependencies(row).tolist():
                at = self._place(number, d, row)
                if at == WHOLE:
                    new[d] = whole[d]
                elif at >= 0:
                    if (d, at) not in slices:
                        slices[d, at] = self._slice(edit, d, at, saved[d])
                    new[d] = slices[d, at]
            if new:
                deps = [new.get(d, d) for d in self.program.dependencies(row).tolist()]
                alias = int(self.program.alias[row])
                edit.change(row, deps=deps, alias=new.get(alias, alias))
        outputs = self._outputs(edit, number, wanted, whole)
        program, place = edit.build()
        inputs: dict[Key, int] = {
            key: int(place[row])
            for row, key in sorted(self.body.arguments.items())
            if place[row] >= 0
        }
        inputs |= {Saved(row): int(place[at]) for row, at in saved.items()}
        return StageProgram(program, inputs, {key: int(place[row]) for key, row in outputs.items()})

    def _set_phases(self, edit: Editor, number: int) -> None:
        rows = edit.rows()
        rows = rows[self.program.kind[rows] != Kind.PARAMETER]
        if number > FORWARD:
            rows = rows[self.program.phase[rows] != Phase.REMAT]
        phase = int(Phase.FORWARD if number <= FORWARD else Phase.BACKWARD)
        for row in rows[self.program.phase[rows] != phase].tolist():
            edit.change(row, phase=phase)

    def _parameter(self, edit: Editor, row: int, plan: _Plan) -> int:
        """The argument that stands for a saved value, or for the stack of its iterations."""
        total, shape = storage_bytes(self.program, row), self._shape(row)
        if row in plan.stacked or row in self.kept:
            total, shape = self._stack_type(row, self.kept[row])
        return edit.value(
            row,
            self.first,
            -1,
            (),
            kind=int(Kind.PARAMETER),
            opcode="parameter",
            op=OpClass.VALUE,
            name="saved",
            shape=shape,
            result_bytes=total,
        )

    def _whole_values(
        self, edit: Editor, number: int, plan: _Plan, saved: Mapping[int, int]
    ) -> dict[int, int]:
        """For each value that is read whole, the row of this part that is it."""
        found: dict[int, int] = {}
        for row in sorted(plan.whole):
            found[row] = saved[row]
            if row in self.kept:
                found[row] = self._view(edit, row, saved[row], self.first)
        after: dict[int, int] = {}  # a view of what this part calculates comes after that
        for row in sorted(plan.views):
            base = int(self.program.alias[row])
            made_here = base >= self.first and base not in found
            after[row] = self._end(base) if made_here else after.get(base, self.first)
            found[row] = self._view(edit, row, found.get(base, base), after[row])
        return found

    def _end(self, row: int) -> int:
        """Where a row is over, and all loops around it."""
        around = self._loops(self.region[row])
        return self.program.regions[around[0]].stop if around else row + 1

    def _view(self, edit: Editor, row: int, of: int, at: int) -> int:
        return edit.value(row, at, -1, (of,), alias=of, flags=int(Flag.VIEW))

    def _slice(self, edit: Editor, row: int, loop: int, stack: int) -> int:
        """Inside `loop`, this iteration's slice of a stack."""
        region = self.program.regions[loop]
        after = max((value for value, _ in region.carries), default=region.start - 1) + 1
        return edit.value(
            row,
            after,
            loop,
            (stack,),
            opcode="stablehlo.dynamic_slice",
            op=OpClass.DYNAMIC_SLICE,
            alias=stack,
            flags=int(Flag.VIEW),
        )

    def _outputs(
        self, edit: Editor, number: int, wanted: Mapping[Key, int], whole: Mapping[int, int]
    ) -> dict[Key, int]:
        found: dict[Key, int] = {}
        for key, row in sorted(wanted.items(), key=_order):
            if isinstance(key, Saved) and row in self.kept:
                found[key] = self._keep_stack(edit, row, self.kept[row])
            else:
                at = self._place(number, row, -1)
                found[key] = whole[row] if at == WHOLE else row
        return found

    def _keep_stack(self, edit: Editor, row: int, loop: int) -> int:
        """Let `loop` write its slices of `row` into a stack; returns the row that is the stack."""
        total, shape = self._stack_type(row, loop)
        columns = {"opcode": "stack", "op": OpClass.VALUE, "shape": shape, "result_bytes": total}
        around = self._loops(loop)
        first = self.program.regions[around[0]].start
        last = edit.value(row, first, -1, (), **columns)
        held = []
        for region in around:
            start = self.program.regions[region].start
            last = edit.value(
                row, start, region, (last,), alias=last, flags=int(Flag.VIEW), **columns
            )
            held.append(last)
        columns["result_bytes"] = int(self.program.result_bytes[row])
        written = edit.value_at_end(
            row, loop, (last, row), alias=last, flags=int(Flag.IN_PLACE), **columns
        )
        for region, value in zip(around, held, strict=True):
            edit.carry(region, value, written)
        return written

    def _loops(self, region: int) -> list[int]:
        """The loop and those around it, outermost first."""
        found = []
        while region >= 0:
            found.append(region)
            region = self.program.regions[region].parent
        return found[::-1]

    def _stack_type(self, row: int, loop: int) -> tuple[int, tuple[int, ...]]:
        """Bytes and shape of a stack with one slice for each run of `loop`."""
        trips = tuple(self.program.regions[r].trip_count for r in self._loops(loop))
        total = storage_bytes(self.program, row) * self.program.region_trips[loop]
        return total, (*trips, *self._shape(row))

    def _shape(self, row: int) -> tuple[int, ...]:
        return self.program.shapes[self.program.shape[row]]


def _order(output: tuple[Key, int]) -> tuple[bool, int]:
    """What the stage gives first, then what it keeps, in row order."""
    key, row = output
    return isinstance(key, Saved), row if isinstance(key, Saved) else 0


def split(
    body: PartitionedBody,
    *,
    zero_bubble: bool = False,
    keep_gathered: bool = False,
    accumulates: bool = True,
) -> StageParts:
    """Split the partitioned joint program of one stage for one microbatch.

    `zero_bubble` splits the backward pass in what the stage before waits for and the rest.
    `keep_gathered` gathers sharded parameters once in a step instead of in each pass.
    `accumulates` says that there are several microbatches, whose gradients are added up before
    they are reduced over devices; without it they are reduced where the backward pass has them.
    A body without gradients gives a forward part alone.
    """
    whole = regathered(opened(body))
    gradients = _gradients(whole)
    if not any(_is_backward(key) for key in whole.results):
        return _inference(whole, keep_gathered)
    tails = _tails(whole, gradients) if accumulates else {}
    open_body, types = _unreduced(whole, gradients, tails)
    numbers = [FORWARD, BACKWARD, WEIGHTS] if zero_bubble else [FORWARD, BACKWARD]
    parts = _parts(open_body, numbers, zero_bubble, keep_gathered)
    return StageParts(
        forward=parts[FORWARD],
        backward=parts[BACKWARD],
        weights=parts.get(WEIGHTS),
        gather=parts.get(GATHER),
        reduce=reduce_part(whole.program, types, tails) if gradients else None,
        undeferred=_undeferred(open_body) if accumulates else (),
    )


def _inference(body: OpenBody, keep_gathered: bool) -> StageParts:
    parts = _parts(body, [FORWARD], zero_bubble=False, keep_gathered=keep_gathered)
    return StageParts(parts[FORWARD], gather=parts.get(GATHER))


def _parts(
    body: OpenBody, numbers: list[int], zero_bubble: bool, keep_gathered: bool
) -> dict[int, StageProgram]:
    """The parts of one microbatch, and GATHER if parameters are kept gathered and some are."""
    gathers: list[int] = []
    if keep_gathered:
        body, gathers = gathered_once(body)
    classes = classify(body, zero_bubble=zero_bubble)
    if gathers:
        return cut(body, with_gather(classes, gathers), [GATHER, *numbers])
    return cut(body, classes, numbers)


def _is_backward(key: Key) -> bool:
    return isinstance(key, Port) and key.role in (Role.GRADIENT, Role.INPUT_GRADIENT)


def _gradients(body: OpenBody) -> dict[str, int]:
    """Rows of the gradients of parameters, by name."""
    found = body.results.items()
    return {k.name: r for k, r in found if isinstance(k, Port) and k.role is Role.GRADIENT}


def _tails(body: OpenBody, gradients: Mapping[str, int]) -> dict[str, Tail]:
    """What can be done once in a step, for each gradient for which there is such work."""
    finder = Tails(body, shared_rows(body))
    found = {name: finder.find(row) for name, row in gradients.items()}
    return {name: tail for name, tail in found.items() if tail is not None}


def _unreduced(
    body: OpenBody, gradients: Mapping[str, int], tails: Mapping[str, Tail]
) -> tuple[OpenBody, dict[str, Type]]:
    """The body that gives partial gradients, and what these are."""
    edit = Editor(body.program)
    ports = _ports(gradients)
    results = {k: r for k, r in body.results.items() if k not in ports}
    types = {}
    known = Tails(body, shared_rows(body))
    for name, row in gradients.items():
        tail = tails.get(name)
        results[Partial(name)] = tail.base if tail else row
        types[name] = tail.type if tail else known.type_of(row)
        apply_changes(edit, tail.changes if tail else ())
    return alive(body.moved(edit, results)), types


def _ports(gradients: Mapping[str, int]) -> set[Key]:
    return {Port(Role.GRADIENT, name) for name in gradients}


def _undeferred(body: OpenBody) -> tuple[str, ...]:
    """Parameters whose gradient alone needs a sum over devices that is left."""
    bits: dict[int, int] = {}
    names: list[str] = []
    for key, row in body.results.items():
        bits[row] = bits.get(row, 0) | 1 << len(names)
        names.append(key.name if isinstance(key, Partial) else "")
    alone = readers_as_bits(body.program, bits)
    gradient = dependent(body.program, body.seeds(Role.COTANGENT))
    found = set()
    for row in np.flatnonzero(gradient).tolist():
        if reducing(body.program, row) and alone[row] & (alone[row] - 1) == 0:
            found.add(names[alone[row].bit_length() - 1])
    return tuple(sorted(found - {""}))
