"""Rows of the units of a schedule: passes of microbatches, with messages to and from neighbors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from flint.ir.dims import NO_DIMS, DimsRow, StashDims
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program, RegionKind
from flint.passes.pipeline.compose.graft import LAST_ROWS, add_value, graft
from flint.passes.pipeline.compose.held import accumulate, reduce_complete
from flint.passes.pipeline.compose.plan import PipelinePlan
from flint.passes.pipeline.compose.rank_state import Chunk, RankState, is_saved, saved_keys
from flint.passes.pipeline.schedule.runs import Round, rounds
from flint.passes.pipeline.schedule.units import Unit, UnitWork
from flint.passes.pipeline.split.parts import Key, Partial, StageProgram
from flint.passes.pipeline.split.reach import whole_row
from flint.steps.captured import Port, Role


def add_units(state: RankState) -> None:
    """Add every unit of the position, those that repeat as loops."""
    for segment in _segments(state):
        for found in rounds(segment):
            _round(state, found)


def _segments(state: RankState) -> Iterator[Sequence[Unit]]:
    """The order, cut after each last unit that gives gradients: reductions begin there."""
    order, start = state.order, 0
    for at, unit in enumerate(order):
        if unit.work is not UnitWork.FORWARD and _is_last(state.plan, unit):
            if start < at:
                yield order[start:at]
            yield order[at : at + 1]
            start = at + 1
    if start < len(order):
        yield order[start:]


def _is_last(plan: PipelinePlan, unit: Unit) -> bool:
    return unit.microbatch == plan.captured.microbatches - 1


def _round(state: RankState, found: Round) -> None:
    with _loop(state, found.trip_count):
        for run in found.runs:
            last = run.trip_count == found.trip_count == 1
            with _loop(state, run.trip_count):
                for unit in run.units:
                    _unit(state, unit, last and _is_last(state.plan, unit))


@contextmanager
def _loop(state: RankState, trip_count: int) -> Iterator[None]:
    """A loop region whose iterations wait for each other; none for what runs once."""
    if trip_count == 1:
        yield
        return
    state.builder.begin_region(RegionKind.LOOP, trip_count, name="pipeline/microbatches")
    first = state.turn = state.builder.add(
        "pipeline.turn", Kind.VALUE, op=OpClass.TURN, deps=[state.turn]
    )
    yield
    state.builder.end_region([(first, state.turn)])


def _unit(state: RankState, unit: Unit, last: bool) -> None:
    chunk = state.chunks[unit.chunk]
    if unit.work is UnitWork.FORWARD:
        _Pass(state, chunk, chunk.parts.forward).forward()
        return
    parts = chunk.parts
    for part in (
        parts.backward if unit.work is not UnitWork.WEIGHT_BACKWARD else None,
        parts.weights if unit.work is not UnitWork.INPUT_BACKWARD else None,
    ):
        if part is not None:
            _Pass(state, chunk, part).backward(last)


class _Pass:
    """One pass of a microbatch: what it receives, the rows of `part`, what it sends."""

    def __init__(self, state: RankState, chunk: Chunk, part: StageProgram) -> None:
        self.state, self.chunk, self.part = state, chunk, part
        self.last_stage = len(state.plan.captured.stages) - 1

    def forward(self) -> None:
        """One pass on."""
        state, chunk, part = self.state, self.chunk, self.part
        done = graft(state.builder, part, self._inputs(), turn=state.turn)
        self._receive_for_later()
        ends = done.last_rows()
        for key, row in part.outputs.items():
            if not isinstance(key, Port):
                continue
            here = done.rows[row]
            if key.role is Role.OUTPUT and chunk.stage < self.last_stage:
                ends += self._send(row, here, key.number, forward=True)
            elif key.role is Role.LOSS:
                state.loss = here
            elif key.role in (Role.OUTPUT, Role.PARAMETER):
                state.returned.append(here)
        state.end_turn(ends)

    def backward(self, last: bool) -> None:
        """One pass back. Gradients of inputs are sent as soon as they are there.

        The stage before waits for them: reductions over devices, which nothing waits for, follow
        if it is the `last` microbatch.
        """
        state, chunk, part = self.state, self.chunk, self.part
        partials = _by_row(part, lambda key: isinstance(key, Partial))
        gradients = _by_row(part, lambda key: chunk.stage > 0 and _is(key, Role.INPUT_GRADIENT))
        ends: list[int] = []
        complete: list[tuple[Partial, int]] = []

        def after(row: int, here: int) -> None:
            for key in gradients.pop(row, ()):
                assert isinstance(key, Port)
                ends.extend(self._send(row, here, key.number, forward=False))
            for partial in partials.get(row, ()):
                assert isinstance(partial, Partial)
                ends.append(accumulate(state, chunk, partial, part.program, row, here))
                complete.append((partial, ends[-1]))
            while last and complete and not gradients:
                reduce_complete(state, chunk, *complete.pop(0))

        done = graft(state.builder, part, self._inputs(), turn=state.turn, after=after)
        for row in sorted(set(part.inputs.values()) & (partials.keys() | gradients.keys())):
            after(row, done.rows[row])  # a gradient that is something the part was given
        state.end_turn([*done.last_rows(), *ends[-LAST_ROWS:]])

    def _inputs(self) -> dict[Key, int]:
        """The rows that the part reads: held ones, messages, and what its microbatch has saved."""
        parts, inputs = self.chunk.parts, dict(self.chunk.held)
        is_forward = self.part is parts.forward
        received = parts.backward.inputs if parts.backward and self.part is parts.weights else {}
        for key, row in self.part.inputs.items():
            if key in inputs:
                continue
            if isinstance(key, Port) and key.role is Role.INPUT and is_forward:
                inputs[key] = self._receive(self.part, row, key.number, forward=True)
            elif isinstance(key, Port) and key.role is Role.COTANGENT and key not in received:
                inputs[key] = self._receive(self.part, row, key.number, forward=False)
            else:
                assert is_saved(key) or key in received, f"nothing gives {key}"
                inputs[key] = self._saved(key, row)
        return inputs

    def _saved(self, key: Key, row: int) -> int:
        """A row for what an earlier pass saved, with its `StashDims`."""
        state, parts = self.state, self.chunk.parts
        chunk, keys = state.chunks.index(self.chunk), list(saved_keys(parts))
        dims = NO_DIMS
        if key in keys:
            waiting = state.stash.waiting(chunk, parts, key)
            dims = StashDims(waiting, chunk, keys.index(key)).row
        return self._value(OpClass.SAVED, self.part.program, row, dims)

    def _value(self, op: OpClass, like: Program, row: int, dims: DimsRow = NO_DIMS) -> int:
        turn = self.state.turn
        opcode = f"pipeline.{op.name.lower()}"
        return add_value(self.state.builder, opcode, like, row, op=op, deps=[turn], dims=dims)

    def _receive_for_later(self) -> None:
        """Values from the stage before that only the backward pass reads arrive all the same."""
        for key, (part, row) in saved_keys(self.chunk.parts).items():
            if isinstance(key, Port) and key not in self.part.inputs:
                self._receive(part, row, key.number, forward=True)

    def _receive(self, part: StageProgram, row: int, number: int, *, forward: bool) -> int:
        """Value `number` from the stage before (`forward`) or after; the step's own at the ends."""
        plan, stage = self.state.plan, self.chunk.stage
        if not plan.neighbours.apart(stage, stage - 1 if forward else stage + 1):
            return self._value(OpClass.NEIGHBOUR, part.program, row)
        tensor, turn = part.program.row(row), [self.state.turn]
        return plan.neighbours.receive(self.state.builder, turn, tensor, stage, number, forward)

    def _send(self, row: int, here: int, number: int, *, forward: bool) -> tuple[int, ...]:
        """Send a value to a stage that reads it; returns what the unit after this one waits for."""
        plan, stage = self.state.plan, self.chunk.stage
        neighbour = stage + 1 if forward else stage - 1
        if not plan.reads(neighbour, Role.INPUT if forward else Role.COTANGENT, number):
            return ()
        if plan.neighbours.apart(stage, neighbour):
            tensor = whole_row(self.part.program, row)
            plan.neighbours.send(self.state.builder, here, tensor, stage, number, forward)
        return (here,)


def _is(key: Key, role: Role) -> bool:
    return isinstance(key, Port) and key.role is role


def _by_row(part: StageProgram, wanted: Callable[[Key], bool]) -> dict[int, list[Key]]:
    """Those outputs of a part that are wanted, by their row."""
    found: dict[int, list[Key]] = {}
    for key, row in part.outputs.items():
        if wanted(key):
            found.setdefault(row, []).append(key)
    return found
