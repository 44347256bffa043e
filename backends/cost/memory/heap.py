"""Places that XLA gives to buffers before the step: what that takes beyond the bytes in use.

Arguments and results have memory of their own all step long; what fits into that of a result while
it is not needed is put there. Other buffers have places in one heap for as long as they live, the
largest first, each in the smallest gap that is free all that time and large enough
(`GlobalDecreasingSizeBestFitHeap`). The heap is larger than the most bytes that are in use at once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flint.backends.cost.memory.liveness import Buffers
from flint.ir.op_class import OpClass
from flint.ir.program import Int64s, Kind, Program

#: Buffers that are placed; the rest, the smallest, are taken to fill gaps.
_PLACED = 1000


def placed(program: Program, layout: Buffers, share: float = 1.0) -> Buffers:
    """The buffers of a device with those of results there all step long, and gaps between the rest.

    A buffer that lies in the memory of a result has no bytes of its own. `share` is how much larger
    the heap is than its buffers make it.
    """
    own = program.kind[layout.first] == Kind.PARAMETER
    results = np.unique(layout.of_row[_returned(program)])
    results = results[~own[results] & (layout.num_bytes[results] > 0)]
    inside = _inside_results(layout, _largest_first(layout, ~own), results)
    born, dies, size = layout.born.copy(), layout.dies.copy(), layout.num_bytes.copy()
    born[results], dies[results], size[inside] = 0, layout.moments - 1, 0
    found = replace(layout, born=born, dies=dies, num_bytes=size)
    own[results] = True
    return replace(found, gap_bytes=_gap_bytes(found, ~own, share))


def _returned(program: Program) -> Int64s:
    """The rows whose values the step returns.

    A pipeline is many programs, each with memory for its results while it runs.
    """
    if (program.op == OpClass.TURN).any():
        return np.zeros(0, dtype=np.int64)
    rows = np.flatnonzero((program.op == OpClass.RESULT) & (program.region == -1)).tolist()
    found = [program.dependencies(row) for row in rows]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _largest_first(layout: Buffers, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Int64s:
    """The chosen buffers in the order in which they are placed."""
    numbers = np.flatnonzero(chosen & (layout.num_bytes > 0))
    size, lasts = layout.num_bytes[numbers], layout.dies[numbers] - layout.born[numbers]
    return numbers[np.lexsort((numbers, -lasts, -size))][:_PLACED]


def _inside_results(layout: Buffers, numbers: Int64s, results: Int64s) -> list[int]:
    """Those of `numbers` that lie in the memory of a result, at times when it is free."""
    size, born, dies = (a.tolist() for a in (layout.num_bytes, layout.born, layout.dies))
    places = [(r, [(born[r], dies[r])]) for r in sorted(results.tolist(), key=size.__getitem__)]
    found = []
    for number in sorted({*numbers.tolist()} - {*results.tolist()}, key=numbers.tolist().index):
        for result, busy in places:
            free = all(dies[number] < start or end < born[number] for start, end in busy)
            if size[number] <= size[result] and free:
                busy.append((born[number], dies[number]))
                found.append(number)
                break
    return found


def _gap_bytes(
    layout: Buffers, inside: np.ndarray[tuple[int], np.dtype[np.bool_]], share: float
) -> int:
    """Bytes of the heap that no buffer fills at the moment of the peak, at least 0."""
    numbers = _largest_first(layout, inside)
    heap = _Heap(len(numbers))
    for number in numbers.tolist():
        span = int(layout.born[number]), int(layout.dies[number])
        heap.place(int(layout.num_bytes[number]), *span)
    at_once = layout.of(np.isin(np.arange(len(inside)), numbers)).live_bytes.max(initial=0)
    gaps = max(heap.bytes - int(at_once), 0)
    in_heap = int(layout.of(inside).live_bytes.max(initial=0))
    return gaps + round((share - 1) * (gaps + in_heap))


class _Heap:
    """Places of buffers that are known already."""

    def __init__(self, count: int) -> None:
        self.bytes = 0
        self._count = 0
        #: Rows: born, dies, start and stop of each.
        self._places = np.zeros((4, count), dtype=np.int64)

    def place(self, size: int, born: int, dies: int) -> None:
        """Put a buffer where it fits best."""
        known = self._places[:, : self._count]
        meets = known[:, (known[0] <= dies) & (known[1] >= born)]
        start = _best(meets[2], meets[3], size)
        self._places[:, self._count] = born, dies, start, start + size
        self._count += 1
        self.bytes = max(self.bytes, start + size)


def _best(starts: Int64s, stops: Int64s, size: int) -> int:
    """The start of the smallest gap between pieces that holds `size`, or the end of all."""
    order = np.argsort(starts, kind="stable")
    begins = np.append(0, np.maximum.accumulate(stops[order]))
    gaps = np.append(starts[order], np.iinfo(np.int64).max) - begins
    fits = np.flatnonzero(gaps >= size)
    return int(begins[fits[gaps[fits].argmin()]])
