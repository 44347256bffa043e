"""Rows of the units of a schedule: passes of microbatches, with messages to and from neighbors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.ir.dims import NO_DIMS, DimsRow, StashDims
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program, RegionKind
from flint.passes.pipeline.compose.graft import LAST_ROWS, add_value, graft
from flint.passes.pipeline.compose.held import accumulate, reduce_complete
from flint.passes.pipeline.compose.plan import PipelinePlan
from flint.passes.pipeline.compose.rank_state import Chunk, RankState, is_saved, saved_keys
from flint.passes.pipeline.schedule.units import Unit, UnitWork
from flint.passes.pipeline.split.parts import Key, Partial, StageProgram
from flint.passes.pipeline.split.reach import whole_row
from flint.steps.captured import Port, Role

# Runs: an order as loops over units, so that a steady state is stored once.


class UnitRun(NamedTuple):
    """Units that run `trip_count` times, each time with microbatches `step` further on.

    `units` are those of the first iteration.
    """

    units: tuple[Unit, ...]
    trip_count: int
    step: int


def runs(order: Sequence[Unit], *, most_period: int | None = None) -> tuple[UnitRun, ...]:
    """Compress an order into runs that `expand` gives back, with as few units as there can be.

    No loop has more than `most_period` units, if that is given.

    Among those, the fewest runs and then the fewest iterations are chosen: a pipeline's steady
    state begins with its first forward pass. Units between loops form a run with trip count 1.
    """
    table = np.array(order, dtype=np.int64).reshape(-1, 3)
    pieces = _cheapest(len(order), _repetitions(table, most_period))
    found: list[UnitRun] = []
    single: list[Unit] = []
    for start, period, trips in pieces:
        if trips == 1:
            single.append(order[start])
            continue
        found += _once(single)
        single = []
        units = tuple(order[start : start + period])
        found.append(UnitRun(units, trips, int(table[start + period, 2] - table[start, 2])))
    return (*found, *_once(single))


@dataclass(frozen=True)
class Round:
    """Runs that repeat `trip_count` times: the steady state of an interleaved schedule.

    `runs` are those of the first iteration. Each iteration works on microbatches `step` further
    on, but no run depends on which microbatch it is.
    """

    runs: tuple[UnitRun, ...]
    trip_count: int
    step: int


#: The most units in the inner loop of a round: a forward pass and the parts of a backward pass.
_MOST_INNER = 4


def rounds(order: Sequence[Unit]) -> tuple[Round, ...]:
    """Compress an order into rounds of runs, two loops deep where that stores fewer units.

    An interleaved schedule goes through one chunk after the other, each for as many microbatches
    as there are ranks: a flat loop over all of that stores each of these units.
    """
    flat = tuple(Round((run,), 1, 0) for run in runs(order))
    deep = _rounds(runs(order, most_period=_MOST_INNER))
    return min(flat, deep, key=_stored)


def _rounds(inner: Sequence[UnitRun]) -> tuple[Round, ...]:
    """Repetitions among runs: each run is looked at as a unit, its first microbatch apart."""
    known: dict[object, int] = {}
    firsts = [run.units[0].microbatch for run in inner]
    symbols = [
        known.setdefault(_without_microbatch(run, first), len(known))
        for run, first in zip(inner, firsts, strict=True)
    ]
    table = np.array([*zip(symbols, [0] * len(inner), firsts, strict=True)], dtype=np.int64)
    table = table.reshape(-1, 3)
    return tuple(
        Round(
            tuple(inner[start : start + period]),
            trips,
            int(firsts[start + period] - firsts[start]) if trips > 1 else 0,
        )
        for start, period, trips in _cheapest(len(inner), _repetitions(table))
    )


def _without_microbatch(run: UnitRun, first: int) -> object:
    units = tuple(u._replace(microbatch=u.microbatch - first) for u in run.units)
    return (units, run.trip_count, run.step)


def _stored(found: Iterable[Round]) -> int:
    return sum(len(run.units) for round_ in found for run in round_.runs)


def expand(runs: Iterable[UnitRun]) -> tuple[Unit, ...]:
    """Return the order that `runs` stand for."""
    return tuple(
        unit._replace(microbatch=unit.microbatch + iteration * run.step)
        for run in runs
        for iteration in range(run.trip_count)
        for unit in run.units
    )


def _once(units: list[Unit]) -> list[UnitRun]:
    return [UnitRun(tuple(units), 1, 0)] if units else []


def _repetitions(
    table: NDArray[np.int64], most_period: int | None = None
) -> dict[int, NDArray[np.int64]]:
    """Return, for each period worth trying, how long each unit's row of repeats is.

    Entry i of a period p counts the units up to i, i included, that each equal the unit p before
    with microbatches the same step further on. A period is omitted if all its repeats are
    repeats of a shorter one that divides it: that one stores fewer units.
    """
    passes = table[:, 0] * (table[:, 1].max(initial=0) + 1) + table[:, 1]
    found: dict[int, NDArray[np.int64]] = {}
    covered: dict[int, list[tuple[int, int]]] = {}
    longest = len(table) // 2
    for period in range(1, min(longest, most_period or longest) + 1):
        same = passes[period:] == passes[:-period]
        if np.count_nonzero(same) < period:
            continue
        stretches = _stretches(same, table[period:, 2] - table[:-period, 2], period)
        if all(
            any(_within(stretch, covered[p]) for p in covered if period % p == 0)
            for stretch in stretches
        ):
            continue
        covered[period] = stretches
        lengths = np.zeros(len(table), dtype=np.int64)
        for first, end in stretches:
            lengths[first + period : end] = np.arange(1, end - first - period + 1)
        found[period] = lengths
    return found


def _stretches(
    same: NDArray[np.bool_], steps: NDArray[np.int64], period: int
) -> list[tuple[int, int]]:
    """Return the [first, end) of units that repeat with this period and one step throughout."""
    changes = np.flatnonzero((same[1:] != same[:-1]) | (steps[1:] != steps[:-1])) + 1
    starts = np.concatenate(([0], changes))
    ends = np.concatenate((changes, [len(same)]))
    long = same[starts] & (ends - starts >= period)
    return [
        (int(first), int(end) + period) for first, end in zip(starts[long], ends[long], strict=True)
    ]


def _within(stretch: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    return any(first <= stretch[0] and stretch[1] <= end for first, end in others)


# A cost is one integer: units stored, then runs, then iterations.
_UNIT, _RUN, _ITERATION = 1 << 64, 1 << 32, 1


class _Repeated(NamedTuple):
    """The last piece of the cheapest way to cover the units before some position."""

    cost: int
    start: int
    period: int
    trips: int


def _cheapest(count: int, repetitions: dict[int, NDArray[np.int64]]) -> list[tuple[int, int, int]]:
    """Cover `count` units with pieces (start, period, trip count) of least cost.

    Shortest path over positions. A loop that ends at `end` is one that ended a period before and
    goes on, or two iterations after the cheapest way to their start; all of these are kept.
    """
    best = [_Repeated(0, 0, 0, 0)]
    columns = {period: lengths.tolist() for period, lengths in repetitions.items()}
    loops: dict[int, dict[int, _Repeated]] = {period: {} for period in columns}
    for end in range(1, count + 1):
        choice = _Repeated(best[end - 1].cost + _UNIT + _ITERATION, end - 1, 1, 1)
        for period, lengths in columns.items():
            repeated = lengths[end - 1]
            if repeated < period:
                continue
            start = end - 2 * period
            cost = best[start].cost + period * _UNIT + _RUN + 2 * _ITERATION
            loop = _Repeated(cost, start, period, 2)
            before = loops[period].get(end - period)
            if before is not None and repeated > period:
                longer = before._replace(cost=before.cost + _ITERATION, trips=before.trips + 1)
                loop = min(loop, longer)
            loops[period][end] = loop
            choice = min(choice, loop)
        best.append(choice)
    return _way(best)


def _way(best: list[_Repeated]) -> list[tuple[int, int, int]]:
    pieces: list[tuple[int, int, int]] = []
    end = len(best) - 1
    while end:
        _, start, period, trips = best[end]
        pieces.append((start, period, trips))
        end = start
    return pieces[::-1]


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
    found: dict[int, list[Key]] = {}
    for key, row in part.outputs.items():
        if wanted(key):
            found.setdefault(row, []).append(key)
    return found
