"""When each unit of a schedule starts and ends, how long ranks wait, and what they hold."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from flint.passes.pipeline.schedule.schedules import Order, orders, placement
from flint.passes.pipeline.schedule.units import StagePlacement, Unit, UnitWork


class UnitSpan(NamedTuple):
    """When a unit starts and ends, in the unit of the durations."""

    start: float
    end: float


#: The usual assumption: a backward pass is twice a forward pass, and its halves are equal.
EQUAL_STAGES: Mapping[UnitWork, int] = MappingProxyType(
    {
        UnitWork.FORWARD: 1,
        UnitWork.BACKWARD: 2,
        UnitWork.INPUT_BACKWARD: 1,
        UnitWork.WEIGHT_BACKWARD: 1,
    }
)


def simulate(
    orders: Sequence[Sequence[Unit]],
    placement: StagePlacement,
    durations: Mapping[UnitWork, float] = EQUAL_STAGES,
    transfer_time: float = 0,
) -> tuple[tuple[UnitSpan, ...], ...]:
    """Return the span of each unit of each rank, in the order in which the rank runs them.

    A rank runs its units one after the other, each as soon as what it reads is there: a forward
    pass waits for the stage before, a backward pass for the stage behind and for the forward pass
    of its own, weight gradients for the gradients of the inputs. A value from another rank takes
    `transfer_time` longer; nothing waits for sends. Raises ValueError if the ranks wait for each
    other forever.
    """
    run = _Clock(orders, placement, durations, transfer_time)
    spans = run.finish()
    stuck = [rank for rank, order in enumerate(orders) if len(spans[rank]) < len(order)]
    if stuck:
        waiting = ", ".join(f"rank {rank}: {orders[rank][len(spans[rank])]}" for rank in stuck)
        raise ValueError(f"the order deadlocks, waiting at {waiting}")
    return tuple(tuple(row) for row in spans)


def makespan(spans: Sequence[Sequence[UnitSpan]]) -> float:
    """Return when the last unit ends; the first starts at 0."""
    return max((span.end for row in spans for span in row), default=0)


def activations_held(order: Sequence[Unit]) -> int:
    """Return of how many forward passes a rank that runs `order` holds activations at most.

    They are held until the last part of the backward pass; without one, while the pass runs.
    """
    if all(unit.work is UnitWork.FORWARD for unit in order):
        return min(1, len(order))
    held = most = 0
    for unit in order:
        held += (unit.work is UnitWork.FORWARD) - (unit.work in _LAST)
        most = max(most, held)
    return most


#: After these a microbatch needs nothing of its forward pass.
_LAST = (UnitWork.BACKWARD, UnitWork.WEIGHT_BACKWARD)


#: A pass as others wait for it: forward, backward (whole or of the input), or weights.
_Event = tuple[UnitWork, int, int]


class _Clock:
    """Runs all ranks as far as they get."""

    def __init__(
        self,
        orders: Sequence[Sequence[Unit]],
        placement: StagePlacement,
        durations: Mapping[UnitWork, float],
        transfer_time: float,
    ) -> None:
        self.orders = orders
        self.durations = durations
        self.transfer_time = transfer_time
        self.placement = placement
        self.ended: dict[_Event, float] = {}
        self.waiting: defaultdict[_Event, list[int]] = defaultdict(list)
        self.spans: list[list[UnitSpan]] = [[] for _ in orders]

    def finish(self) -> list[list[UnitSpan]]:
        ready = deque(range(len(self.orders)))
        while ready:
            ready.extend(self._advance(ready.popleft()))
        return self.spans

    def _advance(self, rank: int) -> list[int]:
        """Run the rank until it waits; return the ranks that waited for what it did."""
        woken: list[int] = []
        order, spans = self.orders[rank], self.spans[rank]
        while len(spans) < len(order):
            unit = order[len(spans)]
            needs = list(self._needs(rank, unit))
            missing = next((event for event in needs if event not in self.ended), None)
            if missing is not None:
                self.waiting[missing].append(rank)
                break
            start = max([spans[-1].end if spans else 0, *(self._there(rank, e) for e in needs)])
            spans.append(UnitSpan(start, start + self.durations[unit.work]))
            event = (_awaited_as(unit.work), self._stage(rank, unit), unit.microbatch)
            self.ended[event] = spans[-1].end
            woken.extend(self.waiting.pop(event, ()))
        return woken

    def _there(self, rank: int, event: _Event) -> float:
        elsewhere = self.placement.rank_of[event[1]] != rank
        return self.ended[event] + (self.transfer_time if elsewhere else 0)

    def _needs(self, rank: int, unit: Unit) -> Iterator[_Event]:
        stage = self._stage(rank, unit)
        if unit.work is UnitWork.FORWARD:
            if stage > 0:
                yield UnitWork.FORWARD, stage - 1, unit.microbatch
        elif unit.work is UnitWork.WEIGHT_BACKWARD:
            yield UnitWork.BACKWARD, stage, unit.microbatch
        else:
            yield UnitWork.FORWARD, stage, unit.microbatch
            if stage < self.placement.last_stage:
                yield UnitWork.BACKWARD, stage + 1, unit.microbatch

    def _stage(self, rank: int, unit: Unit) -> int:
        return self.placement.stages_of[rank][unit.chunk]


def _awaited_as(work: UnitWork) -> UnitWork:
    return UnitWork.BACKWARD if work is UnitWork.INPUT_BACKWARD else work


@dataclass(frozen=True)
class TimedSchedule:
    """A schedule for some numbers, with times as in `simulate.EQUAL_STAGES`; sends take none."""

    name: str
    microbatches: int
    chunks: int
    placement: StagePlacement
    orders: tuple[Order, ...]
    spans: tuple[tuple[UnitSpan, ...], ...]

    @property
    def length(self) -> int:
        """When the step ends."""
        return int(makespan(self.spans))

    @property
    def idle(self) -> Fraction:
        """The part of the step in which a rank waits, from 0 to 1: the same for all ranks."""
        return 1 - Fraction(sum(EQUAL_STAGES[unit.work] for unit in self.orders[0]), self.length)

    @property
    def held(self) -> tuple[int, ...]:
        """Of how many passes forward each rank holds activations at most, each of one chunk."""
        return tuple(map(activations_held, self.orders))


def timed(schedule: str, ranks: int, microbatches: int, chunks: int = 1) -> TimedSchedule:
    """Run a schedule. Raises FlintError FL246 as `orders` does."""
    found = orders(schedule, ranks, microbatches, chunks)
    placed = placement(schedule, ranks, chunks)
    return TimedSchedule(schedule, microbatches, chunks, placed, found, simulate(found, placed))
