"""What was recorded where a workload is made of profiles: the tool, the device, the measured step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MeasuredClass:
    """One rank's profile, the program of which is that of a rank class.

    `span_ns` is the recorded time of the step that the program holds: from the start of the first
    thing in it, on host or device, to the end of the last on the device. `steps` are the steps that
    the profile has, of which one was taken; `period_ns` is the median period between their ends, 0
    where no step follows another. `peak_bytes` is the most memory that the framework's
    allocator held, 0 where the profile does not say.
    """

    rank: int
    span_ns: float
    steps: int
    peak_bytes: int = 0
    period_ns: float = 0.0

    @property
    def step_ns(self) -> float:
        """The time of a step: the period of several, of a single one its span."""
        return self.period_ns or self.span_ns


@dataclass(frozen=True, slots=True)
class MeasuredBy:
    """A profiler's format ("kineto", "xplane", ...), the device's name, and what was recorded.

    `classes` goes by rank class of the workload. Ranks without a profile are in the class of one that
    has.
    """

    format: str
    device: str
    classes: tuple[MeasuredClass, ...]

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> MeasuredBy:
        """What `to_json` gave."""
        classes = tuple(MeasuredClass(**c) for c in found["classes"])
        return cls(str(found["format"]), str(found["device"]), classes)

    def to_json(self) -> dict[str, Any]:
        """For a workload's metadata, key "measured"."""
        return asdict(self)
