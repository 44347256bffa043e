"""What `flint diff`, `flint verify` and `flint run` say, and what flint.lock holds."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class CostDocument(TypedDict):
    """What kernels take in one step of a device: the mean over devices."""

    executions: float
    """How often they run."""
    flops: float
    """Floating point operations."""
    bytes: float
    """Bytes read and written."""
    comm_bytes: float
    """Bytes put into communication."""
    busy_ns: float
    """How long they run, in ns; 0 without a cluster."""
    path_ns: float
    """How much of the step time they are, in ns; those of all kernels add up to it."""


class CauseDocument(TypedDict):
    """Why two captures differ."""

    kind: str
    """Kind of cause: mesh, sharding, shape, layers, precision, remat, operations, ..."""
    text: str
    """It in words."""
    cost_of_kind: CostDocument | None
    """What all causes of this kind cost more; null where no kernel was told to follow from it."""


class NumberDocument(TypedDict):
    """One number of both captures."""

    name: str
    """Its name, as in --fail-over."""
    axis: str
    """The mesh axis that it is of; "" for all."""
    unit: str
    """Its unit."""
    before: float | None
    """Before; null where it is not known."""
    after: float | None
    """After; null where it is not known."""


class ChangeDocument(TypedDict):
    """Kernels of one source and kind that are not as they were."""

    cause: str | None
    """Kind of the cause; null where none is known."""
    action: str
    """added, removed or changed."""
    kind: str
    """Of kernel or collective."""
    over: str
    """Mesh axes of communication; "" for kernels."""
    phase: str
    """forward, backward, remat, optimizer or unknown."""
    scope: str
    """Scope in the source, with * for numbers."""
    source_before: str
    """File and line before; "" for what is added."""
    source: str
    """File and line after; "" for what is removed."""
    reason: str
    """Why a collective is there, as the partitioner says it."""
    said: str
    """What of the first kernel is new."""
    kernels: int
    """How many kernels these are."""
    before: CostDocument
    """What they cost before."""
    after: CostDocument
    """What they cost after."""


class BrokenDocument(TypedDict):
    """A budget that does not hold."""

    budget: str
    """Its name."""
    limit: str
    """What it allows, as it was written."""
    before: float | None
    """The number before."""
    after: float | None
    """The number after."""
    most: float
    """The most that the budget allows."""
    worst: ChangeDocument | None
    """The change that adds most to it; null where no kernel does."""
    memory_kind: str
    """Of peak memory, what grew most there: saved_activations, parameters, ...; else ""."""


class DiffDocument(TypedDict):
    """What differs between two captures, and why."""

    schema: Literal["flint.diff/1"]
    """Kind and version of this document."""
    equal: bool
    """Whether nothing but names and places differs."""
    verdict: str
    """The outcome in one line."""
    before: str
    """Name of the first."""
    after: str
    """Name of the second."""
    causes: list[CauseDocument]
    """Why they differ, what costs most first."""
    renamed: list[tuple[str, str]]
    """Arguments with other names: [before, after]."""
    numbers: list[NumberDocument]
    """Totals of both."""
    memory_bytes: dict[str, dict[str, int]]
    """Memory at the peak by what it is for, in bytes, of `before` and `after`; empty without a cluster."""
    changes: list[ChangeDocument]
    """Kernels that differ, what makes most of the difference first."""
    same_kernels: int
    """Kernels that are as they were."""
    moved_kernels: int
    """Those of them with another scope or line."""
    shifted_ns: float
    """By how much more of the step time, in ns, kernels are that are as they were."""
    broken: list[BrokenDocument]
    """Budgets that do not hold."""


class VerdictDocument(TypedDict):
    """One capture against the lock, on one cluster."""

    capture: str
    """Name of the capture."""
    cluster: str
    """Name of the cluster; "" where the capture names none."""
    fails: bool
    """Whether a budget does not hold, or something changed that has no budgets."""
    note: str
    """What else is to be known of it; "" for nothing."""
    difference: DiffDocument
    """What differs from flint.lock."""


class VerifyDocument(TypedDict):
    """The captures of flint.toml against flint.lock."""

    schema: Literal["flint.verify/1"]
    """Kind and version of this document."""
    fails: bool
    """Whether any verdict fails: then the exit status is 1."""
    verdicts: list[VerdictDocument]
    """One for each capture and cluster."""


class ArgumentDocument(TypedDict):
    """Arguments of the step whose names differ in numbers only."""

    name: str
    """Their path, with * for numbers."""
    dtype: str
    """Element type."""
    shape: list[int]
    """Shape of the whole array where the sharding is known, else of one device's part."""
    sharding: str
    """How its dimensions lie on the mesh; "" where that is not known."""
    count: int
    """How many there are."""
    device_bytes: float
    """What one device holds of all of them, in bytes."""
    is_donated: NotRequired[bool | None]
    """Whether results of the step take their place; null or left out where it is not known."""


class OperationsDocument(TypedDict):
    """Operations of one class, phase and type, in one step of a device: the mean over devices."""

    op: str
    """Class of the operations."""
    phase: str
    """forward, backward, remat, optimizer or unknown."""
    dtype: str
    """Element type of their results."""
    product: str
    """What they multiply, where that is not `dtype`."""
    mask: int
    """Mask of attention (docs/program.md)."""
    rows: int
    """How many the program holds."""
    executions: float
    """How often they run."""
    flops: float
    """Floating point operations."""
    bytes: float
    """Bytes read and written."""


class CollectivesDocument(TypedDict):
    """Collectives of one kind over the same axes with one payload, in one step of a device."""

    kind: str
    """Kind of collective, or message."""
    over: str
    """Mesh axes, or the route of a message."""
    phase: str
    """forward, backward, remat, optimizer or unknown."""
    dtype: str
    """Element type."""
    comm_bytes: int
    """Bytes that a device puts in, each time."""
    executions: float
    """How often they run: the mean over devices."""
    source: str
    """partitioner for what it inserted, program for what the program itself says."""


class ProgramFactsDocument(TypedDict):
    """What a workload is, whatever it runs on: means over devices, of one step."""

    structure: str
    """Equal for programs with the same operations and dependencies, whatever their names."""
    mesh: dict[str, int]
    """Devices along each axis."""
    options: dict[str, str]
    """How it was captured."""
    kernels: float
    """Kernels and collectives."""
    flops: float
    """Floating point operations."""
    bytes: float
    """Bytes that kernels read and write."""
    comm_bytes: float
    """Bytes put into collectives and messages."""
    argument_bytes: float
    """Bytes of all that the step is given."""
    trip_counts: list[int]
    """Of the loops of all programs, in order."""
    arguments: list[ArgumentDocument]
    """What the step is given, in the order of the program."""
    operations: list[OperationsDocument]
    """What it does."""
    collectives: list[CollectivesDocument]
    """What it sends."""


class EstimateFactsDocument(TypedDict):
    """What is kept of an estimate on one cluster. Times are of the class that ends last."""

    chip: str
    """Name of the chip."""
    profile: str
    """Whose kernels."""
    policy: str
    """When communication begins."""
    mapping: list[str]
    """Where mesh axes lie."""
    derate: float
    """What the speed of every kernel was multiplied by."""
    step_time_ns: float
    """When the last rank ends its step, in ns."""
    mfu: float
    """Model flops utilisation, 0 to 1."""
    is_lower_bound: bool
    """Whether operations without a price counted nothing."""
    exposed_ns: dict[str, float]
    """Time in which nothing is computed while communication runs, by mesh axes, in ns."""
    busy_ns: dict[str, float]
    """How long kernels run, by kind, in ns."""
    peak_bytes: int
    """Most bytes in use on a device."""
    capacity_bytes: int
    """Bytes that the chip has; 0 if that is not known."""
    memory_bytes: dict[str, int]
    """Bytes at the peak by what they are for."""


class SnapshotDocument(TypedDict):
    """One capture."""

    name: str
    """Name of the program."""
    program: ProgramFactsDocument | None
    """What it is; null for a saved estimate."""
    estimates: dict[str, EstimateFactsDocument]
    """Estimates by the cluster's name."""


class RanCaptureDocument(TypedDict):
    """A capture of flint.toml."""

    cached: bool
    """Whether nothing had changed, and it was not captured again."""
    lock: str
    """new, equal or changed: what it is to flint.lock."""
    accepted: bool
    """Whether it was written into flint.lock."""
    traces: str | None
    """Where traces were written; null where none were."""
    warnings: list[str]
    """What could not be captured as asked for: sentences."""
    snapshot: SnapshotDocument
    """What it is now."""


class RunDocument(TypedDict):
    """The captures of flint.toml, as `flint run` made them."""

    schema: Literal["flint.run/1"]
    """Kind and version of this document."""
    captures: dict[str, RanCaptureDocument]
    """By name."""


class LockedDocument(SnapshotDocument):
    """What a capture was when somebody last accepted it."""

    made_with: dict[str, str]
    """Versions of what made it."""


class LockDocument(TypedDict):
    """The file flint.lock."""

    schema: Literal["flint.lock/1"]
    """Kind and version of this document."""
    captures: dict[str, LockedDocument]
    """By name."""
