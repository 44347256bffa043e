"""What ranks find out reaches those that are recorded after them. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from flint.errors import FlintError
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import Relay
from flint.frontends.torch_world.record.recording import Recording

Told = Mapping[str, bytes]
Program = Callable[[int, Told], tuple[Told, Told]]


class Processes:
    """Runs `program(rank, known)`, which returns what it found and assumed, and notes who ran."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ran: list[list[int]] = []

    def __call__(self, jobs: Sequence[Job]) -> list[Recording]:
        self.ran.append([job.rank for job in jobs])
        return [self.record(job) for job in jobs]

    def record(self, job: Job) -> Recording:
        found, assumed = self.program(job.rank, job.known)
        return Recording(job.rank, 4, (), (), {}, (), {}, found=found, assumed=assumed)


def stage(rank: int, known: Told) -> tuple[Told, Told]:
    """A pipeline whose activations change their shape after stage 1."""
    truth = b"wide" if rank < 1 else b"narrow"
    assumed = {}
    if rank and f"stage {rank - 1}" not in known:
        if not known:
            raise FlintError("FL235", "the input is not known")
        assumed = {f"stage {rank - 1}": b"wide"}
    return {f"stage {rank}": truth}, assumed


def test_a_wrong_assumption_is_recorded_again() -> None:
    processes = Processes(stage)
    relay = Relay(Job(), processes)
    relay([0])
    recordings = relay([1, 2, 3])
    assert [recording.rank for recording in recordings] == [1, 2, 3]
    assert processes.ran == [[0], [1, 2, 3], [2, 3]]  # 1 knew, 2 and 3 assumed "wide"
    assert all(not recording.assumed for recording in recordings)


def test_ranks_that_cannot_run_together_run_upwards() -> None:
    processes = Processes(stage)
    recordings = Relay(Job(), processes)([3, 0, 1, 2])
    assert [recording.rank for recording in recordings] == [3, 0, 1, 2]
    assert processes.ran == [[3, 0, 1, 2], [0], [1], [2], [3]]


def test_other_errors_are_raised_at_once() -> None:
    def fails(rank: int, known: Told) -> tuple[Told, Told]:
        raise FlintError("FL230", "the program raised")

    processes = Processes(fails)
    with pytest.raises(FlintError, match="the program raised"):
        Relay(Job(), processes)([0, 1])
    assert processes.ran == [[0, 1]]
