"""What an allocator that places every buffer before the step loses between them.

XLA gives each buffer a place in one heap for as long as it lives: the largest first, each in the
smallest gap that is free all that time and large enough (`GlobalDecreasingSizeBestFitHeap`). The
heap is larger than the most bytes that are in use at once. Arguments have memory of their own.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.memory.liveness import Buffers
from flint.ir.program import Int64s, Kind, Program

#: Buffers that are placed; the rest, the smallest, are taken to fill gaps.
_PLACED = 1000


def gap_bytes(program: Program, layout: Buffers, share: float = 1.0) -> int:
    """Bytes of the heap that no buffer fills at the moment of the peak, at least 0.

    `layout` are buffers on the device; those of arguments are not in the heap. `share` is how much
    larger the heap is than its buffers make it.
    """
    inside = (program.kind[layout.first] != Kind.PARAMETER) & (layout.num_bytes > 0)
    numbers = np.flatnonzero(inside)
    size, lasts = layout.num_bytes[numbers], layout.dies[numbers] - layout.born[numbers]
    numbers = numbers[np.lexsort((numbers, -lasts, -size))][:_PLACED]
    placed = layout.of(np.isin(np.arange(len(inside)), numbers))
    heap = _Heap(len(numbers))
    for number in numbers.tolist():
        span = int(layout.born[number]), int(layout.dies[number])
        heap.place(int(layout.num_bytes[number]), *span)
    gaps = max(heap.bytes - int(placed.live_bytes.max(initial=0)), 0)
    in_heap = layout.of(inside)
    return gaps + round((share - 1) * (gaps + int(in_heap.live_bytes.max(initial=0))))


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
