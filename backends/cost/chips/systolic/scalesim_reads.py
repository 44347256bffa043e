"""Words that SCALE-Sim's double buffers read from DRAM, in closed form for many products at once.

`scalesim_stalls.py` follows the window of each operand move by move and is exact but for writes;
this is the average of what it does, for shapes that are too many or too large for that. An operand
that fits into half of its SRAM is read once. Of a larger one, whole halves are read on every turn
of its ring:

- a streamed operand turns when the array starts over, which it does for every column of tiles, or
  for every tile that does not fit into the half; and where two tiles meet, because the skewed end of
  one lies between the start of the next: that is outside the window as often as their overlap of
  width x (width - 1) words is long, compared with the half;
- of a stationary operand the rows of a tile are asked for last one first, so each border between
  halves costs a turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def dram_words(
    m: Ints, n: Ints, k: Ints, rows: int, columns: int, dataflow: str, half_words: float
) -> Floats:
    """Words read for both operands of m x k times k x n, with `half_words` in half of each SRAM."""
    high = -(-(m if dataflow == "os" else k) // rows)
    wide = -(-(m if dataflow == "is" else n) // columns)
    count = high * wide
    if dataflow == "os":
        again = np.where(k * columns > half_words, high, 1)
        return _streamed(m * k, wide, count, rows, half_words) + _streamed(
            k * n, again, count, columns, half_words
        )
    moving, resting = (m * k, k * n) if dataflow == "ws" else (k * n, m * k)
    return _streamed(moving, wide, count, rows, half_words) + _stationary(resting, half_words)


def _streamed(words: Ints, turns: Ints, tiles: Ints, width: int, half_words: float) -> Floats:
    meeting = np.maximum(tiles - turns, 0) * min(1.0, width * (width - 1) / half_words)
    return np.where(words <= half_words, words, _halves(words, half_words) * (turns + meeting))


def _stationary(words: Ints, half_words: float) -> Floats:
    turns = np.ceil(words / half_words)
    return np.where(words <= half_words, words, _halves(words, half_words) * turns)


def _halves(words: Ints, half_words: float) -> Floats:
    result: Floats = np.ceil(words / half_words) * half_words
    return result
