"""What holds for every schedule, whatever the numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from flint.passes.pipeline.compose.unit_rows import Round, UnitRun, expand, rounds, runs
from flint.passes.pipeline.schedule.schedules import ANY, SCHEDULES, orders, placement
from flint.passes.pipeline.schedule.simulate import (
    EQUAL_STAGES,
    activations_held,
    makespan,
    simulate,
)
from flint.passes.pipeline.schedule.units import Unit, UnitWork
from tests.published_schedules import BUBBLE, IN_FLIGHT
from tests.random_programs import QUICK

Numbers = tuple[str, int, int, int]


@st.composite
def numbers(draw: st.DrawFn) -> Numbers:
    """A schedule, ranks, microbatches and chunks that go together."""
    name = draw(st.sampled_from(list(SCHEDULES)))
    ranks = draw(st.integers(1, 9))
    microbatches = draw(st.integers(1, 20))
    chunks = draw(st.integers(1, 4)) if SCHEDULES[name].chunks == ANY else SCHEDULES[name].chunks
    if chunks > 1 and name == "interleaved-1f1b":
        microbatches = ranks * draw(st.integers(1, 4))
    if name == "dualpipev":
        microbatches += 2 * ranks - 1
    return name, ranks, microbatches, chunks


#: Schedules that split every backward pass; "dualpipev" splits some.
SPLIT = ("zb-h1", "zb-v")


def works(name: str) -> tuple[UnitWork, ...]:
    if not SCHEDULES[name].trains:
        return (UnitWork.FORWARD,)
    if name in SPLIT:
        return UnitWork.FORWARD, UnitWork.INPUT_BACKWARD, UnitWork.WEIGHT_BACKWARD
    return UnitWork.FORWARD, UnitWork.BACKWARD


def joined(order: Sequence[Unit]) -> list[Unit]:
    """The order with a whole backward pass where only the first of its two parts was."""
    return [
        unit._replace(work=UnitWork.BACKWARD) if unit.work is UnitWork.INPUT_BACKWARD else unit
        for unit in order
        if unit.work is not UnitWork.WEIGHT_BACKWARD
    ]


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
    for order in found:
        assert Counter(order if name != "dualpipev" else joined(order)) == once
        split = {work: [u[1:] for u in order if u.work is work] for work in UnitWork}
        assert Counter(split[UnitWork.INPUT_BACKWARD]) == Counter(split[UnitWork.WEIGHT_BACKWARD])


@QUICK
@given(numbers())
def test_every_rank_holds_its_chunks(given_numbers: Numbers) -> None:
    """Stage to rank and chunk, and back; whatever a rank runs is of a stage that it holds."""
    name, ranks, _, chunks = given_numbers
    found = placement(name, ranks, chunks)
    assert len(found.rank_of) == ranks * chunks == found.last_stage + 1
    for rank, stages in enumerate(found.stages_of):
        assert len(stages) == chunks and list(stages) == sorted(stages)
        assert all(found.rank_of[stage] == rank for stage in stages)
    neighbours = zip(found.rank_of, found.rank_of[1:], strict=False)
    assert all(abs(a - b) in (0, 1, ranks - 1) for a, b in neighbours)


@QUICK
@given(numbers(), st.lists(st.integers(1, 9), min_size=4, max_size=4), st.integers(0, 5))
def test_dependencies_hold_for_any_durations(
    given_numbers: Numbers, times: list[int], transfer_time: int
) -> None:
    name, ranks, _, chunks = given_numbers
    found, placed = orders(*given_numbers), placement(name, ranks, chunks)
    spans = simulate(found, placed, dict(zip(UnitWork, times, strict=True)), transfer_time)
    start, end = {}, {}
    for rank, order in enumerate(found):
        assert all(a.end <= b.start for a, b in zip(spans[rank], spans[rank][1:], strict=False))
        for (work, chunk, microbatch), span in zip(order, spans[rank], strict=True):
            key = work, placed.stages_of[rank][chunk], microbatch
            start[key], end[key] = span

    def moved(stage: int, other: int) -> int:
        return transfer_time if placed.rank_of[stage] != placed.rank_of[other] else 0

    def gradient(stage: int, microbatch: int) -> UnitWork:
        whole = (UnitWork.BACKWARD, stage, microbatch) in end
        return UnitWork.BACKWARD if whole else UnitWork.INPUT_BACKWARD

    for (work, stage, microbatch), begin in start.items():
        if work is UnitWork.FORWARD and stage:
            assert begin >= end[work, stage - 1, microbatch] + moved(stage, stage - 1)
        if work in (UnitWork.BACKWARD, UnitWork.INPUT_BACKWARD):
            assert begin >= end[UnitWork.FORWARD, stage, microbatch]
            if stage < ranks * chunks - 1:
                behind = gradient(stage + 1, microbatch), stage + 1, microbatch
                assert begin >= end[behind] + moved(stage, stage + 1)
        if work is UnitWork.WEIGHT_BACKWARD:
            assert begin >= end[UnitWork.INPUT_BACKWARD, stage, microbatch]


@QUICK
@given(numbers())
def test_activations_in_flight_are_as_known(given_numbers: Numbers) -> None:
    name, ranks, microbatches, chunks = given_numbers
    for rank, order in enumerate(orders(*given_numbers)):
        known = IN_FLIGHT[name](ranks, microbatches, chunks, rank)
        assert activations_held(order) == known


@QUICK
@given(numbers())
def test_bubble_is_as_known(given_numbers: Numbers) -> None:
    name, ranks, microbatches, chunks = given_numbers
    found = orders(*given_numbers)
    step = Fraction(makespan(simulate(found, placement(name, ranks, chunks))))
    for order in found:
        busy = sum(EQUAL_STAGES[unit.work] for unit in order)
        assert 1 - busy / step == BUBBLE[name](ranks, microbatches, chunks)


@QUICK
@given(numbers(), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_idle_time_is_as_published_for_other_durations(
    given_numbers: Numbers, forward: int, backward: int, weights: int
) -> None:
    """`(p - 1) (F + B)`, and `(p - 1) (F + B - W)` with W no longer than F or B."""
    name, ranks, microbatches, chunks = given_numbers
    if name in ("zb-v", "dualpipev"):
        backward = weights = forward  # what is published of these
    weights = min(weights, forward, backward)
    times = dict(zip(UnitWork, (forward, backward, backward, weights), strict=True))
    if name == "dualpipev":
        times[UnitWork.BACKWARD] = 2 * forward
    found = orders(*given_numbers)
    step = makespan(simulate(found, placement(name, ranks, chunks), times))
    idle = step - sum(times[unit.work] for unit in found[0])
    if name in ("zb-v", "dualpipev"):
        if microbatches >= 2 * ranks - 1:
            assert idle == (ranks - 1) * forward
    elif name in SPLIT:
        if microbatches >= ranks:
            assert idle == (ranks - 1) * (forward + backward - weights)
    elif SCHEDULES[name].trains:
        assert idle == (ranks - 1) * (forward + backward)
    elif microbatches % ranks == 0:
        assert idle == (ranks - 1) * forward


@QUICK
@given(numbers())
def test_values_arrive_in_the_order_in_which_they_are_read(given_numbers: Numbers) -> None:
    """Between two ranks, the n-th value of a pass sent in a direction is the n-th received."""
    name, ranks, _, chunks = given_numbers
    found, placed = orders(*given_numbers), placement(name, ranks, chunks)
    for step in (1, -1):
        sent: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        received: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for rank, order in enumerate(found):
            for work, chunk, microbatch in joined(order):
                if (work is UnitWork.FORWARD) != (step == 1):
                    continue
                stage = placed.stages_of[rank][chunk]
                if 0 <= stage + step <= placed.last_stage:
                    to = placed.rank_of[stage + step]
                    sent[rank, to].append((stage + step, microbatch))
                if 0 <= stage - step <= placed.last_stage:
                    received[placed.rank_of[stage - step], rank].append((stage, microbatch))
        assert sent == received


def expand_rounds(found: tuple[Round, ...]) -> tuple[Unit, ...]:
    """Return the order that rounds stand for."""
    return tuple(
        unit._replace(microbatch=unit.microbatch + iteration * each.step)
        for each in found
        for iteration in range(each.trip_count)
        for unit in expand(each.runs)
    )


@QUICK
@given(numbers())
def test_runs_of_schedules_are_lossless_and_short(given_numbers: Numbers) -> None:
    name, ranks, _, chunks = given_numbers
    for rank, order in enumerate(orders(*given_numbers)):
        found = runs(order)
        assert expand(found) == order
        stored = sum(len(run.units) for run in found)
        steady = 3 if name in (*SPLIT, "dualpipev") else 2
        if chunks == 1:
            assert len(found) <= 6
            assert stored <= 10
        else:  # one steady round, and warm-up and cool-down chunk by chunk
            assert stored <= steady * ranks * chunks + 3 * steady * (chunks + rank + 2)
        deep = rounds(order)
        assert expand_rounds(deep) == order
        assert sum(len(run.units) for each in deep for run in each.runs) <= stored


#: Units stored, loops, and iterations: a unit outside of loops is one.
Cost = tuple[int, int, int]


def least_cost(order: tuple[Unit, ...]) -> Cost:
    """What runs must store, as little as they can, tried one by one."""
    best: list[Cost] = [(0, 0, 0)]
    for end in range(1, len(order) + 1):
        choices = [plus(best[end - 1], (1, 0, 1))]
        for start in range(end):
            for period in range(1, (end - start) // 2 + 1):
                trips, rest = divmod(end - start, period)
                if not rest and repeats(order[start:end], period):
                    choices.append(plus(best[start], (period, 1, trips)))
        best.append(min(choices))
    return best[-1]


def plus(one: Cost, other: Cost) -> Cost:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def cost_of(found: tuple[UnitRun, ...]) -> Cost:
    loops = [run for run in found if run.trip_count > 1]
    alone = sum(len(run.units) for run in found if run.trip_count == 1)
    stored = alone + sum(len(run.units) for run in loops)
    return stored, len(loops), alone + sum(run.trip_count for run in loops)


def repeats(order: tuple[Unit, ...], period: int) -> bool:
    step = order[period].microbatch - order[0].microbatch
    return all(
        b == a._replace(microbatch=a.microbatch + step)
        for a, b in zip(order, order[period:], strict=False)
    )


random_units = st.builds(
    Unit,
    st.sampled_from([UnitWork.FORWARD, UnitWork.BACKWARD]),
    st.integers(0, 1),
    st.integers(0, 2),
)


@QUICK
@given(
    st.lists(random_units, max_size=14) | st.lists(random_units, max_size=4).map(lambda u: u * 4)
)
def test_runs_of_any_order_are_lossless_and_as_short_as_can_be(units: list[Unit]) -> None:
    order = tuple(units)
    found = runs(order)
    assert expand(found) == order
    assert expand_rounds(rounds(order)) == order
    assert cost_of(found) == least_cost(order)
    assert all(run.trip_count > 1 or run.step == 0 for run in found)
