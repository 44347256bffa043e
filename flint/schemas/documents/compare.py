"""What `flint compare` says."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class ComparedTotalsDocument(TypedDict):
    """Calls of one kind on one side, in one step of a device."""

    calls: int
    """Calls of operators, or collectives and messages."""
    kernels: int
    """Kernels and copies that they launch."""
    flops: int
    """Floating point operations."""
    bytes: int
    """What they read and write; of communication, what the rank puts in."""
    time_ns: float
    """How long they run, in all."""


class ComparedKindDocument(TypedDict):
    """One kind of kernel (gemm, elementwise, ...) or communication on both sides."""

    kind: str
    """Its name."""
    measured: ComparedTotalsDocument
    """What was measured."""
    captured: ComparedTotalsDocument
    """What was captured, with its time on the cluster."""
    ratio: float
    """Measured over estimated time; 0 where the capture has none."""


class ComparedAloneDocument(TypedDict):
    """Calls with one name that only one side has."""

    title: str
    """Operation, element type and shape."""
    kind: str
    """Kind of kernel."""
    totals: ComparedTotalsDocument
    """What they do."""


class ComparedSizeDocument(TypedDict):
    """Calls of one class in the same place of both steps, with other sizes."""

    measured: ComparedAloneDocument
    """As they were measured."""
    captured: ComparedAloneDocument
    """As they were captured."""


class ComparedPartsDocument(TypedDict):
    """To what the time of a step belongs; the parts add up to it."""

    compute_ns: float
    """Kernels or copies run."""
    wire_ns: float
    """Communication moves bytes, and nothing is computed."""
    waiting_ns: float
    """Communication waits for other ranks, and nothing is computed."""
    launch_ns: float
    """The device has nothing to do, and the host has not launched more."""
    unknown_ns: float
    """Nothing says why the device is idle."""


class ComparedCauseDocument(TypedDict):
    """A part of the difference of the step times."""

    name: str
    """A kind of kernels, or launch, wire, waiting, unknown, overlap, forms."""
    sentence: str
    """What it is, for people."""
    delta_ns: float
    """Measured less estimated."""


class CompareDocument(TypedDict):
    """A measured step beside a captured one that is priced on a cluster."""

    schema: Literal["flint.compare/1"]
    """Kind and version of this document."""
    rank: int
    """The profiled rank."""
    device: str
    """Its device, as the profiler names it."""
    cluster: str
    """The cluster on which the capture is priced."""
    measured_step_ns: float
    """The recorded step."""
    estimated_step_ns: float
    """The step of the capture."""
    replay_error: float
    """How much longer the replay of the measurement is than what was measured, as a share."""
    matched_time: float
    """Share of the measured time of kernels and communication that the capture has in the same size."""
    matched_calls: float
    """Share of the measured calls that the capture has in the same size."""
    matched_estimated_time: float
    """Share of the estimated time that was measured in the same size."""
    in_other_forms: float
    """Share of the measured time in operations that the capture writes in another way."""
    measured_parts: ComparedPartsDocument
    """Of the measured step."""
    estimated_parts: ComparedPartsDocument
    """Of the estimated step."""
    kinds: list[ComparedKindDocument]
    """Kinds of kernels and communication, longest first."""
    other_sizes: list[ComparedSizeDocument]
    """What both have in the same place with another size, longest first."""
    only_measured: list[ComparedAloneDocument]
    """What the capture does not have, longest first."""
    only_captured: list[ComparedAloneDocument]
    """What was not measured, longest first."""
    measured_communication_ns: float
    """How long communication runs."""
    estimated_communication_ns: float
    """The same in the model."""
    measured_exposed: float
    """Share of it in which nothing is computed."""
    estimated_exposed: float
    """The same in the model."""
    measured_peak_bytes: int
    """Most memory of the framework's allocator; 0 where it was not recorded."""
    estimated_peak_bytes: int
    """Peak memory in the model."""
    causes: list[ComparedCauseDocument]
    """They add up to the difference of the step times; the largest first."""
    notes: list[str]
    """What to know of the two sides."""
