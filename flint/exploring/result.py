"""Result: what came of a point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from flint.exploring.point import Point


class Status(StrEnum):
    """How a point ended."""

    FITS = "fits"  #: it was estimated, and its memory fits
    TOO_LARGE = "too large"  #: its memory does not fit in a device
    REFUSED = "refused"  #: the program cannot run so: an error that a user can read
    FAILED = "failed"  #: Flint or a process of it failed


class Role(StrEnum):
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
    ranks: int
    end_ns: float
    memory_bytes: int
    waiting_ns: float = 0.0
    cache_bytes: int = 0
    role: Role = Role.STEP


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a point. Times are 0, tables empty where it was not estimated.

    `memory_bytes` is the largest peak of the rank classes, with what the runtime takes (as the
    estimate says it); of a point that was rejected before it was captured (`is_bound`) a lower bound.
    """

    point: Point
    status: Status
    devices: int
    #: Why it is not FITS: a sentence; and where in the user's code or memory that was decided.
    reason: str = ""
    code: str = ""
    place: str = ""
    step_time_ns: float = 0.0
    low_ns: float = 0.0
    high_ns: float = 0.0
    mfu: float = 0.0
    tokens: int = 0  #: of a step, on all devices; 0: not known
    memory_bytes: int = 0
    capacity_bytes: int = 0
    is_bound: bool = False
    #: Of the class that ends last: time in which its devices compute, wait for communication by mesh
    #: axes (exposed), wait for other ranks, and wait for the host.
    compute_ns: float = 0.0
    exposed_ns: Mapping[str, float] = field(default_factory=dict)
    waiting_ns: float = 0.0
    host_ns: float = 0.0
    #: Peak memory of the largest class, by kind.
    memory: Mapping[str, int] = field(default_factory=dict)
    classes: tuple[ClassResult, ...] = ()
    #: Stack, policy and profile that were taken.
    taken: Mapping[str, str] = field(default_factory=dict)
    #: Prices of the cluster's file: of a device for an hour, and its power in W; 0: not said.
    price_per_hour: float = 0.0
    power_w: float = 0.0
    notes: tuple[str, ...] = ()

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
        """The result that `to_json` gave."""
        values = dict(found)
        values["point"] = Point.from_json(values["point"])
        values["status"] = Status(values["status"])
        values["classes"] = tuple(
            ClassResult(**{**c, "role": Role(c.get("role", ""))}) for c in values.get("classes", ())
        )
        values["notes"] = tuple(values.get("notes", ()))
        return cls(**values)
