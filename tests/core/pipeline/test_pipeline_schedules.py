"""Orders, runs and times of schedules in cases that can be checked by hand."""

import time

import pytest

from flint.errors import FlintError
from flint.passes.pipeline.compose.unit_rows import UnitRun, expand, rounds, runs
from flint.passes.pipeline.schedule.schedules import ANY, SCHEDULES, orders, placement
from flint.passes.pipeline.schedule.simulate import UnitSpan, activations_held, makespan, simulate
from flint.passes.pipeline.schedule.units import StagePlacement, Unit, UnitWork, folded

LETTERS = {"F": UnitWork.FORWARD, "B": UnitWork.BACKWARD, "I": UnitWork.INPUT_BACKWARD}
LETTERS["W"] = UnitWork.WEIGHT_BACKWARD


def written(text):
    """`F0.1` is the forward pass of microbatch 0 through chunk 1."""
    fields = [(word[0], *word[1:].split(".")) for word in text.split()]
    return tuple(
        Unit(LETTERS[work], int(chunk[0]) if chunk else 0, int(microbatch))
        for work, microbatch, *chunk in fields
    )


BY_HAND = {
    ("gpipe", 2, 3, 1): 2 * ("F0 F1 F2 B0 B1 B2",),
    ("1f1b", 3, 4, 1): (
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ),
    ("interleaved-1f1b", 2, 4, 2): (
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0",
    ),
    ("zb-h1", 3, 4, 1): (
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ),
    ("zb-v", 2, 4, 2): (
        (
            "F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F3.0 I0.0 W0.0 F2.1 I2.1 W2.1 "
            "I1.0 W1.0 F3.1 I3.1 W3.1 I2.0 W2.0 I3.0 W3.0"
        ),
        (
            "F0.0 F0.1 F1.0 F1.1 I0.1 W0.1 F2.0 I0.0 W0.0 F2.1 I1.1 W1.1 F3.0 I1.0 W1.0 "
            "F3.1 I2.1 W2.1 I2.0 I3.1 I3.0 W2.0 W3.1 W3.0"
        ),
    ),
    ("dualpipev", 2, 4, 2): (
        (
            "F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 F3.0 B1.1 F2.1 B0.0 B2.1 F3.1 B1.0 B3.1 "
            "I2.0 W2.0 I3.0 W3.0"
        ),
        "F0.0 F0.1 F1.0 F1.1 F2.0 B0.1 F2.1 B0.0 F3.0 B1.1 F3.1 B1.0 B2.1 B2.0 I3.1 I3.0 W3.1 W3.0",
    ),
    ("forward", 2, 3, 1): 2 * ("F0 F1 F2",),
    ("forward", 2, 3, 2): 2 * ("F0.0 F1.0 F0.1 F1.1 F2.0 F2.1",),
}


@pytest.mark.parametrize("asked", BY_HAND)
def test_orders_by_hand(asked):
    *given, chunks = asked
    assert orders(*given, chunks=chunks) == tuple(map(written, BY_HAND[asked]))


def test_stages_lie_in_a_loop_or_turn_round_at_the_last_rank():
    assert placement("interleaved-1f1b", 3, 2).rank_of == (0, 1, 2, 0, 1, 2)
    assert placement("interleaved-1f1b", 3, 2).stages_of == ((0, 3), (1, 4), (2, 5))
    assert placement("zb-v", 3, 2).rank_of == (0, 1, 2, 2, 1, 0)
    assert placement("zb-v", 3, 2).stages_of == ((0, 5), (1, 4), (2, 3))
    assert StagePlacement.of(folded, 2, 4).rank_of == (0, 1, 1, 0, 0, 1, 1, 0)
    assert placement("interleaved-1f1b", 3, 2).is_ring
    assert not placement("zb-v", 3, 2).is_ring


def test_one_rank_runs_everything_without_waiting():
    assert orders("1f1b", 1, 2) == (written("F0 B0 F1 B1"),)
    assert orders("zb-h1", 1, 2) == (written("F0 I0 W0 F1 I1 W1"),)
    assert orders("interleaved-1f1b", 1, 1, chunks=2) == (written("F0.0 F0.1 B0.1 B0.0"),)


def test_interleaving_one_chunk_is_1f1b():
    assert orders("interleaved-1f1b", 4, 6) == orders("1f1b", 4, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1f1c", 4, 8), "unknown schedule '1f1c'; did you mean '1f1b'?"),
        (("1f1b", 4, 8, 2), "schedule '1f1b' has one stage per rank, not 2 chunks"),
        (("zb-v", 4, 8), "schedule 'zb-v' has 2 stages per rank, not 1 chunk"),
        (
            ("dualpipev", 4, 7, 2),
            "schedule 'dualpipev' cannot fill 4 ranks with 7 microbatches",
        ),
        (
            ("interleaved-1f1b", 4, 6, 2),
            "schedule 'interleaved-1f1b' cannot interleave 6 microbatches on 4 ranks",
        ),
        (("gpipe", 4, 0), "a pipeline with 0 microbatches"),
        (("gpipe", 0, 4), "a pipeline with 0 ranks"),
        (("forward", 4, 4, 0), "a pipeline with 0 chunks"),
    ],
)
def test_impossible_schedules(arguments, message):
    with pytest.raises(FlintError) as caught:
        orders(*arguments)
    assert (caught.value.code, caught.value.message) == ("FL246", message)
    assert caught.value.help


def test_spans_of_two_stages_by_hand():
    spans = simulate(orders("1f1b", 2, 2), placement("1f1b", 2), transfer_time=1)
    # F0 of rank 1 waits for F0 of rank 0 (1) and its transfer (1); B1 of rank 0 for rank 1's
    assert spans == (
        (UnitSpan(0, 1), UnitSpan(1, 2), UnitSpan(6, 8), UnitSpan(9, 11)),
        (UnitSpan(2, 3), UnitSpan(3, 5), UnitSpan(5, 6), UnitSpan(6, 8)),
    )
    assert makespan(spans) == 11


def test_neighbouring_chunks_of_one_rank_transfer_nothing():
    chunked = orders("forward", 1, 1, chunks=3)
    assert makespan(simulate(chunked, placement("forward", 1, 3), transfer_time=100)) == 3
    order = (written("F0.0 F0.1"), written("F0.0 F0.1"))
    there_and_back = simulate(order, placement("zb-v", 2, 2), transfer_time=100)
    assert there_and_back == (
        (UnitSpan(0, 1), UnitSpan(203, 204)),
        (UnitSpan(101, 102), UnitSpan(102, 103)),
    )


def test_an_order_that_deadlocks_is_found():
    swapped = (written("F0 F1 B1 B0"), written("F0 B0 F1 B1"))
    assert makespan(simulate(swapped, placement("1f1b", 2))) > 0  # late, but it ends
    with pytest.raises(ValueError, match="rank 0: .*BACKWARD.* rank 1: .*FORWARD"):
        simulate((written("F0 B0 F1 B1"), written("F1 B1 F0 B0")), placement("1f1b", 2))


def test_activations_are_held_until_the_last_part_of_the_backward_pass():
    assert activations_held(written("F0 F1 B0 B1 F2 B2")) == 2
    assert activations_held(written("F0 I0 F1 I1 W0 W1")) == 2
    assert activations_held(written("F0 F1 F2")) == 1
    assert activations_held(written("F0 I0 F1 B1 W0")) == 2


def test_1f1b_is_three_runs():
    first, middle, last = orders("1f1b", 3, 16)
    assert runs(first) == (
        UnitRun(written("F0"), 2, 1),
        UnitRun(written("F2 B0"), 14, 1),
        UnitRun(written("B14"), 2, 1),
    )
    assert runs(middle) == (
        UnitRun(written("F0"), 1, 0),
        UnitRun(written("F1 B0"), 15, 1),
        UnitRun(written("B15"), 1, 0),
    )
    assert runs(last) == (UnitRun(written("F0 B0"), 16, 1),)


def test_interleaved_steady_state_advances_by_a_round():
    order = orders("interleaved-1f1b", 2, 64, chunks=2)[0]
    steady = max(runs(order), key=lambda run: run.trip_count)
    assert (len(steady.units), steady.step) == (8, 2)
    assert steady.trip_count >= 29


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "chunks", "microbatches"), [(8, 8, 512), (16, 4, 256), (32, 2, 1024)]
)
def test_rounds_of_64_interleaved_stages_do_not_grow(ranks, chunks, microbatches):
    """The steady state of each chunk is a loop inside of the loop over rounds."""
    for order in orders("interleaved-1f1b", ranks, microbatches, chunks):
        found = rounds(order)
        stored = sum(len(run.units) for each in found for run in each.runs)
        assert stored <= 10 * chunks
        assert max(each.trip_count for each in found) >= microbatches // ranks - 2


def test_runs_of_nothing_and_of_one():
    assert rounds(()) == ()
    assert runs(()) == ()
    assert runs(written("F3")) == (UnitRun(written("F3"), 1, 0),)
    assert runs(written("F3 F3")) == (UnitRun(written("F3"), 2, 0),)
    assert runs(written("B3 B2 B1")) == (UnitRun(written("B3"), 3, -1),)
    assert expand(runs(written("B3 B2 B1"))) == written("B3 B2 B1")


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_long_orders_are_compressed_quickly(schedule):
    chunks = 2 if SCHEDULES[schedule].chunks in (ANY, 2) else 1
    order = orders(schedule, 64, 512, chunks)[5]
    start = time.process_time()
    found = runs(order)
    assert time.process_time() - start < 1  # 0.02 s
    assert expand(found) == order
    assert sum(len(run.units) for run in found) <= (64 if chunks > 1 else 10)
