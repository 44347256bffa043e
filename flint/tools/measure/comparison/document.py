"""A measured comparison as `flint compare --json` writes it."""

from __future__ import annotations

from typing import Final, Literal

from typing_extensions import TypedDict

from flint.backends.cost.replay.attribution import Attribution
from flint.tools.measure.comparison.comparison import Alone, KindRow, MeasuredComparison
from flint.tools.measure.comparison.parts import Cause

SCHEMA: Final = "flint.compare/1"


class ComparedSizeDocument(TypedDict):
    """Calls of one class in the same place of both steps, with other sizes."""

    measured: Alone  #: As they were measured.
    captured: Alone  #: As they were captured.


class CompareDocument(TypedDict):
    """A measured step beside a captured one that is priced on a cluster."""

    schema: Literal["flint.compare/1"]  #: Kind and version of this document.
    rank: int  #: The profiled rank.
    device: str  #: Its device, as the profiler names it.
    cluster: str  #: The cluster on which the capture is priced.
    measured_step_ns: float  #: The recorded step.
    estimated_step_ns: float  #: The step of the capture.
    replay_error: float
    """How much longer the replay of the measurement is than what was measured, as a share."""
    matched_time: float
    """Share of the measured time of kernels and communication that the capture has in the same size."""
    matched_calls: float  #: Share of the measured calls that the capture has in the same size.
    matched_estimated_time: float
    """Share of the estimated time that was measured in the same size."""
    in_other_forms: float
    """Share of the measured time in operations that the capture writes in another way."""
    measured_parts: Attribution  #: Of the measured step.
    estimated_parts: Attribution  #: Of the estimated step.
    kinds: tuple[KindRow, ...]  #: Kinds of kernels and communication, longest first.
    other_sizes: list[ComparedSizeDocument]
    """What both have in the same place with another size, longest first."""
    only_measured: tuple[Alone, ...]  #: What the capture does not have, longest first.
    only_captured: tuple[Alone, ...]  #: What was not measured, longest first.
    measured_communication_ns: float  #: How long communication runs.
    estimated_communication_ns: float  #: The same in the model.
    measured_exposed: float  #: Share of it in which nothing is computed.
    estimated_exposed: float  #: The same in the model.
    measured_peak_bytes: int
    """Most memory of the framework's allocator; 0 where it was not recorded."""
    estimated_peak_bytes: int  #: Peak memory in the model.
    causes: tuple[Cause, ...]
    """They add up to the difference of the step times; the largest first."""
    notes: list[str]  #: What to know of the two sides.


def document(found: MeasuredComparison) -> CompareDocument:
    """Exact numbers."""
    return {
        "schema": SCHEMA,
        "rank": found.rank,
        "device": found.device,
        "cluster": found.cluster,
        "measured_step_ns": found.step_ns[0],
        "estimated_step_ns": round(found.step_ns[1], 3),
        "replay_error": round(found.replay_error, 6),
        "matched_time": round(found.matched_time, 6),
        "matched_calls": round(found.matched_calls, 6),
        "matched_estimated_time": round(found.captured_time, 6),
        "in_other_forms": round(found.in_forms, 6),
        "measured_parts": found.parts[0],
        "estimated_parts": found.parts[1],
        "kinds": found.kinds,
        "other_sizes": [{"measured": m, "captured": c} for m, c in found.resized],
        "only_measured": found.only_measured,
        "only_captured": found.only_captured,
        "measured_communication_ns": round(found.communication_ns[0], 3),
        "estimated_communication_ns": round(found.communication_ns[1], 3),
        "measured_exposed": round(found.exposed[0], 6),
        "estimated_exposed": round(found.exposed[1], 6),
        "measured_peak_bytes": found.peak_bytes[0],
        "estimated_peak_bytes": found.peak_bytes[1],
        "causes": found.causes,
        "notes": list(found.notes),
    }
