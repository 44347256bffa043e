"""Which slices of a sharded dimension its devices must exchange.

Shard i of a dimension owns elements [i * shard, (i + 1) * shard) and needs [low_i, high_i). What it
lacks comes from its neighbors. The choice between small neighbor messages, messages only where
one is needed, and gathering the whole dimension is the one XLA's SPMD partitioner makes
(`ExchangeHalo`, `ExchangeHaloCompact` in xla/service/spmd/spmd_partitioner_util.cc), so that counts
and bytes agree with what it emits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Hop:
    """One permute: `extent` elements of the dimension, to shard p + `offset` or along `pairs`."""

    extent: int
    offset: int = 0
    wrap: bool = False
    pairs: Pairs = ()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part [start, stop) of shard `source`, which `target` needs `place` elements into its window."""

    source: int
    target: int
    place: int
    start: int
    stop: int


def hops(
    low: Indices, high: Indices, shard: int, size: int, readers: int | None = None
) -> list[Hop] | None:
    """Permutes that bring [low_i, high_i) to every shard i, or None if all must be gathered.

    `size` is the whole dimension, `shard` the elements of one shard; ranges may reach beyond both
    ends, where there is padding. Only the first `readers` shards hold more than padding.
    """
    count = len(low)
    own = np.arange(count, dtype=np.int64) * shard
    left, right = own - low, high - own - shard
    window = int((high - low).max())
    if max(left.max(), right.max()) > 2 * window:
        if 2 * window >= count * shard:
            return None
        return messages(low[:readers], high[:readers], shard, size)
    most_left, most_right = int(left[1:].max()), int(right[:-1].max())
    reaches_far = max(most_left, most_right) > shard
    if reaches_far and most_left + most_right + shard >= count * shard:
        return None
    first, last = -int(left.max()), shard + int(right.max())
    if first >= last:
        return None
    from_left = _neighbours(most_left, shard, skip=-last)
    from_right = _neighbours(most_right, shard, skip=first - shard)
    found = [Hop(extent, step) for step, extent in reversed(from_left)] + [
        Hop(extent, -step) for step, extent in from_right
    ]
    return [hop for hop in found if abs(hop.offset) < count]


def _neighbours(reach: int, shard: int, skip: int) -> list[tuple[int, int]]:
    """(distance, elements) of each message on one side; the nearest `skip` elements are unused."""
    found = []
    for nearer in range(-(-max(reach, 0) // shard)):
        unused = max(skip - nearer * shard, 0)
        extent = min(reach - nearer * shard, shard) - unused
        if extent > 0:
            found.append((nearer + 1, extent))
    return found


def messages(low: Indices, high: Indices, shard: int, size: int) -> list[Hop]:
    """Permutes between exactly the shards that need something of each other.

    In one permute every shard sends at most once and receives at most once; its extent spans the
    slices that its senders send.
    """
    waiting: dict[int, list[_Piece]] = {}
    for piece in _pieces(low, high, shard, size):
        if piece.source != piece.target:
            waiting.setdefault(piece.source, []).append(piece)
    for queue in waiting.values():
        queue.sort(key=lambda p: p.place)
    found = []
    while waiting:
        chosen = _one_round(waiting, shard)
        extent = max(p.stop for p in chosen) - min(p.start for p in chosen)
        found.append(Hop(extent, pairs=tuple((p.source, p.target) for p in chosen)))
        waiting = {source: queue for source, queue in waiting.items() if queue}
    return found


def _pieces(low: Indices, high: Indices, shard: int, size: int) -> list[_Piece]:
    found = []
    for target, (wanted, end) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        at, stop = max(wanted, 0), min(end, size)
        while at < stop:
            source, start = divmod(at, shard)
            taken = min(shard - start, stop - at)
            found.append(_Piece(source, target, at - wanted, start, start + taken))
            at += taken
    return found


def _one_round(waiting: dict[int, list[_Piece]], shard: int) -> list[_Piece]:
    """Take the first piece of each source, unless its target is taken or it widens the slice."""
    chosen: list[_Piece] = []
    targets: set[int] = set()
    start, stop = shard, 0
    for source in sorted(waiting):
        piece = waiting[source][0]
        is_tail, is_head = piece.stop == shard, piece.start == 0
        apart = (is_head and stop == shard and start > piece.stop) or (
            is_tail and start == 0 and stop < piece.start
        )
        if chosen and (piece.target in targets or apart):
            continue
        chosen.append(waiting[source].pop(0))
        targets.add(piece.target)
        start, stop = min(start, piece.start), max(stop, piece.stop)
    return chosen


def rotation(amount: int, shard: int, count: int) -> list[Hop]:
    """Permutes that turn a dimension of `count` full shards by `amount` elements, to the right.

    Shard p then holds elements [p * shard - amount, (p + 1) * shard - amount) of the ring: a part
    of one shard and the rest of the one after it.
    """
    whole, part = divmod(amount % (shard * count), shard)
    parts = [((whole + 1) % count, part), (whole % count, shard - part)]
    return [Hop(extent, offset, wrap=True) for offset, extent in parts if extent and offset]
