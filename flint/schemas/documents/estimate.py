"""What `flint estimate` says."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from flint.schemas.documents.views import (
    CommunicationDocument,
    PipelineDocument,
    RooflineDocument,
    ScopePartDocument,
    SlicesDocument,
)


class ShareDocument(TypedDict):
    """Time of one kind of work in one step of a rank class."""

    kind: str
    """Of a kernel (gemm, elementwise, ...), of a collective, or message, host or wait."""
    over: str
    """Mesh axes of communication; "" for kernels."""
    phase: str
    """forward, backward, remat, optimizer or unknown."""
    count: int
    """How often a step runs it."""
    busy_ns: float
    """How long it runs, in ns."""
    exposed_ns: float
    """How much of that nothing is computed meanwhile, in ns; of kernels, all."""


class PeakPlaceDocument(TypedDict):
    """The operation during which most memory is in use."""

    row: int
    """Its row in the program whose memory was counted."""
    opcode: str
    """What it is called."""
    scope: str
    """Its scope in the source: names of modules or of jax.named_scope."""
    location: str
    """File and line of the user's source."""


class PeakBufferDocument(TypedDict):
    """Arrays that are alike and in use at the peak."""

    kind: str
    """What they are for: parameters, saved_activations, ..."""
    num_bytes: int
    """Bytes of each."""
    count: int
    """How many there are."""
    name: str
    """Of an argument of the step, its path; else ""."""
    type: str
    """Element type and shape on one device."""
    opcode: str
    """What makes them."""
    scope: str
    """The scope of that in the source."""
    location: str
    """File and line of the user's source."""


class MemoryDocument(TypedDict):
    """The memory of one device of a rank class."""

    peak_bytes: int
    """Most bytes in use at once."""
    at: PeakPlaceDocument
    """Where that is."""
    breakdown: dict[str, int]
    """Bytes at the peak by what they are for (parameters, saved_activations, ...), largest first."""
    capacity_bytes: int
    """Bytes that the chip has; 0 if that is not known."""
    curve: list[tuple[int, int]]
    """Points [row, bytes]: most bytes in use from that row to the one of the next point."""
    peak_ns: float
    """When `peak_bytes` are reached first, in ns of the step."""
    over_time: list[tuple[float, int]]
    """Points [ns, bytes]: most bytes in use from that time to that of the next point."""
    buffers: list[PeakBufferDocument]
    """The largest arrays at the peak."""
    buffers_left_out: int
    """Arrays at the peak that are not in `buffers`."""
    left_out_bytes: int
    """Bytes of those."""
    recorded: NotRequired[bool]
    """Of a workload made of profiles, true: `peak_bytes` are those of the framework's allocator, 0 where
    the profile does not say; nothing else is known."""
    runtime: NotRequired[dict[str, int]]
    """Bytes that software keeps beside `peak_bytes` by what they are for (allocator, context,
    communicators), where the stack says so. All of it has to fit."""
    host_bytes: NotRequired[int]
    """Most bytes in the memory of the host for this device; only where something lies there."""
    host_breakdown: NotRequired[dict[str, int]]
    """The same by what they are for, in bytes."""


class ClassEstimateDocument(TypedDict):
    """The step of one rank class."""

    name: str
    """Name of the class; "all" where every rank runs the same."""
    ranks: int
    """How many ranks it has."""
    end_ns: float
    """When its step ends, in ns."""
    shares: list[ShareDocument]
    """Where the time goes: exposed times of all add up to `end_ns`."""
    memory: MemoryDocument
    """What a device holds."""
    slices: NotRequired[SlicesDocument]
    """Its timeline (--view slices)."""
    roofline: NotRequired[RooflineDocument]
    """Its kernels against what the chip could do (--view roofline)."""
    communication: NotRequired[list[CommunicationDocument]]
    """Its communication, most exposed first (--view communication)."""
    scopes: NotRequired[ScopePartDocument]
    """Its time as a tree of source scopes (--view scopes)."""


class SegmentDocument(TypedDict):
    """Work of one kind and source on the critical path."""

    kind: str
    """Of a kernel or collective, or message, or host for what was launched late."""
    over: str
    """Mesh axes of communication; "" for kernels."""
    scope: str
    """Its scope in the source."""
    location: str
    """File and line of the user's source."""
    count: int
    """Pieces on the path."""
    total_ns: float
    """Its time on the path, in ns."""
    share: float
    """The same as a share of the step, 0 to 1."""


class KindTimesDocument(TypedDict):
    """Executed kernels of one kind in a step of the rank class that ends last."""

    kind: str
    """Of kernel: gemm, elementwise, ..."""
    by_cycles: bool
    """Whether the compiler estimated their cycles."""
    count: int
    """How often a step runs them."""
    compiler_ns: float
    """Their cycles in ns, of all together; where `by_cycles` is false, `model_ns`."""
    model_ns: float
    """The same by Flint's models, in ns."""


class KernelTimesDocument(TypedDict):
    """The compiler's times of kernels beside Flint's."""

    clock_hz: float
    """The clock that the compiler's cycles were counted with, in Hz."""
    model_step_time_ns: float
    """The step time with Flint's times of all kernels, in ns."""
    kinds: list[KindTimesDocument]
    """Kernels by kind, those that take most time first."""


class AttributionDocument(TypedDict):
    """To what the nanoseconds of a recorded rank's step belong; they add up to it."""

    compute_ns: float
    """Kernels and copies run."""
    wire_ns: float
    """Communication moves bytes while nothing is computed."""
    waiting_ns: float
    """Communication waits for other ranks while nothing is computed."""
    launch_ns: float
    """The device has nothing to do: the host has not launched more."""
    unknown_ns: float
    """Nothing runs, for no reason that the graph knows."""


class MeasuredClassDocument(TypedDict):
    """A rank class that was recorded."""

    name: str
    """Its name."""
    rank: int
    """The rank that was recorded."""
    measured_ns: float
    """How long its step took, in ns; 0: not known."""
    estimated_ns: float
    """How long the estimate takes, in ns."""
    error: float
    """By how much that is longer, as a share of what was measured; 0 where that is not known."""
    peak_bytes: int
    """The most memory that the framework's allocator held; 0: not recorded."""
    attribution: AttributionDocument
    """To what `estimated_ns` belong."""


class RestDocument(TypedDict):
    """Executed kernels and communication whose times rest on one thing."""

    basis: str
    """measured, scaled (measured times a ratio of the models), or by models."""
    count: int
    """How many a step of the rank class that ends last has."""
    time_ns: float
    """Their times, added up."""


class MeasuredDocument(TypedDict):
    """What an estimate with measured times rests on."""

    format: str
    """What recorded the program ("kineto", ...); "" where it was not recorded itself."""
    device: str
    """The device that it ran on, as its driver calls it."""
    recorded_on: str
    """The cluster that stands for that."""
    changes: list[str]
    """What --scale and --replace changed."""
    rests: list[RestDocument]
    """What times rest on."""
    classes: list[MeasuredClassDocument]
    """Rank classes that were recorded."""


class PartSpreadDocument(TypedDict):
    """What a part of a step adds to its uncertainty."""

    part: str
    """products, attention, ..., network inside, network outside, host; step: the whole, what no part says."""
    trust: str
    """own: constants rest on measurements of the chip or network; borrowed: of another one, or assumed."""
    share: float
    """Its share of the step time."""
    deviation: float
    """Standard deviation of ln(estimate / measured) of its own time."""


class IntervalDocument(TypedDict):
    """Where the measured step time would lie."""

    probability: float
    """How often."""
    low_ns: float
    """From, in ns."""
    high_ns: float
    """To, in ns."""
    parts: list[PartSpreadDocument]
    """What it is made of, largest share first."""


class EstimateDocument(TypedDict):
    """How long a step takes on a cluster, where the time goes, and whether it fits."""

    schema: Literal["flint.estimate/1"]
    """Kind and version of this document."""
    name: str
    """Name of the program."""
    cluster: str
    """Name of the cluster."""
    derate: float
    """What the speed of every kernel was multiplied by; 1 is nothing."""
    host_launch_ns: float
    """How often the host launches a kernel, in ns; 0: it is never late."""
    mapping: list[tuple[str, str, str]]
    """Where mesh axes lie: [axis, size, network tier], a row for each tier of an axis."""
    stack: str
    """Whose software runs: xla, megatron, ...; unknown where the profile means none."""
    routing: str
    """How tokens are spread over experts: balanced, power-law:1.2, or the name of a file."""
    profile: str
    """Whose kernels: none, xla-gpu, inductor, ..."""
    policy: str
    """When communication begins: overlap, ..."""
    step_time_ns: float
    """When the last rank ends its step, in ns."""
    interval: NotRequired[IntervalDocument]
    """How sure that is; not of lower bounds."""
    mfu: float
    """Model flops utilisation, 0 to 1: products that the model needs, over what chips could do."""
    hfu: float
    """Hardware flops utilisation, 0 to 1: products that are executed, repeated ones included."""
    dtype: str
    """Element type of most products, in whose peak mfu and hfu are."""
    lower_bound: bool
    """Whether operations without a price counted nothing: then all times are lower bounds."""
    unpriced: dict[str, int]
    """Executions of these operations, by opcode."""
    classes: list[ClassEstimateDocument]
    """One entry for each rank class."""
    critical_path: list[SegmentDocument]
    """What the step time is made of, longest first."""
    notes: list[str]
    """Sentences on what the numbers rest on."""
    warnings: NotRequired[list[str]]
    """What could not be captured as asked for, and what was made up, where there is any: sentences."""
    kernel_times: NotRequired[KernelTimesDocument]
    """With --timing compiler: the compiler's times beside Flint's."""
    measured: NotRequired[MeasuredDocument]
    """Where times were measured, or parts were changed by --scale and --replace."""
    pipeline: NotRequired[PipelineDocument | None]
    """What the classes of a pipeline run when (--view pipeline); null for what is no pipeline."""
