"""When a rank of a simulated run finished."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankEnd:
    """When a rank finished, in cycles of 1 ns; the other figures are None where they were not said.

    `compute_ns` and `comm_ns` are how long it computed and communicated, `exposed_ns` how long it did
    not compute.
    """

    end_ns: int
    exposed_ns: int | None = None
    compute_ns: int | None = None
    comm_ns: int | None = None
