"""Result: what came of a point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from flint.io.records import (
    Bytes,
    Count,
    Nanoseconds,
    NonNegative,
    Positive,
    Utilisation,
    record_of,
)
from flint.tools.explore.point import Point

#: By how much sums of a step may miss it, as numbers are rounded.
_ROUNDED = 1e-6


class Status(StrEnum):
    """How a point ended."""

    FITS = "fits"  #: it was estimated, and its memory fits
    TOO_LARGE = "too large"  #: its memory does not fit in a device
    REFUSED = "refused"  #: the program cannot run so: an error that a user can read
    FAILED = "failed"  #: Flint or a process of it failed


#: Times of requests that are served, and the percentiles that are known of them.
SERVED, PERCENTILES = ("ttft", "tpot", "latency"), (50, 90, 99)


class PoolRole(StrEnum):
    """What a rank class serves: of a step that is one of two pools."""

    STEP = ""  #: there are no pools
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class ClassResult:
    """A rank class of the step: its ranks, when it ends, what its memory holds at its peak.

    `waiting_ns` is how long it waits for other ranks until then (of pools, and of the class that ends
    last; 0 for others), `cache_bytes` what of its memory are
    arguments that an inference step updates in place: its caches of keys and values.
    """

    name: str
    ranks: Count
    end_ns: Nanoseconds
    memory_bytes: Bytes
    waiting_ns: Nanoseconds = 0.0
    cache_bytes: Bytes = 0
    role: PoolRole = PoolRole.STEP


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a point. Times are 0, tables empty where it was not estimated.

    `memory_bytes` is the largest peak of the rank classes, with what the runtime takes (as the
    estimate says it); of a point that was rejected before it was captured (`is_bound`) a lower bound.
    """

    point: Point
    status: Status
    devices: Positive
    #: Why it is not FITS: a sentence; and where in the user's code or memory that was decided.
    reason: str = ""
    code: str = ""
    place: str = ""
    step_time_ns: Nanoseconds = 0.0
    #: To the first token and to each further one, of a recorded loop that generates tokens; of requests
    #: that are served the means.
    ttft_ns: Nanoseconds = 0.0
    tpot_ns: Nanoseconds = 0.0
    low_ns: Nanoseconds = 0.0
    high_ns: Nanoseconds = 0.0
    mfu: Utilisation = 0.0
    tokens: Count = 0  #: of a step, on all devices; 0: not known
    memory_bytes: Bytes = 0
    capacity_bytes: Bytes = 0
    is_bound: bool = False
    #: Of the class that ends last: time in which its devices compute, wait for communication by mesh
    #: axes (exposed), wait for other ranks, and wait for the host.
    compute_ns: Nanoseconds = 0.0
    exposed_ns: Mapping[str, Nanoseconds] = field(default_factory=dict)
    waiting_ns: Nanoseconds = 0.0
    host_ns: Nanoseconds = 0.0
    #: Peak memory of the largest class, by kind.
    memory: Mapping[str, Bytes] = field(default_factory=dict)
    classes: tuple[ClassResult, ...] = ()
    #: Stack, policy and profile that were taken.
    taken: Mapping[str, str] = field(default_factory=dict)
    #: Prices of the cluster's file: of a device for an hour, and its power in W; 0: not said.
    price_per_hour: NonNegative = 0.0
    power_w: NonNegative = 0.0
    notes: tuple[str, ...] = ()
    #: Of a replay of requests: percentiles of times in ns (`ttft_p99`), requests and tokens a second.
    served: Mapping[str, NonNegative] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Every field that says something, JSON-able."""
        found = asdict(self)
        found["point"] = self.point.to_json()
        found["status"] = self.status.value
        found["classes"] = [asdict(c) for c in self.classes]
        found["notes"] = list(self.notes)
        return {k: v for k, v in found.items() if v or k in ("point", "status", "devices")}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Result:
        """The result that `to_json` gave. Raises Malformed for numbers that cannot be."""
        return record_of(cls, found)

    def contradiction(self) -> str:
        """What of its numbers cannot all be true; "" where they can."""
        step = self.step_time_ns * (1 + _ROUNDED) + 1
        if self.high_ns and not self.low_ns <= self.step_time_ns <= self.high_ns:
            return f"a step of {self.step_time_ns} ns is not from {self.low_ns} to {self.high_ns}"
        parts = (self.compute_ns, self.waiting_ns, self.host_ns, *self.exposed_ns.values())
        if max(parts) > step or any(max(c.end_ns, c.waiting_ns) > step for c in self.classes):
            return f"a part of the step takes longer than all of its {self.step_time_ns} ns"
        if max((*self.memory.values(), 0)) > self.memory_bytes:
            return f"a kind of memory is more than all {self.memory_bytes} bytes"
        if self.status is Status.FITS and self.memory_bytes > self.capacity_bytes > 0:
            return f"{self.memory_bytes} bytes fit into {self.capacity_bytes}"
        return ""
