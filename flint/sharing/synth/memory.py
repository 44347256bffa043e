"""What a generator remembers of the programs that it has learned from: their steps, without sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Int64s
from flint.sharing.synth.codec.reader import Steps
from flint.sharing.synth.codec.template import Vocabulary
from flint.sharing.synth.ratios import ratios_of

#: Steps that have to be alike before a place, for it to be a place like another one.
CONTEXT = 6
#: Odd numbers of the rolling hash (Knuth's, modulo 2^64).
_MIX = np.uint64(6364136223846793005)


@dataclass(frozen=True, eq=False)
class Memory:
    """Programs one behind another: entry i of `templates` is the number of a step's template; what it reads
    are `operands[first[i]:first[i + 1]]`, as numbers of steps back. Program p is `start[p]:start[p + 1]`.

    `ratios` are rows (place, which of its new sizes, steps back, dimension, `Ratio`), ascending: sizes that
    nothing gave, and that were in a simple ratio to an earlier dimension.
    """

    templates: NDArray[np.int32]
    start: Int64s
    first: Int64s
    operands: NDArray[np.int32]
    ratios: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.start) - 1

    @classmethod
    def of(cls, programs: Iterable[Steps], vocabulary: Vocabulary) -> Memory:
        """The steps of programs, in the order in which they come."""
        templates: list[int] = []
        start, first, operands = [0], [0], list[int]()
        ratios: list[tuple[int, ...]] = []
        for steps in programs:
            ratios.extend((start[-1] + at, *rest) for at, *rest in ratios_of(steps))
            for number, template in enumerate(steps.templates):
                templates.append(vocabulary.number(template))
                operands.extend(number - o for o in steps.operands[number])
                first.append(len(operands))
            start.append(len(templates))
        return cls(
            np.array(templates, np.int32),
            np.array(start, np.int64),
            np.array(first, np.int64),
            np.array(operands, np.int32),
            np.array(ratios, np.int32).reshape(-1, 5),
        )

    def related(self, place: int) -> dict[int, tuple[int, int, int]]:
        """Of the new sizes of a place: the place and dimension that each is in a ratio to, and the ratio."""
        low, high = np.searchsorted(self.ratios[:, 0], (place, place + 1))
        rows = self.ratios[low:high].tolist()
        return {which: (place - back, dimension, code) for _, which, back, dimension, code in rows}

    def reads(self, place: int) -> list[int]:
        """The places that a step reads or borrows from, in the order of its slots."""
        back = self.operands[self.first[place] : self.first[place + 1]]
        found: list[int] = (place - back).tolist()
        return found

    def program_of(self, places: Int64s) -> Int64s:
        """Which program each place is in."""
        return np.searchsorted(self.start, places, "right") - 1

    def after(self, recent: Sequence[int]) -> Int64s:
        """Places before which the templates are as in `recent`, whose last CONTEXT count."""
        if len(recent) < CONTEXT:
            return np.zeros(0, np.int64)
        wanted = _hashes(np.array(recent[-CONTEXT:], np.int32))[-1]
        keys, order = self._index
        low, high = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
        return np.asarray(order[low:high])

    @cached_property
    def _index(self) -> tuple[NDArray[np.uint64], Int64s]:
        """Hashes of the context before each place that has one in its program, ascending."""
        hashes = _hashes(self.templates)
        place = np.arange(CONTEXT, len(self.templates))
        inside = place - self.start[self.program_of(place)] >= CONTEXT
        place = place[inside]
        keys = hashes[place - CONTEXT]
        order = np.argsort(keys, kind="stable")
        return keys[order], place[order]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As a file keeps it."""
        return {
            "memory_templates": self.templates.astype(np.uint16),
            "memory_start": self.start.astype(np.uint32),
            "memory_counts": np.diff(self.first).astype(np.uint8),
            "memory_operands": self.operands.astype(np.uint16),
            "memory_ratios": self.ratios,
        }

    @classmethod
    def from_arrays(cls, stored: Mapping[str, NDArray[Any]], vocabulary: int) -> Memory:
        """What `arrays` gave. Raises ValueError for arrays that contradict themselves."""
        counts = stored["memory_counts"].astype(np.int64)
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        found = cls(
            stored["memory_templates"].astype(np.int32),
            stored["memory_start"].astype(np.int64),
            first,
            stored["memory_operands"].astype(np.int32),
            stored["memory_ratios"].astype(np.int32).reshape(-1, 5),
        )
        whole = len(found.start) > 1 and found.start[0] == 0
        whole &= found.start[-1] == len(found.templates) == len(counts)
        whole &= bool((np.diff(found.start) > 0).all()) and first[-1] == len(found.operands)
        if not whole or found.templates.max(initial=0) >= vocabulary:
            raise ValueError("its memory contradicts itself")
        place, back = found.ratios[:, 0], found.ratios[:, 2]
        if (back < 1).any() or (place < back).any() or (np.diff(place) < 0).any():
            raise ValueError("its memory has a size of nothing")
        owner = np.repeat(np.arange(len(counts)), counts)
        begins = found.start[found.program_of(owner)]
        if (found.operands < 1).any() or (owner - found.operands < begins).any():
            raise ValueError("a step of its memory reads none of its program")
        return found


def _hashes(templates: NDArray[np.int32]) -> NDArray[np.uint64]:
    """For each place from which CONTEXT templates follow, a hash of them."""
    count = len(templates) - CONTEXT + 1
    found = np.zeros(max(count, 0), np.uint64)
    values = templates.astype(np.uint64)
    for at in range(CONTEXT):
        found = found * _MIX + values[at : at + count] + np.uint64(1)
    return found
