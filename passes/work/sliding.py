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


def reduced_elements(dimensions: Iterable[Sliding]) -> tuple[int, int]:
    """(Operations that reduce every window, windows) over all positions.

    A window is what it holds of the input: what lies past the edges or in the holes of a dilated
    input costs nothing. Equal windows are reduced once. A window that holds its neighbor's
    elements adds the rest to the neighbor's result: windows that reach to the start (cumsum) cost
    an operation a position, and windows that all cover the whole input (the maximum of a row, as
    TPU programs write it) cost one reduction. Others are reduced element by element.
    """
    operations = windows = 1
    for d in dimensions:
        windows *= d.outputs
        if _is_plain(d):
            operations *= d.outputs
        elif d.base_dilation == d.window_dilation == 1:
            operations *= _clipped(d)
        else:
            operations *= _reducing(d)
    return operations, windows


def _is_plain(d: Sliding) -> bool:
    """Whether each window is one element of its own."""
    return d.size == d.base_dilation == 1 and d.low <= 0 and d.high <= 0


def _clipped(d: Sliding) -> int:
    """`_reducing` of windows without dilation: runs of elements, clipped at both ends of the input.

    Each window of a row of them that grow from the first element, or shrink to the last, adds to its
    neighbor's: the row costs what its largest window holds. A window of all elements adds to the
    larger of both, and one that is not clipped is reduced alone.
    """
    first = max(0, -((d.size - 1 - d.low) // d.stride))
    last = min(d.outputs - 1, (d.inputs - 1 + d.low) // d.stride)
    if first > last:
        return 0  # none holds an element
    left = d.low // d.stride  # up to here windows begin with the first element,
    right = -((d.size - d.inputs - d.low) // d.stride)  # and from here on end with the last
    grown, shrunk = min(left, right - 1, last), max(right, left + 1, first)
    growing = grown * d.stride - d.low + d.size if grown >= first else 0
    shrinking = d.inputs - shrunk * d.stride + d.low if shrunk <= last else 0
    is_whole = max(right, first) <= min(left, last)
    alone = max(min(right - 1, last) - max(left + 1, first) + 1, 0)
    whole = d.inputs - max(growing, shrinking) if is_whole else 0
    return growing + shrinking + whole + alone * d.size


def _reducing(d: Sliding) -> int:
    """Operations for all windows of one dimension.

    With a dilated window only every `every`-th position sees elements that this one sees.
    """
    every = d.window_dilation // math.gcd(d.window_dilation, d.stride)
    return sum(_reducing_from(d, first, every) for first in range(min(every, d.outputs)))


def _reducing_from(d: Sliding, position: int, every: int) -> int:
    """Operations for the windows at every `every`-th position from `position` on.

    Bounds of windows never fall from position to position, so that equal windows follow each
    other, and the largest window inside another one is next to it.
    """
    operations, held = 0, np.zeros((2, 0), np.int64)
    step = _CHUNK * every
    for first in range(position, d.outputs, step):
        found = _bounds(d, np.arange(first, min(first + step, d.outputs), every))
        runs = _distinct(np.concatenate([held, found], axis=1))
        # The first is only a neighbor, and the last waits for its own.
        costs = _costs(d, runs)
        operations += int(costs[max(held.shape[1] - 1, 0) : -1].sum())
        held = runs[:, -2:]
    return operations + int(_costs(d, held)[-1:].sum())


def _distinct(bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each run of equal columns once."""
    changes = np.any(bounds[:, 1:] != bounds[:, :-1], axis=0)
    kept: NDArray[np.int64] = bounds[:, np.concatenate([[True], changes])[: bounds.shape[1]]]
    return kept


def _costs(d: Sliding, runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Elements of each window less those of the larger neighbor that it holds."""
    first, last = runs
    step = d.window_dilation // math.gcd(d.window_dilation, d.base_dilation)
    elements = (last - first) // step + 1
    known = np.zeros_like(elements)
    known[1:] = np.where(first[1:] == first[:-1], elements[:-1], 0)
    known[:-1] = np.maximum(known[:-1], np.where(last[:-1] == last[1:], elements[1:], 0))
    costs: NDArray[np.int64] = elements - known
    return costs


def _bounds(d: Sliding, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first and the last input element of each window that has any, as two rows."""
    taps, count, period = _solutions(d, positions)
    first = positions * d.stride - d.low + taps * d.window_dilation
    last = first + (count - 1) * period * d.window_dilation
    bounds: NDArray[np.int64] = np.stack([first, last])[:, count > 0] // d.base_dilation
    return bounds


def _meeting(d: Sliding) -> int:
    """Pairs of a position and a window element that meet an input element."""
    return sum(
        int(_solutions(d, np.arange(first, min(first + _CHUNK, d.outputs)))[1].sum())
        for first in range(0, d.outputs, _CHUNK)
    )


def _solutions(
    d: Sliding, positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Of each position the first window element that meets an input element, how many do, and
    the distance between two of them.

    Element t of the window at position p is at p * stride - low + t * window_dilation, and inputs are
    at multiples of base_dilation: t solves a congruence, and lies between two bounds.
    """
    common = math.gcd(d.window_dilation, d.base_dilation)
    period = d.base_dilation // common
    inverse = pow(d.window_dilation // common, -1, period) if period > 1 else 0
    missing = d.low - positions * d.stride  # what t * window_dilation has to be, at least
    least = np.maximum(-(-missing // d.window_dilation), 0)
    most = (missing + (d.inputs - 1) * d.base_dilation) // d.window_dilation
    most = np.minimum(most, d.size - 1)
    residue = missing // common % period * inverse % period
    first = residue + -(-(least - residue) // period) * period
    count = np.where(missing % common == 0, np.maximum((most - first) // period + 1, 0), 0)
    return first, count, period
