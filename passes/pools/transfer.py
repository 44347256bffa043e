"""Which device sends what to whom when a tensor goes from one pool to another.

Both pools have all axes but the one that they lie along. A receiver's shard is a box; the boxes of
the senders' shards cut it into pieces, and each piece is one message. Of several devices that hold
a piece, the one at the receiver's own coordinates along the other axes sends it. Dimensions that
both pools shard alike stay on their coordinates, whatever the size of the mesh: only axes along
which something moves are looked at.

Messages go in rounds: an edge coloring of a bipartite graph with as few colors as it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Mesh, Route
from flint.passes.tensors import Sharding, show

#: (first index, size) along one dimension.
Span = tuple[int, int]
Edge = tuple[int, int]


@dataclass(frozen=True)
class CacheLayout:
    """A tensor of `shape` sharded over the axes of a pool, every dimension divided evenly."""

    shape: tuple[int, ...]
    sharding: Sharding


@dataclass(frozen=True)
class Piece:
    """A box that position `source` sends to position `target`, along the axes of an Exchange."""

    source: int
    target: int
    box: tuple[Span, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its size along each dimension."""
        return tuple(size for _, size in self.box)


@dataclass(frozen=True)
class Exchange:
    """A tensor on its way from the layout of a sending to that of a receiving pool.

    The receiver may be longer in a dimension; what is sent is its beginning. `names` are those of
    the result and the argument, for errors. Raises FlintError FL245 where a dimension does not
    divide, or axes are cut in ways that do not fit together.
    """

    mesh: Mesh
    sender: CacheLayout
    receiver: CacheLayout
    names: tuple[str, str]

    def __post_init__(self) -> None:
        for layout, name in zip((self.sender, self.receiver), self.names, strict=True):
            for number, (size, axes) in enumerate(zip(layout.shape, layout.sharding, strict=True)):
                parts = self.mesh.group_size(axes)
                if size % parts:
                    raise self.refused(
                        f"dimension {number} of {name} ({size}) is not a multiple of {parts}"
                    )

    def refused(self, reason: str, help: str | None = None) -> FlintError:
        """The error FL245 of this exchange."""
        ends = [
            f"{name} {list(layout.shape)} sharded {show(layout.sharding)}"
            for layout, name in zip((self.sender, self.receiver), self.names, strict=True)
        ]
        return FlintError(
            "FL245",
            f"{self.names[0]} cannot be resharded into {self.names[1]}: {reason}",
            place=" -> ".join(ends),
            help=help or "shard both steps so that all shards of a cache have the same size",
        )

    def within_blocks(self) -> Exchange:
        """The exchange inside one block of what both pools shard alike.

        Where a dimension of one size is split over the same axes first, all blocks of it do the
        same at their own coordinates.
        """
        layouts: tuple[list[tuple[int, tuple[AxisRef, ...]]], ...] = ([], [])
        send, receive = self.sender, self.receiver
        for s, r, a, b in zip(
            send.shape, receive.shape, send.sharding, receive.sharding, strict=True
        ):
            common = 0
            while s == r and common < min(len(a), len(b)) and a[common] == b[common]:
                common += 1
            blocks = self.mesh.group_size(a[:common])
            layouts[0].append((s // blocks, a[common:]))
            layouts[1].append((r // blocks, b[common:]))
        ends = [CacheLayout(tuple(s for s, _ in of), tuple(a for _, a in of)) for of in layouts]
        return Exchange(self.mesh, ends[0], ends[1], self.names)

    @cached_property
    def moving(self) -> tuple[bool, ...]:
        """For each dimension, whether the pools shard it differently."""
        send, receive = self.sender, self.receiver
        return tuple(
            a != b or (bool(a) and s != r)
            for a, b, s, r in zip(
                send.sharding, receive.sharding, send.shape, receive.shape, strict=True
            )
        )

    @cached_property
    def axes(self) -> tuple[AxisRef, ...]:
        """The parts of axes, in mesh order and major to minor, that shard the moving dimensions."""
        refs = [
            ref
            for layout in (self.sender, self.receiver)
            for axes, moves in zip(layout.sharding, self.moving, strict=True)
            for ref in axes
            if moves
        ]
        return tuple(part for name in self.mesh.names for part in self._cut(name, refs))

    def _cut(self, name: str, refs: Sequence[AxisRef]) -> Iterator[AxisRef]:
        """The parts of axis `name` that those of `refs` are made of."""
        spans = [(r.pre_size, r.pre_size * self.mesh.axis_size(r)) for r in refs if r.name == name]
        cuts = sorted({cut for span in spans for cut in span})
        for low, high in pairwise(cuts):
            if high % low:
                raise self.refused(f"they cut axis '{name}' after {low} and after {high} parts")
            if any(a <= low and high <= b for a, b in spans):
                yield AxisRef(name, low, high // low)

    def pieces(self) -> list[Piece]:
        """All messages between one sending and one receiving replica of the pools."""
        sizes = tuple(self.mesh.axis_size(a) for a in self.axes)
        found = []
        for target, at in enumerate(product(*map(range, sizes))):
            spans = [self._sources(dimension, at) for dimension in range(len(self.sender.shape))]
            for choice in product(*spans):
                coordinates = list(at)
                for moved, _ in choice:
                    for axis, coordinate in moved:
                        coordinates[axis] = coordinate
                source = _number(coordinates, sizes)
                found.append(Piece(source, target, tuple(span for _, span in choice)))
        return found

    def _sources(
        self, dimension: int, at: Sequence[int]
    ) -> list[tuple[tuple[tuple[int, int], ...], Span]]:
        """For a receiver at `at`: coordinates of senders along `axes`, and what each has for it.

        Where a dimension does not move, the span is that of the first shard.
        """
        length, whole = self.sender.shape[dimension], self.receiver.shape[dimension]
        if not self.moving[dimension]:
            return [((), (0, length // self.mesh.group_size(self.sender.sharding[dimension])))]
        send, send_sizes = self._axes_of(self.sender, dimension)
        receive, receive_sizes = self._axes_of(self.receiver, dimension)
        width = whole // math.prod(receive_sizes)
        start = width * _number([at[a] for a in receive], receive_sizes)
        stop = min(start + width, length)
        step = length // math.prod(send_sizes)
        found = []
        for shard in range(start // step, -(-stop // step)):
            low, high = max(start, shard * step), min(stop, (shard + 1) * step)
            digits = _digits(shard, send_sizes)
            found.append((tuple(zip(send, digits, strict=True)), (low, high - low)))
        return found

    def _axes_of(self, layout: CacheLayout, dimension: int) -> tuple[list[int], list[int]]:
        """Numbers and sizes of the parts in `axes` that shard a dimension, major to minor."""
        numbers = []
        for ref in layout.sharding[dimension]:
            end = ref.pre_size * self.mesh.axis_size(ref)
            numbers += [
                i
                for i, a in enumerate(self.axes)
                if a.name == ref.name and ref.pre_size <= a.pre_size and _end(a) <= end
            ]
        return numbers, [self.mesh.axis_size(self.axes[i]) for i in numbers]


@dataclass(frozen=True)
class Pools:
    """Where the pools lie along an axis, and which position serves which."""

    axis: str
    senders: tuple[int, ...]
    receivers: tuple[int, ...]

    @property
    def fan_out(self) -> int:
        """How many receiving positions each sending one serves."""
        return len(self.receivers) // math.gcd(len(self.senders), len(self.receivers))

    @property
    def fan_in(self) -> int:
        """How many sending positions serve each receiving one."""
        return len(self.senders) // math.gcd(len(self.senders), len(self.receivers))

    def rounds(self) -> list[list[tuple[int, int]]]:
        """(sending, receiving) positions, in rounds in which each takes part at most once."""
        common = math.gcd(len(self.senders), len(self.receivers))
        turns = max(self.fan_in, self.fan_out)
        found: list[list[tuple[int, int]]] = [[] for _ in range(turns)]
        for i, sender in enumerate(self.senders):
            for j, receiver in enumerate(self.receivers):
                if i % common == j % common:
                    found[(i // common + j // common) % turns].append((sender, receiver))
        return found


@dataclass(frozen=True)
class CacheMessage:
    """What some devices of one pool send to some of the other at once: each at most one."""

    route: Route
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements that each of them sends."""
        return math.prod(self.shape)


def messages(exchange: Exchange, pools: Pools) -> list[CacheMessage]:
    """The messages that carry a tensor from all sending to all receiving positions.

    As few rows as there can be: no more for one size than a device has messages of it.
    """
    exchange = exchange.within_blocks()
    by_shape: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for piece in exchange.pieces():
        if not math.prod(piece.shape):
            continue
        by_shape.setdefault(piece.shape, []).append((piece.source, piece.target))
    found = []
    for across in pools.rounds():
        for shape, edges in by_shape.items():
            for pairs in color_edges(edges):
                found.append(CacheMessage(_route(exchange, pools, across, pairs), shape))
    return found


def _route(
    exchange: Exchange, pools: Pools, across: list[tuple[int, int]], pairs: list[tuple[int, int]]
) -> Route:
    """`pairs` along the axes of the exchange, for each pair of positions of the pools."""
    mesh = exchange.mesh
    axes, pairs = _without_idle(exchange.axes, [mesh.axis_size(a) for a in exchange.axes], pairs)
    place = mesh.names.index(pools.axis)
    outer = sum(mesh.names.index(a.name) < place for a in axes)
    sizes = [mesh.axis_size(a) for a in axes]
    whole = [*sizes[:outer], mesh.axis_size(pools.axis), *sizes[outer:]]

    def position(pool: int, inner: int) -> int:
        digits = _digits(inner, sizes)
        return _number([*digits[:outer], pool, *digits[outer:]], whole)

    table = sorted(
        (position(sender, source), position(receiver, target))
        for sender, receiver in across
        for source, target in pairs
    )
    parts = (*axes[:outer], AxisRef(pools.axis), *axes[outer:])
    return Route(mesh.canonical(parts), pairs=tuple(table))


def _without_idle(
    axes: tuple[AxisRef, ...], sizes: list[int], pairs: list[tuple[int, int]]
) -> tuple[tuple[AxisRef, ...], list[tuple[int, int]]]:
    """Leave out axes at each of whose coordinates the same pairs stay."""
    for number in reversed(range(len(axes))):
        minor, size = math.prod(sizes[number + 1 :]), sizes[number]

        def without(position: int, minor: int = minor, size: int = size) -> int:
            return position // (minor * size) * minor + position % minor

        if any(s // minor % size != t // minor % size for s, t in pairs):
            continue
        left = sorted({(without(s), without(t)) for s, t in pairs})
        if len(left) * size == len(pairs):
            axes, pairs = axes[:number] + axes[number + 1 :], left
            sizes = sizes[:number] + sizes[number + 1 :]
    return axes, pairs


def _end(axis: AxisRef) -> int:
    return axis.pre_size * (axis.size or 1)


def _number(digits: Sequence[int], sizes: Sequence[int]) -> int:
    number = 0
    for digit, size in zip(digits, sizes, strict=True):
        number = number * size + digit
    return number


def _digits(number: int, sizes: Sequence[int]) -> list[int]:
    digits = []
    for size in reversed(sizes):
        digits.append(number % size)
        number //= size
    return digits[::-1]


def color_edges(edges: Iterable[Edge]) -> list[list[Edge]]:
    """Edges (source, target) in lists in which each source and each target is at most once.

    There are as many lists as the node with most edges has (König's theorem). Edges of one shift
    (target - source) are taken first together, so that regular exchanges become shifts.
    """
    #: Per side, by (node, color), the node at the other end.
    at: tuple[dict[Edge, int], dict[Edge, int]] = ({}, {})
    ordered = sorted(edges, key=lambda edge: (edge[1] - edge[0], edge))
    for source, target in ordered:
        mine, theirs = _free(at[0], source), _free(at[1], target)
        if mine != theirs:
            _swap_along(at, target, mine, theirs)
        at[0][source, mine], at[1][target, mine] = target, source
    colors = sorted({color for _, color in at[0]})
    return [sorted((s, t) for (s, c), t in at[0].items() if c == color) for color in colors]


def _free(taken: dict[Edge, int], node: int) -> int:
    color = 0
    while (node, color) in taken:
        color += 1
    return color


def _swap_along(
    at: tuple[dict[Edge, int], dict[Edge, int]], target: int, wanted: int, free: int
) -> None:
    """Exchange two colors along the path from `target`, so that `wanted` becomes free there."""
    path: list[Edge] = []
    node, side, color = target, 1, wanted
    while (node, color) in at[side]:
        other = at[side][node, color]
        path.append((other, node) if side else (node, other))
        node, side, color = other, 1 - side, free if color == wanted else wanted
    colors = [wanted if i % 2 == 0 else free for i in range(len(path))]
    for (s, t), color in zip(path, colors, strict=True):
        del at[0][s, color], at[1][t, color]
    for (s, t), color in zip(path, colors, strict=True):
        changed = free if color == wanted else wanted
        at[0][s, changed], at[1][t, changed] = t, s
