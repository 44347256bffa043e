"""Which scores an attention kernel calculates: `Program.mask`, and what follows from it.

A causal mask leaves out the keys after each query, about half of all. A window leaves out those
too, and of the others all but the last of its keys. Kernels skip the blocks that a mask leaves out whole;
blocks at its edges are counted by the latency models. The last query sees the last key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Int64s, Program


@dataclass(frozen=True, eq=False)
class Masks:
    """Masks of rows in columns. `window` are keys that a query sees, 0 for all."""

    causal: NDArray[np.bool_]
    window: Int64s

    def select(self, rows: Int64s) -> Masks:
        """Those of some rows."""
        return Masks(self.causal[rows], self.window[rows])


def masks_of(program: Program) -> Masks:
    """The mask of every row. A window of all keys or more is causal."""
    window = np.maximum(program.mask, 0).astype(np.int64)
    wide = (window > 0) & (window >= program.dims[:, 2])
    return Masks((program.mask < 0) | wide, np.where(wide, 0, window))


def band_keys(dims: Int64s, masks: Masks) -> Int64s:
    """For each kernel, how many keys a query sees on average behind a window, else all of them."""
    queries, keys, window = np.maximum(dims[:, 1], 1), dims[:, 2], masks.window
    seeing = np.minimum(queries, keys)  # those before the first key see none
    # the first of them see fewer keys than a window has
    early = np.clip(window - 1 - np.maximum(keys - queries, 0), 0, seeing)
    pairs = seeing * window - early * (early + 1) // 2
    return np.where(window > 0, -(-pairs // queries), keys)


def masked_flops(flops: Int64s, dims: Int64s, masks: Masks) -> Int64s:
    """Of the flops of whole squares, those that are left by the masks."""
    behind = band_keys(dims, masks) / np.maximum(dims[:, 2], 1)
    banded = np.where(masks.window > 0, (flops * behind).astype(np.int64), flops)
    return np.where(masks.causal, banded // 2, banded)
