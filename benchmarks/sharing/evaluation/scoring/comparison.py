"""All distances of one set of workloads from the held-out ones, and floors beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.sharing.evaluation.measuring.attributes import ATTRIBUTES
from benchmarks.sharing.evaluation.scoring.distances import (
    BANDWIDTHS,
    Sample,
    bandwidth,
    discrepancy,
    paired_transport,
    transport,
)

Distances = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Compared:
    """By attribute: transport, transport from its own pair (None for sets without pairs), and the
    mean discrepancy for each of `BANDWIDTHS`.
    """

    transport: Distances
    paired: Distances | None
    discrepancy: tuple[Distances, ...]


def compared(held: Sample, other: Sample, widths: Distances, of: Sequence[int] | None) -> Compared:
    """A set from the held-out one; `of[i]` is the held-out workload that workload i was made for."""
    pairs = None
    if of is not None:
        own = held.part(of)
        pairs = {a.name: paired_transport(a, own, other) for a in ATTRIBUTES}
    return Compared(
        {a.name: transport(a, held, other) for a in ATTRIBUTES},
        pairs,
        tuple(
            {a.name: discrepancy(a, held, other, b * widths[a.name]) for a in ATTRIBUTES}
            for b in BANDWIDTHS
        ),
    )


def bandwidths(held: Sample) -> Distances:
    """The kernel's bandwidth for each attribute, of the held-out workloads."""
    return {a.name: bandwidth(a, held) for a in ATTRIBUTES}


def mean_compared(parts: Sequence[Compared]) -> Compared:
    """Means over folds, or over halves."""
    pairs = [p.paired for p in parts if p.paired is not None]
    return Compared(
        _mean([p.transport for p in parts]),
        _mean(pairs) if pairs else None,
        tuple(_mean([p.discrepancy[i] for p in parts]) for i in range(len(BANDWIDTHS))),
    )


def _mean(parts: Sequence[Distances]) -> Distances:
    return {name: float(np.mean([p[name] for p in parts])) for name in parts[0]}
