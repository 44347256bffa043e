"""Runs: an order as loops over units, so that a steady state is stored once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.passes.pipeline.schedule.units import Unit


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


def expand_rounds(found: Iterable[Round]) -> tuple[Unit, ...]:
    """Return the order that rounds stand for."""
    return tuple(
        unit._replace(microbatch=unit.microbatch + iteration * each.step)
        for each in found
        for iteration in range(each.trip_count)
        for unit in expand(each.runs)
    )


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
