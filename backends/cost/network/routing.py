"""Messages on a torus: how many links each passes, and how many meet on the fullest link.

A message goes along one dimension after the other (dimension-ordered routing, as the interconnects
of TPUs do by default), the shorter way round a ring. Half way round it goes up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Load(NamedTuple):
    """Links of the longest way, and messages over the fullest link in one direction."""

    hops: int
    messages: int


def load_of(
    source: Ints, target: Ints, shape: Sequence[int], rings: Sequence[bool], torus: Ints
) -> Load:
    """The load of messages that are all sent at once.

    `source` and `target` hold the place of a chip in each dimension, one row for each message.
    `rings` are the dimensions whose ends are joined. `torus` tells apart tori that have no link in
    common, by number, for each message.
    """
    hops = np.zeros(len(source), dtype=np.int64)
    fullest = 0
    here = source.copy()
    for dimension, (size, ring) in enumerate(zip(shape, rings, strict=True)):
        a, b = here[:, dimension], target[:, dimension]
        up = (b - a) % size <= (a - b) % size if ring else b > a
        distance = np.where(up, b - a, a - b) % size
        others = np.delete(here, dimension, axis=1)
        line = _numbered(others, [s for d, s in enumerate(shape) if d != dimension], torus)
        for way, first in ((up, a), (~up, size - 1 - a)):  # down is up in a mirror
            fullest = max(fullest, _most_on_a_link(line[way], first[way], distance[way], size))
        hops += distance
        here[:, dimension] = b
    return Load(int(hops.max(initial=0)), fullest)


def _numbered(places: Ints, sizes: Sequence[int], torus: Ints) -> Ints:
    """One number for each line of chips, from 0 upwards without gaps."""
    number = torus
    for place, size in zip(places.T, sizes, strict=True):
        number = number * size + place
    return np.unique(number, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _most_on_a_link(line: Ints, first: Ints, distance: Ints, size: int) -> int:
    """Of messages that go up, the largest number on one link.

    Each passes `distance` links, the first from `first` to the next chip, round the end if need be.
    """
    if not distance.any():
        return 0
    lines = int(line.max()) + 1
    change = np.zeros((lines, 2 * size + 1), dtype=np.int64)
    np.add.at(change, (line, first), 1)
    np.add.at(change, (line, first + distance), -1)
    passing = change.cumsum(axis=1)
    return int((passing[:, :size] + passing[:, size : 2 * size]).max())
