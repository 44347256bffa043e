"""Which earlier step lends dimensions: the latest one for each run of dimensions of a shape."""

from __future__ import annotations

from typing import NamedTuple

from flint.tools.share.synth.codec.value_type import Shape

#: Shapes with more dimensions lend none.
_MOST_RANK = 8


class Loan(NamedTuple):
    """Dimensions `start:stop` of a step whose result has `rank` dimensions."""

    step: int
    start: int
    stop: int
    rank: int


class Lenders:
    """Runs of dimensions of the steps so far."""

    def __init__(self) -> None:
        self._latest: dict[Shape, Loan] = {}
        self._runs: dict[Shape, list[tuple[int, int]]] = {}

    def add(self, step: int, shape: Shape) -> None:
        """Let a step lend its dimensions."""
        rank = len(shape)
        if rank > _MOST_RANK:
            return
        for start in range(rank):
            for stop in range(start + 1, rank + 1):
                self._latest[shape[start:stop]] = Loan(step, start, stop, rank)
        self._latest[shape] = Loan(step, 0, rank, rank)  # a whole shape rather than a run of it

    def longest(self, shape: Shape) -> Loan | None:
        """Who lends the longest run that `shape` begins with, other than a 1 alone."""
        for stop in range(len(shape), 0, -1):
            found = self._latest.get(shape[:stop])
            if found is not None:
                return found
        return None
