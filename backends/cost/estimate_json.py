"""An Estimate as a document, `flint.estimate/1`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final, Literal, NotRequired, cast

from typing_extensions import TypedDict

from flint.backends.cost.estimate_numbers import EstimateNumbers
from flint.backends.cost.kernel_times import KernelTimes
from flint.backends.cost.memory.memory import PeakPlace
from flint.backends.cost.memory.over_time import PeakBuffer, memory_over_time
from flint.backends.cost.replay.facts import MeasuredFacts
from flint.backends.cost.simulate.critical_path import Segment
from flint.backends.cost.simulate.exposure import Serving, Share
from flint.backends.cost.uncertainty import Interval
from flint.cluster.models import UNKNOWN_MEMORY_BYTES

#: Version of the JSON form.
SCHEMA: Final = "flint.estimate/1"


class MemoryDocument(TypedDict):
    """The memory of one device of a rank class."""

    peak_bytes: int  #: Most bytes in use at once.
    at: PeakPlace  #: Where that is.
    breakdown: dict[str, int]
    """Bytes at the peak by what they are for (parameters, saved_activations, ...), largest first."""
    capacity_bytes: int  #: Bytes that the chip has; 0 if that is not known.
    curve: list[tuple[int, int]]
    """Points [row, bytes]: most bytes in use from that row to the one of the next point."""
    peak_ns: float  #: When `peak_bytes` are reached first, in ns of the step.
    over_time: list[tuple[float, int]]
    """Points [ns, bytes]: most bytes in use from that time to that of the next point."""
    buffers: tuple[PeakBuffer, ...]  #: The largest arrays at the peak.
    buffers_left_out: int  #: Arrays at the peak that are not in `buffers`.
    left_out_bytes: int  #: Bytes of those.
    recorded: NotRequired[bool]
    """Of a workload made of profiles, true: `peak_bytes` are those of the framework's allocator, 0 where
    the profile does not say; nothing else is known."""
    runtime: NotRequired[dict[str, int]]
    """Bytes that software keeps beside `peak_bytes` by what they are for (allocator, context,
    communicators), where the stack says so. All of it has to fit."""
    too_much: NotRequired[float]
    """The probability that all of it is more than the chip has, where the stack says how far what the
    allocator reserves differs from program to program."""
    host_bytes: NotRequired[int]
    """Most bytes in the memory of the host for this device; only where something lies there."""
    host_breakdown: NotRequired[dict[str, int]]  #: The same by what they are for, in bytes.


class ClassEstimateDocument(TypedDict):
    """The step of one rank class."""

    name: str  #: Name of the class; "all" where every rank runs the same.
    ranks: int  #: How many ranks it has.
    end_ns: float  #: When its step ends, in ns.
    shares: tuple[Share, ...]  #: Where the time goes: exposed times of all add up to `end_ns`.
    memory: MemoryDocument  #: What a device holds.


class EstimateDocument(TypedDict):
    """How long a step takes on a cluster, where the time goes, and whether it fits."""

    schema: Literal["flint.estimate/1"]  #: Kind and version of this document.
    name: str  #: Name of the program.
    cluster: str  #: Name of the cluster.
    derate: float  #: What the speed of every kernel was multiplied by; 1 is nothing.
    host_launch_ns: float  #: How often the host launches a kernel, in ns; 0: it is never late.
    mapping: list[tuple[str, str, str]]
    """Where mesh axes lie: [axis, size, network tier], a row for each tier of an axis."""
    stack: str  #: Whose software runs: xla, megatron, ...; unknown where the profile means none.
    routing: str
    """How tokens are spread over experts: balanced, power-law:1.2, or the name of a file."""
    profile: str  #: Whose kernels: none, xla-gpu, inductor, ...
    policy: str  #: When communication begins: overlap, ...
    step_time_ns: float  #: When the last rank ends its step, in ns.
    interval: NotRequired[Interval]  #: How sure that is; not of lower bounds.
    serving: NotRequired[Serving]  #: Times per token, of a step that prefills and decodes.
    mfu: float
    """Model flops utilization, 0 to 1: products that the model needs, over what chips could do."""
    hfu: float
    """Hardware flops utilization, 0 to 1: products that are executed, repeated ones included."""
    tokens: NotRequired[
        int
    ]  #: That a step trains on or generates on all devices, where its arguments tell.
    tokens_per_second: NotRequired[float]  #: The same in a second.
    cost_per_million_tokens: NotRequired[float]
    """US dollars by the cluster's price of a chip and hour, where it has one."""
    dtype: str  #: Element type of most products, in whose peak mfu and hfu are.
    lower_bound: bool
    """Whether operations without a price counted nothing: then all times are lower bounds."""
    unpriced: dict[str, int]  #: Executions of these operations, by opcode.
    classes: list[ClassEstimateDocument]  #: One entry for each rank class.
    critical_path: tuple[Segment, ...]  #: What the step time is made of, longest first.
    notes: list[str]  #: Sentences on what the numbers rest on.
    warnings: NotRequired[list[str]]
    """What could not be captured as asked for, and what was made up, where there is any: sentences."""
    kernel_times: NotRequired[KernelTimes]
    """With --timing compiler: the compiler's times beside Flint's."""
    measured: NotRequired[MeasuredFacts]
    """Where times were measured, or parts were changed by --scale and --replace."""


def estimate_json(e: EstimateNumbers, interval: Interval | None) -> EstimateDocument:
    """Exact numbers; `interval` is that of the estimate."""
    found: EstimateDocument = {
        "schema": SCHEMA,
        "name": e.name,
        "cluster": e.cluster.name,
        "derate": e.cluster.derate.value,
        "host_launch_ns": e.cluster.host_launch_ns.value if e.cluster.host_launch_ns else 0.0,
        "mapping": [(axis, size, tier) for axis, size, tier in e.mapping],
        "stack": e.stack.name,
        "profile": e.profile,
        "policy": e.policy.name,
        "routing": e.routing,
        "step_time_ns": round(e.step_time_ns, 3),
        "mfu": round(e.mfu, 6),
        "hfu": round(e.hfu, 6),
        "dtype": e.dtype,
        "lower_bound": e.is_lower_bound,
        "unpriced": dict(e.unpriced),
        "classes": [_class_json(e, n) for n in range(len(e.classes))],
        "critical_path": e.critical_path,
        "notes": list(e.notes),
    }
    if e.tokens:
        found["tokens"], found["tokens_per_second"] = e.tokens, round(e.tokens_per_second, 3)
    if e.cost_per_million_tokens:
        found["cost_per_million_tokens"] = round(e.cost_per_million_tokens, 6)
    if e.workload.warnings:
        found["warnings"] = list(e.workload.warnings)
    if interval:
        found["interval"] = interval
    if e.serving:
        found["serving"] = e.serving
    if e.kernel_times:
        found["kernel_times"] = e.kernel_times
    if e.measured:
        found["measured"] = e.measured
    return found


def _class_json(e: EstimateNumbers, number: int) -> ClassEstimateDocument:
    c = e.classes[number]
    return {
        "name": c.name,
        "ranks": c.ranks,
        "end_ns": round(c.end_ns, 3),
        "shares": c.shares,
        "memory": _memory_json(e, number),
    }


def _memory_json(e: EstimateNumbers, number: int) -> MemoryDocument:
    """The fields of a MemoryUse, those of the host only where something is there; its course."""
    memory = e.classes[number].memory
    fields = asdict(memory)
    if fields.pop("spread"):
        fields["too_much"] = round(memory.too_much, 6)
    found = cast("MemoryDocument", {**fields, **_course(e, number)})
    if memory.capacity_bytes >= UNKNOWN_MEMORY_BYTES:
        found["capacity_bytes"] = 0
    if not memory.host_bytes:
        del found["host_bytes"], found["host_breakdown"]
    if not memory.recorded:
        del found["recorded"]
    if not memory.runtime:
        del found["runtime"]
    return found


def _course(e: EstimateNumbers, number: int) -> dict[str, Any]:
    """The memory of a rank class over time, and what is there at its peak."""
    found = memory_over_time(e, number)
    return {
        "peak_ns": found.peak_ns,
        "over_time": found.points,
        "buffers": found.buffers,
        "buffers_left_out": found.buffers_left_out,
        "left_out_bytes": found.left_out_bytes,
    }
