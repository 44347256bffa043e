"""Exchanges between the shards of one dimension."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flint
from flint.ir.program import Kind
from flint.passes.extract.halo import Hop, hops, messages, rotation


def ranges(count: int, length: int, stride: int, before: int, taps: int):
    """What `count` shards of `length` results read through a window of `taps`."""
    first = np.arange(count, dtype=np.int64) * length
    return first * stride - before, (first + length - 1) * stride - before + taps


def test_a_centred_window_takes_one_from_either_side() -> None:
    low, high = ranges(4, 8, 1, 1, 3)
    assert hops(low, high, 8, 32) == [Hop(1, 1), Hop(1, -1)]


def test_a_window_of_two_and_a_half_shards_asks_further_neighbours() -> None:
    low, high = ranges(8, 8, 1, 20, 21)
    assert hops(low, high, 8, 64) == [Hop(4, 3), Hop(8, 2), Hop(8, 1)]


def test_a_window_over_everything_is_gathered() -> None:
    low, high = ranges(4, 8, 1, 31, 32)
    assert hops(low, high, 8, 32) is None


def test_shards_that_match_need_nothing() -> None:
    low, high = ranges(4, 4, 2, 0, 2)
    assert hops(low, high, 8, 32) == []


def test_the_first_half_moves_only_where_it_is_needed() -> None:
    low, high = ranges(4, 4, 1, 0, 1)
    assert hops(low, high, 8, 32) == [Hop(8, pairs=((0, 1), (1, 2))), Hop(4, pairs=((1, 3),))]


def test_one_element_goes_nowhere_else() -> None:
    low, high = ranges(8, 1, 1, 0, 1)  # a slice [0:1] of 64, sharded over 8: shard 0 has it
    assert hops(low, high, 8, 64, readers=1) == []


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (0, []),
        (1, [Hop(1, 1, wrap=True)]),
        (8, [Hop(8, 1, wrap=True)]),
        (-10, [Hop(6, 3, wrap=True), Hop(2, 2, wrap=True)]),
        (32, []),
    ],
)
def test_rotation(amount: int, expected: list[Hop]) -> None:
    assert rotation(amount, 8, 4) == expected


@given(
    st.integers(2, 8), st.integers(1, 6), st.integers(1, 3), st.integers(0, 9), st.integers(1, 12)
)
def test_every_shard_receives_what_it_lacks(
    count: int, length: int, stride: int, before: int, taps: int
) -> None:
    low, high = ranges(count, length, stride, before, taps)
    shard, size = length * stride, length * stride * count
    found = hops(low, high, shard, size)
    received = np.zeros(count, dtype=np.int64)
    for hop in found or []:
        assert 0 < hop.extent <= shard
        for source in range(count):
            target = source + hop.offset
            if not hop.pairs and 0 <= target < count:
                received[target] += hop.extent
        for _, target in hop.pairs:
            received[target] += hop.extent
    own = np.arange(count) * shard
    low, high = np.maximum(low, 0), np.minimum(high, size)
    left = np.clip(np.minimum(high, own) - low, 0, None)
    right = np.clip(high - np.maximum(low, own + shard), 0, None)
    assert found is None or (received >= left + right).all()


@given(st.integers(2, 8), st.integers(1, 5), st.data())
def test_messages_carry_exactly_what_is_needed(count: int, shard: int, data: st.DataObject) -> None:
    size = count * shard
    bounds = st.tuples(st.integers(0, size), st.integers(0, size)).map(sorted)
    needs = [data.draw(bounds) for _ in range(count)]
    low, high = (np.array([n[i] for n in needs], dtype=np.int64) for i in (0, 1))
    pairs = []
    for hop in messages(low, high, shard, size):
        sources, targets = zip(*hop.pairs, strict=True)
        assert len(set(sources)) == len(sources)
        assert len(set(targets)) == len(targets)
        pairs += hop.pairs
    wanted = {
        (element // shard, target)
        for target, (begin, end) in enumerate(needs)
        for element in range(begin, end)
    }
    assert sorted(pairs) == sorted(p for p in wanted if p[0] != p[1])


def test_nothing_of_an_empty_array_is_exchanged() -> None:
    jax = pytest.importorskip("jax", reason="the program is JAX's")
    spec = jax.sharding.PartitionSpec("data")

    def grow(x):
        return jax.lax.pad(x[8:], np.float32(0), [(2, 0, 1)]) + 1.0

    x = jax.ShapeDtypeStruct((8,), np.float32)
    found = flint.trace(grow, {"data": 2}, x, in_shardings=spec, out_shardings=spec)
    assert not (found.program.kind == Kind.COLLECTIVE).any()
