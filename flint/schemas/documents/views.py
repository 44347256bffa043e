"""Views of an estimate that are asked for with --view, inside `flint.estimate/1`."""

from __future__ import annotations

from typing_extensions import TypedDict


class SliceDocument(TypedDict):
    """One execution of one row of a program."""

    start_ns: float
    """When it starts, in ns of the step."""
    duration_ns: float
    """How long it runs, in ns."""
    stream: str
    """Queue of the device that it runs in: compute, or one of a network tier."""
    kind: str
    """Of a kernel or collective, or message."""
    over: str
    """Mesh axes of communication; "" for kernels."""
    phase: str
    """forward, backward, remat, optimizer or unknown."""
    opcode: str
    """What it is called."""
    scope: str
    """Its scope in the source."""
    location: str
    """File and line of the user's source."""
    row: int
    """Its row in the program of kernels."""
    critical: bool
    """Whether the critical path goes through it."""


class SlicesDocument(TypedDict):
    """The longest slices of a rank class, in the order in which they start."""

    name: str
    """Name of the class."""
    streams: list[str]
    """Streams on which something runs."""
    slices: list[SliceDocument]
    """At most 100,000; what takes no time has none."""
    left_out: int
    """How many shorter ones there are."""
    left_out_ns: float
    """How long those run together, in ns."""


class RooflinePointDocument(TypedDict):
    """Kernels that are alike."""

    kind: str
    """Kind of kernel: gemm, elementwise, ..."""
    dtype: str
    """Element type that it calculates with."""
    scope: str
    """Its scope in the source."""
    location: str
    """File and line of the user's source."""
    phase: str
    """forward, backward, remat, optimizer or unknown."""
    flops: int
    """Floating point operations of one execution."""
    moved_bytes: int
    """Bytes read and written by one execution."""
    count: int
    """Executions in a step."""
    total_ns: float
    """How long these take together, in ns."""


class RooflineDocument(TypedDict):
    """Kernels of a rank class, most time first, and the chip's roofs."""

    name: str
    """Name of the class."""
    chip: str
    """Name of the chip."""
    peak_flops_per_s: dict[str, float]
    """Dense peak by element type, in FLOP/s."""
    bandwidth_bytes_per_s: float
    """Bandwidth of its memory, in bytes/s."""
    points: list[RooflinePointDocument]
    """The kernels."""


class CommunicationDocument(TypedDict):
    """One communication row of a program, in one step of a rank."""

    kind: str
    """Of collective, or message."""
    over: str
    """Mesh axes, or the route of a message."""
    group_size: int
    """Devices of a group; 0 for messages."""
    phase: str
    """forward, backward, remat, optimizer or unknown."""
    payload_bytes: int
    """Bytes that the rank puts in, each time."""
    count: int
    """Executions in a step."""
    busy_ns: float
    """How long these run together, in ns."""
    exposed_ns: float
    """How much of that nothing is computed meanwhile, in ns."""
    tier: str
    """The stream that it runs on."""
    scope: str
    """Its scope in the source."""
    location: str
    """File and line of the user's source."""
    cause: str
    """Why it is there, as the partitioner or the program says it."""
    row: int
    """Its row in the program of kernels."""


class ScopePartDocument(TypedDict):
    """A part of the source. Layers that differ in their number only are one, `*`."""

    name: str
    """Last component of its path; "" for the root."""
    path: str
    """Scopes from the root, joined by slashes."""
    busy_ns: float
    """How long its kernels and communication run, in ns, with what is inside."""
    exposed_ns: float
    """Time of the step that it takes, in ns, with what is inside."""
    own_ns: float
    """The same without what is inside, in ns."""
    parts: list[ScopePartDocument]
    """What lies inside of it, most of the step first."""


class PassBoxDocument(TypedDict):
    """A pass of a microbatch on the compute stream."""

    start_ns: float
    """When it starts, in ns of the step."""
    end_ns: float
    """When it ends, in ns of the step."""
    work: str
    """forward, backward, input_backward, weight_backward, optimizer or other."""
    microbatch: int
    """Number of the microbatch; -1 where a program does not say it."""
    chunk: int
    """Which of the rank's stages; -1 where a program does not say it."""


class LaneDocument(TypedDict):
    """One rank class of a pipeline."""

    name: str
    """Name of the class."""
    ranks: int
    """How many ranks it has."""
    boxes: list[PassBoxDocument]
    """What it runs, in order."""
    idle_ns: float
    """How long it computes nothing in the step, in ns."""


class PipelineDocument(TypedDict):
    """What the classes of a pipeline run when."""

    schedule: str
    """Name of the schedule; "" where it is not known."""
    microbatches: int
    """Microbatches of a step; 0 where that is not known."""
    end_ns: float
    """When the step ends, in ns."""
    lanes: list[LaneDocument]
    """One entry for each rank class."""
