"""What `flint estimate --compare` says."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class MeasuresDocument(TypedDict):
    """What a fidelity says of the slowest device and its step."""

    step_time_ns: float
    """When the last rank ends its step, in ns."""
    compute_ns: float | None
    """How long the device computes, in ns; null if that is not said."""
    exposed_ns: float | None
    """The rest of the step, in ns; null if that is not said."""
    kernels: int
    """Kernels that it executes."""
    moved_bytes: int
    """Bytes that they read and write."""
    collectives: int
    """Collectives in which it takes part."""
    collective_bytes: int
    """Bytes of its inputs to them."""
    messages: int
    """Messages that it sends."""
    message_bytes: int
    """Bytes of them."""
    memory_bytes: int | None
    """Most bytes of memory in use at once; null if that is not said."""


class FidelityDocument(TypedDict):
    """One of the fidelities."""

    fidelity: Literal["analytic", "compiled", "simulated"]
    """Which."""
    by: str
    """Who says it, in words."""
    reason: str
    """Why there is nothing; "" where there is."""
    measures: MeasuresDocument | None
    """What it says; null where there is nothing."""
    against_first: dict[str, float]
    """Relative differences from the first that says something, by name of the measure; 0.01 is 1 %."""


class FidelitiesDocument(TypedDict):
    """One step on a cluster by several fidelities."""

    schema: Literal["flint.fidelities/1"]
    """Kind and version of this document."""
    name: str
    """Name of the program."""
    cluster: str
    """Name of the cluster."""
    fidelities: list[FidelityDocument]
    """In the order in which they were asked for."""
