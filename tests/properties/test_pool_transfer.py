"""What goes between two pools: every shard gets all of itself, once, from who should send it."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flint.ir.mesh import AxisRef, Mesh
from flint.passes.pools.transfer import CacheLayout, Exchange, Pools, color_edges, messages
from flint.passes.tensors import Sharding
from tests.random_programs import QUICK

#: (sending rank, receiving rank, elements) with how often it is sent.
Sent = Counter[tuple[int, int, int]]


@st.composite
def pool_meshes(draw: st.DrawFn) -> Mesh:
    """A mesh with the axis "pool" somewhere, and one to three other axes."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    named = [(name, size) for name, size in zip("abc", sizes, strict=False)]
    named.insert(draw(st.integers(0, len(named))), ("pool", draw(st.integers(2, 5))))
    return Mesh.parse(dict(named))


@st.composite
def shardings(draw: st.DrawFn, mesh: Mesh, rank: int) -> Sharding:
    """Some of the other axes, whole, in any order, on `rank` dimensions."""
    names = draw(st.permutations([n for n in mesh.names if n != "pool"]))
    where = [draw(st.integers(-1, rank - 1)) for _ in names]
    return tuple(
        tuple(AxisRef(n) for n, at in zip(names, where, strict=True) if at == d)
        for d in range(rank)
    )


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[Exchange, Pools]:
    """Two shardings of one tensor, of which the receiver may have more along dimension 0."""
    mesh = draw(pool_meshes())
    rank = draw(st.integers(1, 3))
    ends = draw(shardings(mesh, rank)), draw(shardings(mesh, rank))
    divisors = [math.lcm(*(mesh.group_size(end[d]) for end in ends)) for d in range(rank)]
    shape = tuple(n * draw(st.integers(1, 2)) for n in divisors)
    longer = (shape[0] + divisors[0] * draw(st.integers(0, 2)), *shape[1:])
    positions = draw(st.permutations(range(mesh.axis_size("pool"))))
    cut = draw(st.integers(1, len(positions) - 1))
    pools = Pools("pool", tuple(sorted(positions[:cut])), tuple(sorted(positions[cut:])))
    sender, receiver = CacheLayout(shape, ends[0]), CacheLayout(longer, ends[1])
    return Exchange(mesh, sender, receiver, ("result", "argument")), pools


def shard(layout: CacheLayout, mesh: Mesh, place: dict[str, int]) -> list[range]:
    """The indices of each dimension that the device at `place` holds."""
    found = []
    for size, axes in zip(layout.shape, layout.sharding, strict=True):
        number = 0
        for axis in axes:
            number = number * mesh.axis_size(axis) + place[axis.name]
        width = size // mesh.group_size(axes)
        found.append(range(number * width, (number + 1) * width))
    return found


def expected(exchange: Exchange, pools: Pools) -> Sent:
    """By comparing every receiver with every sender that is its counterpart."""
    mesh, found = exchange.mesh, Counter()
    used = {axis.name for axes in exchange.sender.sharding for axis in axes}
    common = math.gcd(len(pools.senders), len(pools.receivers))
    served = {
        (s, r)
        for (i, s), (j, r) in product(enumerate(pools.senders), enumerate(pools.receivers))
        if i % common == j % common
    }
    places = [mesh.coordinates(rank) for rank in range(mesh.size)]
    for (source, here), (target, there) in product(enumerate(places), enumerate(places)):
        if (here["pool"], there["pool"]) not in served:
            continue
        if any(here[n] != there[n] for n in mesh.names if n != "pool" and n not in used):
            continue
        has = shard(exchange.sender, mesh, here)
        wants = shard(exchange.receiver, mesh, there)
        number = math.prod(len(set(a) & set(b)) for a, b in zip(has, wants, strict=True))
        if number:
            found[source, target, number] += 1
    return found


def sent(exchange: Exchange, pools: Pools) -> Sent:
    """What the messages say, rank by rank; no rank has two partners in one of them."""
    found: Sent = Counter()
    for message in messages(exchange, pools):
        targets = message.route.targets(exchange.mesh)
        sources = message.route.sources(exchange.mesh)
        senders = np.flatnonzero(targets >= 0)
        assert (sources[targets[senders]] == senders).all()
        assert (sources >= 0).sum() == len(senders)
        for rank in senders.tolist():
            found[rank, int(targets[rank]), message.num_elements] += 1
    return found


@QUICK
@given(exchanges())
def test_messages_are_those_that_brute_force_finds(case: tuple[Exchange, Pools]) -> None:
    exchange, pools = case
    assert sent(exchange, pools) == expected(exchange, pools)


@QUICK
@given(exchanges())
def test_each_receiver_gets_its_whole_shard_from_each_position_that_serves_it(
    case: tuple[Exchange, Pools],
) -> None:
    exchange, pools = case
    mesh, length = exchange.mesh, exchange.sender.shape[0]
    received: Counter[int] = Counter()
    for (_, target, number), times in sent(exchange, pools).items():
        received[target] += number * times
    for rank in range(mesh.size):
        place = mesh.coordinates(rank)
        first, *rest = shard(exchange.receiver, mesh, place)
        filled = len(range(first.start, min(first.stop, length)))
        size = filled * math.prod(map(len, rest))
        times = pools.fan_in if place["pool"] in pools.receivers else 0
        assert received[rank] == size * times


@QUICK
@given(exchanges())
def test_pieces_tile_each_shard(case: tuple[Exchange, Pools]) -> None:
    exchange, _ = case
    moving = [d for d, moves in enumerate(exchange.moving) if moves]
    shape = [exchange.sender.shape[d] for d in moving]
    covered: dict[int, np.ndarray] = {}
    for piece in exchange.pieces():
        seen = covered.setdefault(piece.target, np.zeros(shape, dtype=np.int64))
        box = tuple(slice(piece.box[d][0], sum(piece.box[d])) for d in moving)
        seen[box] += 1
    axes, mesh = exchange.axes, exchange.mesh
    for target, at in enumerate(product(*(range(mesh.axis_size(a)) for a in axes))):
        place = dict(zip((a.name for a in axes), at, strict=True))
        whole = shard(exchange.receiver, mesh, dict.fromkeys(mesh.names, 0) | place)
        wanted = np.zeros([exchange.receiver.shape[d] for d in moving], dtype=np.int64)
        wanted[tuple(slice(whole[d].start, whole[d].stop) for d in moving)] = 1
        wanted = wanted[tuple(slice(size) for size in shape)]
        found = covered.get(target, np.zeros(shape, dtype=np.int64))
        assert np.array_equal(found, wanted)


@QUICK
@given(exchanges())
def test_there_are_no_more_rows_than_messages_of_the_busiest_device(
    case: tuple[Exchange, Pools],
) -> None:
    exchange, pools = case
    ends: Counter[tuple[str, int, tuple[int, ...]]] = Counter()
    rows: Counter[tuple[int, ...]] = Counter()
    for piece in exchange.pieces():
        ends["source", piece.source, piece.shape] += pools.fan_out
        ends["target", piece.target, piece.shape] += pools.fan_in
    for message in messages(exchange, pools):
        rows[message.shape] += 1
    turns = max(pools.fan_in, pools.fan_out)
    for shape, count in rows.items():
        per_pair = {
            side: max(n for (s, _, of), n in ends.items() if (s, of) == (side, shape)) // fan
            for side, fan in (("source", pools.fan_out), ("target", pools.fan_in))
        }
        assert count == turns * max(per_pair.values())


@QUICK
@given(exchanges(), st.data())
def test_parts_of_an_axis_are_axes(case: tuple[Exchange, Pools], data: st.DataObject) -> None:
    """Two neighbouring axes joined to one, whose parts then shard: the same messages."""
    exchange, pools = case
    mesh = exchange.mesh
    at = data.draw(st.integers(0, len(mesh.names) - 2))
    first, second = mesh.names[at : at + 2]
    if "pool" in (first, second):
        return
    sizes = mesh.shape
    joined = Mesh(
        (*mesh.names[:at], "joined", *mesh.names[at + 2 :]),
        (*mesh.sizes[:at], sizes[first] * sizes[second], *mesh.sizes[at + 2 :]),
    )
    parts = {
        first: AxisRef("joined", 1, sizes[first]),
        second: AxisRef("joined", sizes[first], sizes[second]),
    }

    def renamed(layout: CacheLayout) -> CacheLayout:
        new = tuple(tuple(parts.get(a.name, a) for a in axes) for axes in layout.sharding)
        return CacheLayout(layout.shape, new)

    ends = renamed(exchange.sender), renamed(exchange.receiver)
    assert sent(Exchange(joined, *ends, exchange.names), pools) == sent(exchange, pools)


@QUICK
@given(exchanges())
def test_pools_that_shard_alike_need_no_other_axis(case: tuple[Exchange, Pools]) -> None:
    exchange, pools = case
    alike = Exchange(exchange.mesh, exchange.sender, exchange.sender, exchange.names)
    assert {m.route.axes for m in messages(alike, pools)} == {(AxisRef("pool"),)}


@QUICK
@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=40))
def test_colors_are_as_few_as_the_busiest_node_has_edges(edges: set[tuple[int, int]]) -> None:
    rounds = color_edges(edges)
    assert sorted(edge for found in rounds for edge in found) == sorted(edges)
    for found in rounds:
        sources, targets = zip(*found, strict=True)
        assert len(set(sources)) == len(set(targets)) == len(found)
    degrees = [Counter(edge[side] for edge in edges) for side in (0, 1)]
    assert len(rounds) == max((max(d.values(), default=0) for d in degrees), default=0)
