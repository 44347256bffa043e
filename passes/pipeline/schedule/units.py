"""What a schedule orders, one pass of one microbatch through one stage, and where stages lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple


class UnitWork(IntEnum):
    """Which pass."""

    FORWARD = 0
    BACKWARD = 1  #: the whole backward pass
    INPUT_BACKWARD = 2  #: its part that the stage before waits for
    WEIGHT_BACKWARD = 3  #: the rest: gradients of parameters


class Unit(NamedTuple):
    """One pass of microbatch `microbatch` through the `chunk`-th stage that a rank holds."""

    work: UnitWork
    chunk: int
    microbatch: int


#: `(ranks, stage)` to the rank that holds the stage.
Place = Callable[[int, int], int]


def looped(ranks: int, stage: int) -> int:
    """The last rank's stage is followed by one of the first rank: 0 1 2 3 0 1 2 3."""
    return stage % ranks


def folded(ranks: int, stage: int) -> int:
    """Stages turn around at the last rank, and again at the first one: 0 1 2 3 3 2 1 0."""
    there = stage % (2 * ranks)
    return min(there, 2 * ranks - 1 - there)


@dataclass(frozen=True)
class StagePlacement:
    """The rank of each stage. Chunk c of a rank is its c-th stage, in the order of stages.

    As many stages as there are ranks make a round, which visits every rank once: so each rank
    holds as many stages as there are rounds, and chunk c is of round c.
    """

    ranks: int
    rank_of: tuple[int, ...]

    @classmethod
    def of(cls, place: Place, ranks: int, chunks: int) -> StagePlacement:
        """`chunks` stages on each of `ranks` ranks, where `place` puts them."""
        rank_of = tuple(place(ranks, stage) for stage in range(ranks * chunks))
        for first in range(0, len(rank_of), ranks):
            visited = sorted(rank_of[first : first + ranks])
            assert visited == list(range(ranks)), f"a round of stages visits ranks {visited}"
        return cls(ranks, rank_of)

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each rank, chunk by chunk."""
        found: list[list[int]] = [[] for _ in range(self.ranks)]
        for stage, rank in enumerate(self.rank_of):
            found[rank].append(stage)
        return tuple(map(tuple, found))

    @property
    def last_stage(self) -> int:
        """The number of the stage that computes the loss."""
        return len(self.rank_of) - 1

    @property
    def is_ring(self) -> bool:
        """Whether each stage is followed by one of the next rank, and the last rank by the first."""
        ranks = self.rank_of
        return all(b == (a + 1) % self.ranks for a, b in pairwise(ranks))
