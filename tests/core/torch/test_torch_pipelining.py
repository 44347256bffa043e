"""Pipelines: what each stage sends and receives, and how shapes travel between processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import pipelining as pp
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from flint.errors import FlintError
from flint.frontends.torch_world.record.handover import Handover, wrong_assumptions
from flint.frontends.torch_world.runtime import pipelining

WIDTH, BATCH, MICROBATCHES, RANKS = 6, 8, 8, 4
ACTIVATION = BATCH // MICROBATCHES * WIDTH * 4  # bytes of a microbatch


class Messages(TorchDispatchMode):  # type: ignore[misc]
    """Notes point-to-point operators: kind, peer and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0].strip("_")
        if func.namespace == "c10d" and name in ("send", "recv"):
            self.seen.append((name, args[2], sum(t.nbytes for t in args[0])))
        return func(*args, **(kwargs or {}))


@contextmanager
def rank_of_world(rank: int, handover: Handover) -> Iterator[Messages]:
    dist.init_process_group("fake", rank=rank, world_size=RANKS, store=FakeStore())
    try:
        with pytest.MonkeyPatch.context() as patch, FakeTensorMode(), Messages() as messages:
            shapes = pipelining.StageShapes(handover)
            for name in ("_send_meta", "_recv_meta", "_forward_metadata_inference"):
                original = getattr(pp.PipelineStage, name)
                patch.setattr(pp.PipelineStage, name, shapes.replacement(name, original))
            base = pp.schedules._PipelineSchedule
            patch.setattr(base, "_warmup_p2p", pipelining.warm_up)
            yield messages
    finally:
        dist.destroy_process_group()


def run(
    rank: int, schedule: Any, stages: list[int], total: int, known: Mapping[str, bytes]
) -> tuple[Handover, Counter[tuple[str, int, int]]]:
    """The second step of one rank, and what it found out about shapes in the first."""
    handover = Handover(known)
    with rank_of_world(rank, handover) as messages:
        made = [
            pp.PipelineStage(nn.Linear(WIDTH, WIDTH), index, total, torch.device("cpu"))
            for index in stages
        ]
        single = issubclass(schedule, pp.schedules.PipelineScheduleSingle)
        plan = schedule(made[0] if single else made, MICROBATCHES, loss_fn=nn.functional.mse_loss)
        for _ in range(2):
            messages.seen.clear()
            step(plan, first=0 in stages, last=total - 1 in stages)
    return handover, Counter(messages.seen)


def step(plan: Any, first: bool, last: bool) -> None:
    inputs = [torch.ones(BATCH, WIDTH)] if first else []
    plan.step(*inputs, **({"target": torch.ones(BATCH, WIDTH)} if last else {}))


SINGLE = [pp.ScheduleGPipe, pp.Schedule1F1B]


@pytest.mark.parametrize("schedule", SINGLE, ids=lambda s: s.__name__)
def test_each_stage_exchanges_a_message_per_microbatch(schedule: Any) -> None:
    known: dict[str, bytes] = {}
    for rank in range(RANKS):
        handover, seen = run(rank, schedule, [rank], RANKS, known)
        known.update(handover.found)
        expected: Counter[tuple[str, int, int]] = Counter()
        for peer in (rank - 1, rank + 1):
            if 0 <= peer < RANKS:
                expected["send", peer, ACTIVATION] = MICROBATCHES
                expected["recv", peer, ACTIVATION] = MICROBATCHES
        assert seen == expected
        assert handover.assumed == {}
    assert len(known) == 3  # the last stage sends its output to nobody


INTERLEAVED = [pp.ScheduleInterleaved1F1B, pp.ScheduleInterleavedZeroBubble]


@pytest.mark.parametrize("schedule", INTERLEAVED, ids=lambda s: s.__name__)
def test_interleaved_stages_exchange_with_both_neighbours_in_a_ring(schedule: Any) -> None:
    known: dict[str, bytes] = {}
    assumed: dict[str, bytes] = {}
    for rank in range(RANKS):
        handover, seen = run(rank, schedule, [rank, rank + RANKS], 2 * RANKS, known)
        known.update(handover.found)
        assumed.update(handover.assumed)
        expected: Counter[tuple[str, int, int]] = Counter()
        for stage in (rank, rank + RANKS):
            for other in (stage - 1, stage + 1):
                if 0 <= other < 2 * RANKS:
                    expected["send", other % RANKS, ACTIVATION] += MICROBATCHES
                    expected["recv", other % RANKS, ACTIVATION] += MICROBATCHES
        assert seen == expected
    assert list(assumed) == [
        "output of pipeline stage 3"
    ]  # rank 0 needs stage 3's output before rank 3 ran
    assert wrong_assumptions(assumed, known) == []


def test_zero_bubble_v_keeps_the_turn_within_a_rank() -> None:
    known: dict[str, bytes] = {}
    for rank in range(RANKS):
        stages = [rank, 2 * RANKS - 1 - rank]
        handover, seen = run(rank, pp.ScheduleZBVZeroBubble, stages, 2 * RANKS, known)
        known.update(handover.found)
        neighbours = sum(0 <= peer < RANKS for peer in (rank - 1, rank + 1))
        assert sum(seen.values()) == 4 * MICROBATCHES * neighbours
        assert {num_bytes for _, _, num_bytes in seen} == {ACTIVATION}


def test_a_rank_that_knows_no_stage_before_it_asks_for_shapes() -> None:
    with pytest.raises(FlintError, match="input of pipeline stage 2 is not known") as caught:
        run(2, pp.Schedule1F1B, [2], RANKS, {})
    assert caught.value.code == "FL235"


def test_a_stage_that_cannot_take_what_was_assumed_asks_for_shapes() -> None:
    first, _ = run(0, pp.Schedule1F1B, [0], RANKS, {})
    with rank_of_world(3, Handover(first.found)), pytest.raises(FlintError) as caught:
        stage = pp.PipelineStage(nn.Linear(WIDTH + 1, 2), 3, RANKS, torch.device("cpu"))
        step(pp.Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss), False, True)
    assert caught.value.code == "FL235" and "stage 3" in caught.value.message


def test_assumptions_that_turn_out_wrong_are_named() -> None:
    assert wrong_assumptions({"3": b"a", "5": b"b"}, {"3": b"c", "4": b"d"}) == ["3"]


def test_shapes_that_the_program_gives_need_nothing() -> None:
    handover = Handover()
    with rank_of_world(2, handover) as messages:
        given = torch.ones(1, WIDTH, requires_grad=True)
        stage = pp.PipelineStage(
            nn.Linear(WIDTH, WIDTH),
            2,
            RANKS,
            torch.device("cpu"),
            input_args=given,
            output_args=given,
        )
        step(pp.Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss), False, False)
    assert len(messages.seen) == 4 * MICROBATCHES
    assert handover.found == {}
