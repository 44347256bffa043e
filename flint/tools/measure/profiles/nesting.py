"""Which span of a thread is around which, and around a moment: one walk in order of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s, Int32s

#: Rows that are Python's numbers at a time.
_PIECE = 1 << 16


def innermost(start: Float64s, end: Float64s, thread: Int32s) -> Int32s:
    """For each span, in order of start, the innermost span of its thread around it, or -1."""
    found = np.full(len(start), -1, dtype=np.int32)
    open_: dict[int, list[tuple[float, int]]] = {}
    for row, (begun, over, of) in enumerate(_rows(start, end, thread)):
        stack = open_.setdefault(of, [])
        while stack and (stack[-1][0] <= begun or stack[-1][0] < over):
            stack.pop()
        if stack:
            found[row] = stack[-1][1]
        stack.append((over, row))
    return found


def innermost_at(
    start: Float64s, end: Float64s, thread: Int32s, moments: Float64s, of: Int32s
) -> Int32s:
    """For each moment of a thread, in order of time, the innermost span around it, or -1."""
    found = np.full(len(moments), -1, dtype=np.int32)
    open_: dict[int, list[tuple[float, int]]] = {}
    spans = enumerate(_rows(start, end, thread))
    row, (begun, over, whose) = next(spans, _NONE)
    for at, (moment, where) in enumerate(_rows(moments, of)):
        while row >= 0 and begun <= moment:
            stack = open_.setdefault(whose, [])
            while stack and stack[-1][0] <= begun:
                stack.pop()
            stack.append((over, row))
            row, (begun, over, whose) = next(spans, _NONE)
        inside = open_.get(where, [])
        while inside and inside[-1][0] <= moment:
            inside.pop()
        if inside:
            found[at] = inside[-1][1]
    return found


_NONE: tuple[int, tuple[Any, ...]] = (-1, (0.0, 0.0, 0))


def _rows(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    for first in range(0, len(columns[0]), _PIECE):
        yield from zip(*(c[first : first + _PIECE].tolist() for c in columns), strict=True)
