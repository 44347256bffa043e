"""What holds for every schedule, whatever the numbers."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from flint.passes.pipeline.schedule.runs import expand, runs
from flint.passes.pipeline.schedule.schedules import SCHEDULES, orders
from flint.passes.pipeline.schedule.simulate import (
    EQUAL_STAGES,
    activations_held,
    makespan,
    simulate,
)
from flint.passes.pipeline.schedule.units import Unit, Work
from tests.random_programs import QUICK

Numbers = tuple[str, int, int, int]


@st.composite
def numbers(draw: st.DrawFn) -> Numbers:
    """A schedule, ranks, microbatches and chunks that go together."""
    name = draw(st.sampled_from(list(SCHEDULES)))
    ranks = draw(st.integers(1, 9))
    microbatches = draw(st.integers(1, 20))
    chunks = draw(st.integers(1, 4)) if SCHEDULES[name].takes_chunks else 1
    if chunks > 1 and SCHEDULES[name].trains:
        microbatches = ranks * draw(st.integers(1, 4))
    return name, ranks, microbatches, chunks


def works(name: str) -> tuple[Work, ...]:
    if not SCHEDULES[name].trains:
        return (Work.FORWARD,)
    if SCHEDULES[name].splits_backward:
        return Work.FORWARD, Work.INPUT_BACKWARD, Work.WEIGHT_BACKWARD
    return Work.FORWARD, Work.BACKWARD


@QUICK
@given(numbers())
def test_every_microbatch_passes_every_stage_once_each_way(given_numbers: Numbers) -> None:
    name, ranks, microbatches, chunks = given_numbers
    once = Counter(
        Unit(work, chunk, microbatch)
        for work in works(name)
        for chunk in range(chunks)
        for microbatch in range(microbatches)
    )
    found = orders(*given_numbers)
    assert len(found) == ranks
    assert all(Counter(order) == once for order in found)


@QUICK
@given(
    numbers(),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.integers(0, 5),
)
def test_dependencies_hold_for_any_durations(
    given_numbers: Numbers, times: list[int], transfer_time: int
) -> None:
    ranks, chunks = given_numbers[1], given_numbers[3]
    found = orders(*given_numbers)
    spans = simulate(found, dict(zip(Work, times, strict=True)), transfer_time)
    start, end = {}, {}
    for rank, order in enumerate(found):
        assert all(a.end <= b.start for a, b in zip(spans[rank], spans[rank][1:], strict=False))
        for (work, chunk, microbatch), span in zip(order, spans[rank], strict=True):
            key = work, chunk * ranks + rank, microbatch
            start[key], end[key] = span
    moved = transfer_time if ranks > 1 else 0
    for (work, stage, microbatch), begin in start.items():
        if work is Work.FORWARD and stage:
            assert begin >= end[work, stage - 1, microbatch] + moved
        if work in (Work.BACKWARD, Work.INPUT_BACKWARD):
            assert begin >= end[Work.FORWARD, stage, microbatch]
            if stage < ranks * chunks - 1:
                assert begin >= end[work, stage + 1, microbatch] + moved
        if work is Work.WEIGHT_BACKWARD:
            assert begin >= end[Work.INPUT_BACKWARD, stage, microbatch]


@QUICK
@given(numbers())
def test_activations_in_flight_are_as_known(given_numbers: Numbers) -> None:
    name, ranks, microbatches, chunks = given_numbers
    for rank, order in enumerate(orders(*given_numbers)):
        known = SCHEDULES[name].in_flight(ranks, microbatches, chunks, rank)
        assert activations_held(order) == known


@QUICK
@given(numbers())
def test_bubble_is_as_known(given_numbers: Numbers) -> None:
    name, ranks, microbatches, chunks = given_numbers
    found = orders(*given_numbers)
    step = Fraction(makespan(simulate(found)))
    for order in found:
        busy = sum(EQUAL_STAGES[unit.work] for unit in order)
        assert 1 - busy / step == SCHEDULES[name].bubble(ranks, microbatches, chunks)


@QUICK
@given(numbers(), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_idle_time_is_as_published_for_other_durations(
    given_numbers: Numbers, forward: int, backward: int, weights: int
) -> None:
    """`(p - 1) (F + B)`, and `(p - 1) (F + B - W)` with W no longer than F or B."""
    name, ranks, microbatches, _ = given_numbers
    weights = min(weights, forward, backward)
    times = dict(zip(Work, (forward, backward, backward, weights), strict=True))
    found = orders(*given_numbers)
    idle = makespan(simulate(found, times)) - sum(times[unit.work] for unit in found[0])
    if SCHEDULES[name].splits_backward:
        if microbatches >= ranks:
            assert idle == (ranks - 1) * (forward + backward - weights)
    elif SCHEDULES[name].trains:
        assert idle == (ranks - 1) * (forward + backward)
    elif microbatches % ranks == 0:
        assert idle == (ranks - 1) * forward


@QUICK
@given(numbers())
def test_values_arrive_in_the_order_in_which_they_are_read(given_numbers: Numbers) -> None:
    """Between two ranks, the n-th value sent in a direction is the n-th received."""
    _, ranks, _, chunks = given_numbers
    found = orders(*given_numbers)
    passes = [(Work.FORWARD, 1)]
    passes += [(work, -1) for work in (Work.BACKWARD, Work.INPUT_BACKWARD)]
    for rank in range(ranks):
        for work, step in passes:
            other = (rank + step) % ranks
            sent = [
                (unit.chunk * ranks + rank + step, unit.microbatch)
                for unit in found[rank]
                if unit.work is work and 0 <= unit.chunk * ranks + rank + step < ranks * chunks
            ]
            first = 0 if step == 1 else ranks * chunks - 1
            received = [
                (unit.chunk * ranks + other, unit.microbatch)
                for unit in found[other]
                if unit.work is work and unit.chunk * ranks + other != first
            ]
            assert sent == received


@QUICK
@given(numbers())
def test_runs_of_schedules_are_lossless_and_short(given_numbers: Numbers) -> None:
    name, ranks, _, chunks = given_numbers
    for rank, order in enumerate(orders(*given_numbers)):
        found = runs(order)
        assert expand(found) == order
        stored = sum(len(run.units) for run in found)
        steady = 3 if SCHEDULES[name].splits_backward else 2
        if chunks == 1:
            assert len(found) <= 6
            assert stored <= 10
        else:  # one steady round, and warm-up and cool-down chunk by chunk
            assert stored <= steady * ranks * chunks + 3 * steady * (chunks + rank + 2)


def fewest_units(order: tuple[Unit, ...]) -> int:
    """The fewest units that runs can store, tried one by one."""
    best = [0]
    for end in range(1, len(order) + 1):
        choices = [best[end - 1] + 1]
        for start in range(end):
            for period in range(1, (end - start) // 2 + 1):
                if (end - start) % period == 0 and repeats(order[start:end], period):
                    choices.append(best[start] + period)
        best.append(min(choices))
    return best[-1]


def repeats(order: tuple[Unit, ...], period: int) -> bool:
    step = order[period].microbatch - order[0].microbatch
    return all(
        b == a._replace(microbatch=a.microbatch + step)
        for a, b in zip(order, order[period:], strict=False)
    )


random_units = st.builds(
    Unit, st.sampled_from([Work.FORWARD, Work.BACKWARD]), st.integers(0, 1), st.integers(0, 2)
)


@QUICK
@given(
    st.lists(random_units, max_size=14) | st.lists(random_units, max_size=4).map(lambda u: u * 4)
)
def test_runs_of_any_order_are_lossless_and_as_short_as_can_be(units: list[Unit]) -> None:
    order = tuple(units)
    found = runs(order)
    assert expand(found) == order
    assert sum(len(run.units) for run in found) == fewest_units(order)
    assert all(run.trip_count > 1 or run.step == 0 for run in found)
