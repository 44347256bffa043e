"""Where layers may be put in, or taken out: between layers that read the same of their neighbours."""

from __future__ import annotations

import numpy as np

from flint.errors import FlintError
from flint.ir.program import Int64s
from flint.tools.share.growing.unrolled.alignment import Layers, Placed


def cut_of(layers: Layers, more: int) -> int:
    """The layer after which layers come, or go: one that is like its neighbours. The middle is tried first.

    Layers come as copies of it, so it has to read what the one before or after it reads. Layers go between
    two that are alike.
    """
    codes, common = _codes(layers), layers.common
    last = common.stop - 2 if more > 0 else common.stop - 2 + more
    choices = range(common.start + (more > 0), last + 1)
    for m in sorted(choices, key=lambda m: abs(2 * m - _twice_the_middle(common))):
        ends = ((m - 1, m), (m, m + 1)) if more > 0 else ((m, m + 1, m - more, m - more + 1),)
        alike = [any(_are_alike(layers, p, codes, e) for e in ends) for p in layers.placed]
        if all(alike) and _crossings_fit(layers, m, max(-more, 0)):
            return m
    raise not_alike(f"no two layers of {len(common)} read the same of their neighbours")


def _twice_the_middle(common: range) -> int:
    return common.start + common.stop - 1


def _codes(layers: Layers) -> Int64s:
    """For each dependency, what is read as seen from the layer: a place and how many layers away, or a row.

    Numbers of rows outside of layers are negative.
    """
    p = layers.program
    owner, read = p.dep_owner.astype(np.int64), p.deps.astype(np.int64)
    return _coded(layers, owner, read)


def _coded(layers: Layers, owner: Int64s, read: Int64s) -> Int64s:
    rows = len(layers.program) + 1
    starts = np.array([q.segment.start for q in layers.placed], dtype=np.int64)
    number = layers.segment[read]
    place = starts[number] + layers.offset[read]
    away = layers.layer[read] - layers.layer[owner]
    inside = (number >= 0) & (layers.segment[owner] >= 0)
    return np.where(inside, (away + rows) * rows + place, -1 - read)


def _are_alike(layers: Layers, placed: Placed, codes: Int64s, which: tuple[int, ...]) -> bool:
    """Whether rows of these layers read the same, as seen from the layer, and share the same storage."""
    told = [_told(layers, placed, codes, layer) for layer in which]
    return all(len(t) == len(told[0]) and (t == told[0]).all() for t in told[1:])


def _told(layers: Layers, placed: Placed, codes: Int64s, layer: int) -> Int64s:
    """All that rows of a block read, and the storage that they share, in one row of numbers."""
    p = layers.program
    start = placed.segment.start + placed.block(layer) * placed.segment.period
    rows = np.arange(start, start + placed.segment.period)
    links = slice(int(p.dep_start[start]), int(p.dep_start[rows[-1] + 1]))
    owner = p.dep_owner[links] - start
    order = np.lexsort((codes[links], owner))
    alias = p.alias[rows].astype(np.int64)
    shared = np.where(alias >= 0, _coded(layers, rows, np.maximum(alias, 0)), -len(p) - 2)
    return np.concatenate([owner, codes[links][order], shared])


def _crossings_fit(layers: Layers, cut: int, removed: int) -> bool:
    """Whether all that crosses the cut goes from a layer to the next, or is of rows that read all layers."""
    p = layers.program
    owner, read = p.dep_owner.astype(np.int64), p.deps.astype(np.int64)
    inside = (layers.segment[owner] >= 0) & (layers.segment[read] >= 0)
    one, other = layers.layer[owner], layers.layer[read]
    low, high = np.minimum(one, other), np.maximum(one, other)
    crosses = inside & (low <= cut) & (high > cut + removed)
    if (high - low)[crosses].max(initial=0) > 1:
        return False
    return all(
        len({layer in found for layer in range(cut, cut + removed + 2)}) == 1
        for found in read_from_outside(layers).values()
    )


def read_from_outside(layers: Layers) -> dict[tuple[int, int, int], set[int]]:
    """Layers that rows outside of layers read, by row, segment and place in the block."""
    p = layers.program
    links = np.flatnonzero((layers.segment[p.dep_owner] < 0) & (layers.segment[p.deps] >= 0))
    found: dict[tuple[int, int, int], set[int]] = {}
    for owner, read in zip(p.dep_owner[links].tolist(), p.deps[links].tolist(), strict=True):
        key = owner, int(layers.segment[read]), int(layers.offset[read])
        found.setdefault(key, set()).add(int(layers.layer[read]))
    return found


def not_alike(why: str) -> FlintError:
    """The error for layers that cannot be told from each other, or are of several kinds."""
    return FlintError(
        "FL926",
        f"the number of layers cannot be changed: {why}",
        help="capture the model with its layers as a loop, or with the number that is wanted",
    )
