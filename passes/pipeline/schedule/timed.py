"""A schedule with its times: what each rank runs when, how long it waits, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from flint.passes.pipeline.schedule.placement import Placement
from flint.passes.pipeline.schedule.schedules import Order, orders, placement
from flint.passes.pipeline.schedule.simulate import (
    EQUAL_STAGES,
    Span,
    activations_held,
    makespan,
    simulate,
)


@dataclass(frozen=True)
class TimedSchedule:
    """A schedule for some numbers, with times as in `simulate.EQUAL_STAGES`; sends take none."""

    name: str
    microbatches: int
    chunks: int
    placement: Placement
    orders: tuple[Order, ...]
    spans: tuple[tuple[Span, ...], ...]

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
