"""Windows that slide over a dimension: which of their elements do work.

Shared by the StableHLO and HLO routes, so that both count a convolution the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

#: Above this many (position, window element) pairs a dimension is not looked at one by one.
_MOST_TAPS = 1 << 24


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
        used *= every if thin or every > _MOST_TAPS else _meeting(d)
    return used, taps


def _meeting(d: Sliding) -> int:
    at = np.arange(d.outputs)[:, None] * d.stride - d.low + np.arange(d.size) * d.window_dilation
    inside = (at >= 0) & (at <= (d.inputs - 1) * d.base_dilation)
    return int((inside & (at % d.base_dilation == 0)).sum())
