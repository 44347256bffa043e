"""Whether ranks of one class really do the same, and which are classes of their own if they do not.

A class is recorded by its first rank, and by its last one if that costs little: then products and
communication count, as parts of flat buffers make optimizers differ a little everywhere. Where the
program asks which rank it is, the second, the middle and the last one are recorded whatever they cost.
If they do something else, every rank is recorded; of many ranks, those at the first, second, middle and
last place of each axis and of each node, and every other rank is taken to be like the one before it
that was recorded.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from flint.errors import FlintError
from flint.frontends.torch_world.program.deeds import Deed, deeds_of, difference, heavy_deeds_of
from flint.frontends.torch_world.record.recording import Recording
from flint.ir.arrays import Mask
from flint.ir.mesh import Mesh
from flint.ir.program import Int64s
from flint.text import plural

#: Numbers of ranks in a warning.
_RANKS = re.compile(r"(?<=rank )\d+|(?<=ranks )\d+ and \d+|(?<=recorded \()[\d, .]+")
#: Up to so many ranks of a class are all recorded where they differ.
MOST_RECORDED = 8
#: Up to so many of a larger class.
MOST_SAMPLED = 64
#: A rank of up to so many operators is recorded again without a reason: that takes less than PyTorch's import.
CHEAP_EVENTS = 10_000


@dataclass
class Ranks:
    """Holds ranks of a class against what stands for them; `of` records ranks."""

    mesh: Mesh
    local_world_size: int
    of: Callable[[Sequence[int]], Sequence[Recording]]
    warnings: list[str] = field(default_factory=list)
    _told: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def parts(self, mask: Mask, expected: Recording) -> Iterator[tuple[Mask, Recording]]:
        """The classes that the ranks of `mask` are; `expected` is what all of them should do."""
        asked = self._axes_asked(expected)
        compared = deeds_of if asked else heavy_deeds_of
        deeds = compared(expected, self.mesh)
        witnesses = self._recorded_witnesses(mask, expected, asked)
        different = next((r for r in witnesses if compared(r, self.mesh) != deeds), None)
        if different is None:
            yield mask, expected
            return
        stands_for = _representatives(mask, self.mesh, self.local_world_size)
        recorded = np.unique(stands_for[mask]).tolist()
        alike: dict[tuple[Deed, ...], list[Recording]] = {}
        for recording in self.of(recorded):
            alike.setdefault(tuple(deeds_of(recording, self.mesh)), []).append(recording)
        how = _how_recorded(int(mask.sum()), recorded)
        what = difference(expected, different, self.mesh)
        self._tell(f"{what}: {plural(len(alike), 'program')}; {how}")
        for members in alike.values():
            yield mask & np.isin(stands_for, [r.rank for r in members]), members[0]

    def _tell(self, warning: str) -> None:
        """Warn once of what several classes have: their warnings differ in numbers of ranks alone."""
        self._told[_RANKS.sub("", warning)].append(warning)
        self.warnings[:] = []
        for first, *more in self._told.values():
            also = f" (so do ranks of {len(more)} more classes)" if more else ""
            self.warnings.append(f"{first}{also}")

    def _recorded_witnesses(
        self, mask: Mask, expected: Recording, asked: set[str]
    ) -> Sequence[Recording]:
        """Those of `_witnesses`. One that no text asks for stops no capture: a warning says why it failed."""
        ranks = self._witnesses(mask, expected, asked)
        try:
            return self.of(ranks)
        except FlintError as error:
            if asked:
                raise
            self._tell(
                f"rank {ranks[0]} could not be recorded ({error.message}): it is taken to do what rank "
                f"{expected.rank} does"
            )
            return ()

    def _witnesses(self, mask: Mask, expected: Recording, asked: set[str]) -> list[int]:
        """The second, the middle and the last rank along the axes about which the program asks.

        The last rank of all where it asks nothing that was seen, if that costs little.
        """
        ranks = np.flatnonzero(mask)
        if not asked:
            return [int(ranks[-1])][: len(ranks) > 1 and len(expected.events) <= CHEAP_EVENTS]
        places = np.array(np.unravel_index(ranks, self.mesh.sizes))
        fixed = [i for i, name in enumerate(self.mesh.names) if name not in asked]
        along = ranks[(places[fixed] == places[fixed, :1]).all(axis=0)]
        found = dict.fromkeys(along[[min(1, len(along) - 1), len(along) // 2, -1]].tolist())
        found.pop(expected.rank, None)
        return list(found)

    def _axes_asked(self, recording: Recording) -> set[str]:
        """Axes along which ranks may differ: all of them where an exchange is uneven."""
        every, named = set(self.mesh.names), {question.axis for question in recording.asks}
        uneven = any(e.comm and (e.comm.splits or e.comm.received) for e in recording.events)
        return every if uneven or not named <= every else named


def _representatives(mask: Mask, mesh: Mesh, local_world_size: int) -> Int64s:
    """For each rank the one that is recorded for it."""
    ranks = np.arange(mesh.size, dtype=np.int64)
    if mask.sum() <= MOST_RECORDED:
        return ranks
    sizes = _with_nodes(mesh.sizes, local_world_size)
    for count in (4, 3, 2, 1):
        nearest = [_nearest(size, count) for size in sizes]
        if math.prod(len(np.unique(n)) for n in nearest) <= MOST_SAMPLED:
            break
    places = np.unravel_index(ranks, sizes)
    moved = [near[at] for near, at in zip(nearest, places, strict=True)]
    found = np.ravel_multi_index(moved, sizes).astype(np.int64)
    inside = np.flatnonzero(mask)
    before = inside[np.maximum(np.searchsorted(inside, found, side="right") - 1, 0)]
    return np.asarray(np.where(mask[found], found, before), dtype=np.int64)


def _with_nodes(sizes: Sequence[int], local_world_size: int) -> tuple[int, ...]:
    """Sizes of the axes, the one that runs across nodes cut where a node ends."""
    found: list[int] = []
    inner = 1
    for size in reversed(sizes):
        inside = local_world_size // inner
        if 1 < inside < size and local_world_size % inner == 0 and size % inside == 0:
            found += [inside, size // inside]
        else:
            found.append(size)
        inner *= size
    return tuple(reversed(found))


def _nearest(size: int, count: int) -> Int64s:
    """For each place of `size` the last one of up to `count` samples that is not behind it."""
    samples = np.unique([0, 1, size - 1, size // 2][:count])
    samples = samples[samples < size]
    at = np.searchsorted(samples, np.arange(size), side="right") - 1
    return np.asarray(samples[at], dtype=np.int64)


def _how_recorded(total: int, recorded: Sequence[int]) -> str:
    if total == len(recorded):
        return f"all {total} ranks were recorded"
    shown = ", ".join(map(str, recorded[:12])) + (", ..." if len(recorded) > 12 else "")
    return (
        f"{len(recorded)} of {total} ranks were recorded ({shown}); each other rank is assumed "
        "to be like the recorded one before it on each axis"
    )
