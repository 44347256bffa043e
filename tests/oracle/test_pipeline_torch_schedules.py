"""Schedules that turn round at the last rank, against the tables of torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flint.passes.pipeline.schedule.schedules import orders, placement
from flint.passes.pipeline.schedule.units import UnitWork

schedules = pytest.importorskip(
    "torch.distributed.pipelining.schedules", reason="PyTorch has the tables"
)
_FOLDED = {"zb-v": "ScheduleZBVZeroBubble", "dualpipev": "ScheduleDualPipeV"}
_WORK = {
    "FORWARD": UnitWork.FORWARD,
    "FULL_BACKWARD": UnitWork.BACKWARD,
    "BACKWARD_INPUT": UnitWork.INPUT_BACKWARD,
    "BACKWARD_WEIGHT": UnitWork.WEIGHT_BACKWARD,
}

#: What runs at one time: passes as (work, stage, microbatch), one or two.
Block = list[tuple[UnitWork, int, int]]


def table(name: str, ranks: int, microbatches: int) -> list[list[Block]]:
    """PyTorch's order of every rank."""
    if not hasattr(schedules, _FOLDED[name]):
        pytest.skip(f"this PyTorch has no {_FOLDED[name]}")
    from torch.distributed.pipelining.stage import _PipelineStageBase

    class _Nowhere(_PipelineStageBase):  # type: ignore[misc]
        """A stage that only says where it is."""

        def __init__(self, stage: int) -> None:
            self.stage_index, self.num_stages = stage, 2 * ranks
            self.group_rank, self.group_size = min(stage, 2 * ranks - 1 - stage), ranks
            self.group = self.submod = None
            self.has_backward = False

    _Nowhere.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    stages: list[Any] = [_Nowhere(0), _Nowhere(2 * ranks - 1)]
    made = getattr(schedules, _FOLDED[name])(stages, microbatches, loss_fn=lambda *_: 0)
    return [list(_blocks(made.pipeline_order[rank])) for rank in range(ranks)]


def _blocks(actions: list[Any]) -> Iterator[Block]:
    for action in actions:
        if action is not None:
            parts = getattr(action, "sub_actions", None) or (action,)
            yield [
                (_WORK[p.computation_type.name], p.stage_index, p.microbatch_index) for p in parts
            ]


#: Microbatches beyond two for each rank; DualPipeV has no less.
_CASES = [("zb-v", more) for more in (-100, -3, 0, 1, 5, 20)]
_CASES += [("dualpipev", more) for more in (0, 1, 5, 20)]


@pytest.mark.parametrize(("name", "more"), _CASES)
@pytest.mark.parametrize("ranks", range(1, 9))
def test_orders_are_those_of_pytorch(name: str, more: int, ranks: int) -> None:
    microbatches = max(1, 2 * ranks + more)
    placed = placement(name, ranks, 2)
    ours = [
        [(unit.work, placed.stages_of[rank][unit.chunk], unit.microbatch) for unit in order]
        for rank, order in enumerate(orders(name, ranks, microbatches, 2))
    ]
    theirs = table(name, ranks, microbatches)
    assert ours == [[unit for block in order for unit in block] for order in theirs]


@pytest.mark.parametrize("together", [3, 4, 5])
@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_passes_side_by_side_wait_as_published(ranks: int, together: int) -> None:
    """`(p - 1) (F&B + B - 3 W)`: F&B is the time of a forward and a backward pass at once.

    DeepSeek's table of DualPipeV, with PP = 2p stages on p ranks; here F = W = 1, B = 2.
    """
    microbatches = 3 * ranks
    rows = table("dualpipev", ranks, microbatches)
    ends = _ends(rows, together, 2 * ranks - 1)
    busy = [sum(_time(block, together) for block in row) for row in rows]
    step = max(ends.values())
    assert step - max(busy) == (ranks - 1) * (together + 2 - 3)


def _time(block: Block, together: int) -> int:
    if len(block) == 2:
        return together
    return 2 if block[0][0] is UnitWork.BACKWARD else 1


def _ends(
    rows: list[list[Block]], together: int, last: int
) -> dict[tuple[UnitWork, int, int], int]:
    """When each pass ends; what runs together begins and ends together."""
    ends: dict[tuple[UnitWork, int, int], int] = {}
    clock, at = [0] * len(rows), [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                block = row[at[rank]]
                needs = [need for unit in block for need in _needs(*unit, last)]
                found = [next((ends[n] for n in need if n in ends), None) for need in needs]
                if None in found:
                    break
                start = max([clock[rank], *(f for f in found if f is not None)])
                clock[rank] = start + _time(block, together)
                ends.update(dict.fromkeys(block, clock[rank]))
                at[rank] += 1
                moved = True
    assert at == [len(row) for row in rows], "the table deadlocks"
    return ends


def _needs(work: UnitWork, stage: int, microbatch: int, last: int) -> Iterator[Block]:
    """What a pass waits for: one of each list."""
    if work is UnitWork.FORWARD:
        if stage:
            yield [(UnitWork.FORWARD, stage - 1, microbatch)]
    elif work is not UnitWork.WEIGHT_BACKWARD:
        yield [(UnitWork.FORWARD, stage, microbatch)]
        if stage < last:
            whole, part = UnitWork.BACKWARD, UnitWork.INPUT_BACKWARD
            yield [(whole, stage + 1, microbatch), (part, stage + 1, microbatch)]
