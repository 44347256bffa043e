"""What `flint estimate --overlap astra-sim` says."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class SlowestDocument(TypedDict):
    """The rank that ends last, the first of several."""

    rank: int
    """Its number."""
    compute_ns: int
    """How long it computes, in ns."""
    exposed_ns: int
    """How long it waits for communication, in ns."""


class SimulatedDocument(TypedDict):
    """What traces take by the rules of ASTRA-sim."""

    schema: Literal["flint.simulated/1"]
    """Kind and version of this document."""
    policy: Literal["astra-sim"]
    """Whose rules."""
    warnings: list[str]
    """Files that are not as they were written: sentences."""
    network: str
    """Name of the network file."""
    ranks: int
    """Ranks that were run."""
    step_time_ns: int
    """When the last rank ends, in ns."""
    slowest: SlowestDocument
    """The rank that ends last."""
    end_ns: list[int]
    """When each rank ends, in ns, from rank 0."""
