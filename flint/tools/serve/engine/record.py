"""What is written down while engines run: times of requests, and sums over passes."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from flint.tools.serve.requests.table import Floats, Ints

#: Most points of the cache's use over time.
_MOST_POINTS = 256


class PassKind(StrEnum):
    """What a pass computes; HOST is the time of all passes in which the chip waits."""

    PREFILL = "prefill"
    MIXED = "mixed"
    DECODE = "decode"
    HOST = "host"


class Held(StrEnum):
    """Why the first of those who wait does not start."""

    SEQUENCES = "sequences"  #: as many run as may
    CACHE = "cache"  #: the cache has too few places
    TOKENS = "tokens"  #: the pass is full


class RequestTimes:
    """Times of requests in nanoseconds (NaN: never), and counts; row i is request i."""

    def __init__(self, requests: int) -> None:
        self.queued: Floats
        self.queued, self.scheduled, self.first, self.last = np.full((4, requests), np.nan)
        self.resumed: Floats = np.full(requests, np.nan)  #: first pass in a pool that decodes
        self.preemptions: Ints = np.zeros(requests, np.int64)
        self.cached: Ints = np.zeros(requests, np.int64)
        self.replica: Ints = np.full(requests, -1)


@dataclass
class Passes:
    """Sums over the passes of one engine; times in nanoseconds."""

    count: int = 0
    sequences: int = 0  #: over all passes
    decoded: int = 0
    prompt_tokens: int = 0  #: computed
    preemptions: int = 0
    end_ns: float = 0.0
    spent: dict[PassKind, float] = field(default_factory=lambda: dict.fromkeys(PassKind, 0.0))
    held_back: Counter[Held] = field(default_factory=Counter)  #: passes in which somebody waited
    gaps_ns: array[float] = field(default_factory=lambda: array("d"))
    gaps: array[int] = field(default_factory=lambda: array("q"))  #: sequences that saw the gap
    used_ns: float = 0.0  #: blocks x ns
    peak: int = 0
    points: list[tuple[float, int]] = field(default_factory=list)  #: end of a pass, blocks in use
    stride: int = 1

    def add(
        self, kind: PassKind, start_ns: float, end_ns: float, host_ns: float, used: int
    ) -> None:
        """A pass, and the blocks that were in use."""
        self.count += 1
        self.end_ns = end_ns
        self.spent[kind] += end_ns - start_ns - host_ns
        self.spent[PassKind.HOST] += host_ns
        self.used_ns += used * (end_ns - start_ns)
        self.peak = max(self.peak, used)
        if self.count % self.stride == 0:
            self.points.append((end_ns, used))
            if len(self.points) == _MOST_POINTS:
                self.points = self.points[1::2]
                self.stride *= 2

    def gap(self, ns: float, sequences: int) -> None:
        """Time between two tokens of so many sequences."""
        self.gaps_ns.append(ns)
        self.gaps.append(sequences)
