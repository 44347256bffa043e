"""Requests in columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Prefixes:
    """Hashes of the full blocks of prompts: request i has hashes[start[i]:start[i + 1]].

    A hash stands for its block and all before it, so equal hashes mean equal prompts up to there.
    """

    start: Ints
    hashes: Ints
    block_tokens: int

    def of(self, request: int) -> list[int]:
        """The hashes of one request."""
        found: list[int] = self.hashes[self.start[request] : self.start[request + 1]].tolist()
        return found


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in the order of their arrival. Row i of each column is one request.

    With `concurrency`, arrivals are not used: so many requests are under way at any time, and the
    next arrives when one ends.
    """

    source: str
    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    priority: Ints  #: lower numbers first, where an engine schedules by priority
    prefixes: Prefixes | None = None
    concurrency: int | None = None
    #: What was assumed and left out, a sentence each.
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """Seconds between the first and the last arrival."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0
