"""Windows that slide over a dimension: which of their elements do work.

Shared by the StableHLO and HLO routes, so that both count a convolution the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Positions that are looked at together.
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Sliding:
    """One dimension of `inputs` elements under a window of `size`, at `outputs` positions."""

    size: int
    inputs: int
    outputs: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1

    @property
    def is_running(self) -> bool:
        """Whether the windows are all prefixes (or all suffixes): a running sum, as in cumsum."""
        return (
            self.size == self.inputs == self.outputs
            and self.stride == self.base_dilation == self.window_dilation == 1
            and sorted((self.low, self.high)) == [0, self.size - 1]
        )


def used_taps(dimensions: Iterable[Sliding]) -> tuple[int, int]:
    """(Window elements that meet an input element, all window elements) over all positions.

    They differ only for dimensions that are dilated or mostly padding: gradients of strided
    convolutions are such, and batched products of matrices as TPU programs write them. The thin
    padding of an ordinary convolution is computed with, and counts.
    """
    used = taps = 1
    for d in dimensions:
        every = d.size * d.outputs
        taps *= every
        thin = d.base_dilation == 1 and d.low + d.high < d.inputs
        used *= every if thin else _meeting(d)
    return used, taps


def _meeting(d: Sliding) -> int:
    """Pairs of a position and a window element that meet an input element.

    Element t of the window at position p is at p * stride - low + t * window_dilation, and inputs are
    at multiples of base_dilation: t solves a congruence, and lies between two bounds.
    """
    common = math.gcd(d.window_dilation, d.base_dilation)
    period = d.base_dilation // common
    inverse = pow(d.window_dilation // common, -1, period) if period > 1 else 0
    return sum(
        _solutions(d, np.arange(first, min(first + _CHUNK, d.outputs)), common, period, inverse)
        for first in range(0, d.outputs, _CHUNK)
    )


def _solutions(
    d: Sliding, positions: NDArray[np.int64], common: int, period: int, inverse: int
) -> int:
    missing = d.low - positions * d.stride  # what t * window_dilation has to be, at least
    least = np.maximum(-(-missing // d.window_dilation), 0)
    most = (missing + (d.inputs - 1) * d.base_dilation) // d.window_dilation
    most = np.minimum(most, d.size - 1)
    first = missing // common % period * inverse % period
    count = (most - first) // period + -(least - first) // period + 1
    return int(np.where(missing % common == 0, np.maximum(count, 0), 0).sum())
