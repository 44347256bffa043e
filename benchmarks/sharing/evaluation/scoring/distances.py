"""Distances between two sets of workloads, attribute by attribute.

Wasserstein-1 (LayerDAG's, 2411.02322) of numbers and of distributions over numbers, total variation
of distributions over names; and the maximum mean discrepancy (Gretton et al., 2012) of the same with
a Gaussian kernel. A distribution of a set is the weighted mean of those of its workloads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import wasserstein_distance

from benchmarks.sharing.evaluation.measuring.attributes import ATTRIBUTES, Attribute, Form
from flint.ir.arrays import Float64s

#: Bandwidths for which the ranking is told, as multiples of the median heuristic's.
BANDWIDTHS = (0.5, 1.0, 2.0)
#: The same of two distances, whatever they are of: rounding.
_NOTHING = 1e-12


@dataclass(frozen=True, eq=False)
class Sample:
    """Workloads as their attributes, entry i of each array of workload i, and weights that sum to 1."""

    values: Mapping[str, Float64s]
    weights: Float64s

    @classmethod
    def of(cls, workloads: Sequence[Mapping[str, Float64s]], weights: Float64s) -> Sample:
        """Of attributes by workload. `weights` are made to sum to 1."""
        stacked = {a.name: np.stack([w[a.name] for w in workloads]) for a in ATTRIBUTES}
        return cls(stacked, weights / weights.sum())

    def __len__(self) -> int:
        return len(self.weights)

    def part(self, chosen: Sequence[int]) -> Sample:
        """Some of the workloads; their weights are made to sum to 1."""
        at = np.array(chosen, dtype=np.int64)
        weights = self.weights[at]
        return Sample({k: v[at] for k, v in self.values.items()}, weights / weights.sum())


def transport(attribute: Attribute, one: Sample, other: Sample) -> float:
    """Wasserstein-1 in the attribute's unit; of names the total variation (0 to 1)."""
    a, b = one.values[attribute.name], other.values[attribute.name]
    if attribute.form is Form.NUMBER:
        return float(wasserstein_distance(a[:, 0], b[:, 0], one.weights, other.weights))
    difference = _mean(a, one.weights) - _mean(b, other.weights)
    if attribute.form is Form.NAMED:
        return float(np.abs(difference).sum() / 2)
    return float(np.abs(np.cumsum(difference)).sum() * attribute.bin)


def paired_transport(attribute: Attribute, one: Sample, other: Sample) -> float:
    """The mean of the distances of workload i of one set and workload i of the other."""
    a, b = one.values[attribute.name], other.values[attribute.name]
    difference = a - b
    if attribute.form is Form.NAMED:
        found = np.abs(difference).sum(axis=1) / 2
    elif attribute.form is Form.NUMBER:
        found = np.abs(difference[:, 0])
    else:
        found = np.abs(np.cumsum(difference, axis=1)).sum(axis=1) * attribute.bin
    return float(found @ one.weights)


def bandwidth(attribute: Attribute, real: Sample) -> float:
    """The median distance of two different real workloads (the median heuristic); 1 if all are alike."""
    squares = _squares(*[_embedded(attribute, real)] * 2)
    distances = np.sqrt(squares[np.triu_indices(len(real), 1)])
    different = distances[distances > _NOTHING]
    return float(np.median(different)) if len(different) else 1.0


def discrepancy(attribute: Attribute, one: Sample, other: Sample, width: float) -> float:
    """The maximum mean discrepancy (0 to sqrt 2), a Gaussian kernel of this bandwidth.

    It is the root of the biased estimate, which is never negative: it grows as sets get smaller, so
    that only those of sets of one size compare.
    """
    a, b = _embedded(attribute, one), _embedded(attribute, other)
    own = _kernel_mean(a, a, width, one.weights, one.weights)
    own += _kernel_mean(b, b, width, other.weights, other.weights)
    square = own - 2 * _kernel_mean(a, b, width, one.weights, other.weights)
    return float(np.sqrt(max(square, 0.0)))


def _embedded(attribute: Attribute, sample: Sample) -> Float64s:
    """Points whose distance the kernel takes: histograms, cumulated where their bins have an order."""
    values = sample.values[attribute.name]
    ordered = attribute.form is Form.ORDERED
    return np.asarray(np.cumsum(values, axis=1) * np.sqrt(attribute.bin) if ordered else values)


def _kernel_mean(a: Float64s, b: Float64s, width: float, left: Float64s, right: Float64s) -> float:
    return float(left @ np.exp(-_squares(a, b) / (2 * width**2)) @ right)


def _squares(a: Float64s, b: Float64s) -> Float64s:
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
    return np.maximum(squares, 0.0)


def _mean(values: Float64s, weights: Float64s) -> Float64s:
    return np.asarray(weights @ values)
