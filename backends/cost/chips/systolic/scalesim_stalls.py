"""SCALE-Sim's cycles with a limited bandwidth: what its double buffers wait for.

SCALE-Sim 3.0.0 puts each operand into the order in which the array first asks for it, cuts that
order into sets of a hundredth of the SRAM, and closes it to a ring. Half of the SRAM is a window on
the ring. A request outside of it moves the window on by the other half, and again until the request
is inside: so a step back costs a whole turn. Every move takes the words of that half over the
bandwidth, one after the other; the array stands still meanwhile. Results go through a buffer of
their own, see `scalesim_writes.py`.

Requests of a fold, by operand:

| operand | order | requests |
|---|---|---|
| streamed (both of os, ifmap of ws, filter of is) | diagonals of its tiles, stacked | skewed |
| stationary (filter of ws, ifmap of is) | rows of its tiles, stacked | rows, last one first |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.systolic.scalesim import cycles, folds
from flint.backends.cost.chips.systolic.scalesim_writes import WriteBuffer, results_per_cycle

#: SRAM over words of a set.
SETS = 100
#: Cycles of an answer from DRAM.
LATENCY = 1
Ints = NDArray[np.int64]
#: Cycle within a fold and set of requests, only where the set is another than before.
Requests = list[tuple[int, int]]


@dataclass(frozen=True)
class Stream:
    """An operand: its sets, those inside the window and those that a move brings, and requests.

    `requests` has one entry per tile of the operand; fold (i, j) asks for tile i or j.
    """

    sets: int
    window: int
    step: int
    requests: tuple[Requests, ...]


class _Buffer:
    """Where the window of an operand is, and when its last move ends."""

    def __init__(self, stream: Stream, move_cycles: int) -> None:
        self.stream = stream
        self.move_cycles = move_cycles
        self.start = 0
        self.ready = -1

    def stall(self, cycle: int, wanted: list[int]) -> int:
        """Cycles that the array waits if it asks for these sets in `cycle`."""
        offset = 1  # an answer from the SRAM
        for number in wanted:
            while (number - self.start) % self.stream.sets >= self.stream.window:
                self.start = (self.start + self.stream.step) % self.stream.sets
                self.ready += self.move_cycles
                late = self.ready - (cycle + offset)
                # SCALE-Sim adds what is late twice; the next move is early by as much
                offset += late + max(late, 0)
        return offset - 1


def limited_cycles(
    m: int,
    n: int,
    k: int,
    rows: int,
    columns: int,
    dataflow: str,
    words_per_cycle: int,
    ifmap_kilobytes: int,
    filter_kilobytes: int,
    ofmap_kilobytes: int,
) -> int:
    """Cycles of m x k times k x n when both operands and the result get `words_per_cycle` each.

    A word is a byte, as in SCALE-Sim. ValueError for another dataflow.
    """
    _, each = folds(m, n, k, rows, columns, dataflow)
    ifmap, weights = _streams(m, n, k, rows, columns, dataflow, ifmap_kilobytes, filter_kilobytes)
    buffers = [
        _Buffer(stream, math.ceil(_half(kilobytes) / words_per_cycle) + LATENCY)
        for stream, kilobytes in ((ifmap, ifmap_kilobytes), (weights, filter_kilobytes))
    ]
    results = WriteBuffer(ofmap_kilobytes * 1024, words_per_cycle)
    stalls = 0
    for fold, tiles in enumerate(_fold_tiles(m, n, k, rows, columns, dataflow)):
        base = fold * int(each)
        parts = [b.stream.requests[t] for b, t in zip(buffers, tiles, strict=True)]
        written = _written(m, n, k, rows, columns, dataflow, fold)
        for at, wanted, words in _merged(parts, written):
            now = base + at + stalls
            waits = [b.stall(now, w) for b, w in zip(buffers, wanted, strict=True)]
            stalls += max(results.stall(now, words), *waits)
    return int(cycles(m, n, k, rows, columns, dataflow)) + stalls


def _half(kilobytes: int) -> int:
    return kilobytes * 1024 // 2


def _fold_tiles(
    m: int, n: int, k: int, rows: int, columns: int, dataflow: str
) -> Iterator[tuple[int, int]]:
    """Tiles of ifmap and filter that each fold asks for; tiles along rows change fastest."""
    high = math.ceil((m if dataflow == "os" else k) / rows)
    wide = math.ceil((m if dataflow == "is" else n) / columns)
    for j in range(wide):
        for i in range(high):
            stationary = j * high + i
            yield {"os": (i, j), "ws": (i, stationary), "is": (stationary, i)}[dataflow]


def _written(
    m: int, n: int, k: int, rows: int, columns: int, dataflow: str, fold: int
) -> dict[int, int]:
    """Results that a fold writes, by cycle within it."""
    high = math.ceil((m if dataflow == "os" else k) / rows)
    i, j = fold % high, fold // high
    wide = min(columns, (m if dataflow == "is" else n) - j * columns)
    if dataflow == "os":  # the last row of the tile leaves first, after all of k
        tall = min(rows, m - i * rows)
        first = k - 1 + rows - tall
    else:
        tall = m if dataflow == "ws" else n
        first = 2 * rows - 1
    return dict(enumerate(results_per_cycle(tall, wide).tolist(), first))


def _merged(
    requests: list[Requests], written: dict[int, int]
) -> Iterator[tuple[int, list[list[int]], int]]:
    """Cycle by cycle, the sets that each operand is asked for, and how many results appear."""
    asked: dict[int, list[list[int]]] = {}
    for operand, part in enumerate(requests):
        for cycle, number in part:
            asked.setdefault(cycle, [[] for _ in requests])[operand].append(number)
    nothing: list[list[int]] = [[] for _ in requests]
    for cycle in sorted(asked.keys() | written.keys()):
        yield cycle, asked.get(cycle, nothing), written.get(cycle, 0)


def _streams(
    m: int,
    n: int,
    k: int,
    rows: int,
    columns: int,
    dataflow: str,
    ifmap_kilobytes: int,
    filter_kilobytes: int,
) -> tuple[Stream, Stream]:
    if dataflow == "os":
        return (
            _streamed(k, m, rows, 0, ifmap_kilobytes),
            _streamed(k, n, columns, 0, filter_kilobytes),
        )
    if dataflow == "ws":
        return (
            _streamed(m, k, rows, rows, ifmap_kilobytes),
            _stationary(k, n, rows, columns, filter_kilobytes),
        )
    return (
        _stationary(k, m, rows, columns, ifmap_kilobytes),
        _streamed(n, k, rows, rows, filter_kilobytes),
    )


def _streamed(length: int, extent: int, width: int, prefix: int, kilobytes: int) -> Stream:
    """An operand of `extent` lanes of `length` elements, in tiles of `width` lanes.

    Lane c is asked for element t of its tile in cycle prefix + t + c.
    """
    tiles = math.ceil(extent / width)
    diagonal, lane = np.ogrid[: tiles * length + width - 1, :width]
    row = diagonal - lane
    there = (row >= 0) & (row < tiles * length)
    there &= (row // length) * width + lane < extent
    number = _set_numbers(there, kilobytes)
    cycle = np.arange(length + width - 1)[:, None]
    inside = (cycle - lane >= 0) & (cycle - lane < length)
    requests = []
    for tile in range(tiles):
        part = slice(tile * length, tile * length + length + width - 1)
        asked = inside & there[part]
        asked &= tile * width + lane < extent
        requests.append(_changes(cycle + prefix, number[part], asked))
    return _stream(there, kilobytes, requests)


def _stationary(length: int, extent: int, rows: int, width: int, kilobytes: int) -> Stream:
    """An operand of `length` x `extent` elements in tiles of `rows` x `width`.

    The last row of a tile is asked for in cycle 0.
    """
    wide = math.ceil(extent / width)
    row, lane = np.ogrid[: wide * length, :width]
    there = (row // length) * width + lane < extent
    number = _set_numbers(there, kilobytes)
    requests = []
    for j in range(wide):
        for low in range(0, length, rows):
            high = min(low + rows, length)
            part = slice(j * length + low, j * length + high)
            cycle = np.arange(rows - (high - low), rows)[:, None]
            requests.append(_changes(cycle, number[part][::-1], there[part][::-1]))
    return _stream(there, kilobytes, requests)


def _set_numbers(there: NDArray[np.bool_], kilobytes: int) -> Ints:
    """Number of the set that each element is in, for elements in row order that are `there`."""
    rank = np.cumsum(there).reshape(there.shape) - 1
    return np.asarray(rank // _set_words(kilobytes), np.int64)


def _set_words(kilobytes: int) -> int:
    return math.ceil(kilobytes * 1024 / SETS)


def _stream(there: NDArray[np.bool_], kilobytes: int, requests: list[Requests]) -> Stream:
    sets = int(there.sum()) // _set_words(kilobytes) + 1  # the last one may be empty
    half = math.ceil(_half(kilobytes) / _set_words(kilobytes))
    window = min(half, sets)
    return Stream(sets, window, min(half, sets - window), tuple(requests))


def _changes(cycle: Ints, number: Ints, asked: NDArray[np.bool_]) -> Requests:
    """Requests in order, without those of the set that the one before was in."""
    numbers = number[asked]
    when = np.broadcast_to(cycle, asked.shape)[asked]
    first = np.ones(len(numbers), np.bool_)
    first[1:] = numbers[1:] != numbers[:-1]
    return list(zip(when[first].tolist(), numbers[first].tolist(), strict=True))
