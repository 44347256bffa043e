"""What is written down while engines run: times of requests, and sums over passes."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from flint.tools.serve.requests.table import Floats, Ints


class PassKind(StrEnum):
    """What a pass computes; HOST is the time of all passes in which the chip waits."""

    PREFILL = "prefill"
    MIXED = "mixed"
    DECODE = "decode"
    HOST = "host"


#: Kinds of passes by their number in `Passes`.
KINDS = (PassKind.PREFILL, PassKind.MIXED, PassKind.DECODE)


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


class PassColumns(NamedTuple):
    """The passes of one engine, one after another; times in nanoseconds."""

    start_ns: Floats
    end_ns: Floats
    kind: Floats  #: a number of `KINDS`
    decodes: Floats  #: sequences that decode
    prompts: Floats  #: others
    new: Floats  #: tokens of prompts
    used: Floats  #: blocks of the cache
    waiting: Floats  #: sequences that do not run
    context: Floats  #: tokens in the caches of those that decode


@dataclass
class Passes:
    """What one engine did; times in nanoseconds."""

    preemptions: int = 0
    held_back: Counter[Held] = field(default_factory=Counter)  #: passes in which somebody waited
    gaps_ns: array[float] = field(default_factory=lambda: array("d"))
    gaps: array[int] = field(default_factory=lambda: array("q"))  #: sequences that saw the gap
    rows: array[float] = field(default_factory=lambda: array("d"))  #: `PassColumns`, pass by pass
    #: of each part of a prompt: its pass, request, new tokens, and those in the cache before
    chunks: array[int] = field(default_factory=lambda: array("q"))
    #: requests that decode: between which two numbers of passes that decode, the first one not among them
    decodes: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.rows) // len(PassColumns._fields)

    @property
    def columns(self) -> PassColumns:
        """All passes."""
        return PassColumns(*np.array(self.rows).reshape(-1, len(PassColumns._fields)).T)

    def gap(self, ns: float, sequences: int) -> None:
        """Time between two tokens of so many sequences."""
        self.gaps_ns.append(ns)
        self.gaps.append(sequences)
