"""Windows of reductions: what they cost, against sets of elements."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.passes.work import sliding
from flint.passes.work.sliding import Sliding, reduced_elements


@st.composite
def windows(draw: st.DrawFn) -> Sliding:
    size, inputs = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    stride, base, wide = (draw(st.integers(1, 4)) for _ in range(3))
    low, high = (draw(st.integers(-2, 12)) for _ in range(2))
    span = (inputs - 1) * base + low + high - (size - 1) * wide
    return Sliding(size, inputs, max(span // stride + 1, 0), stride, low, high, base, wide)


def by_sets(d: Sliding) -> int:
    """Each different window once, from the largest window inside it."""
    windows = {
        frozenset(
            element
            for tap in range(d.size)
            for element in range(d.inputs)
            if element * d.base_dilation == position * d.stride - d.low + tap * d.window_dilation
        )
        for position in range(d.outputs)
    }
    return sum(len(w) - max((len(v) for v in windows if v < w), default=0) for w in windows)


@given(windows(), st.sampled_from([1, 2, 3, 1 << 20]))
@settings(max_examples=300)
def test_windows_cost_what_no_smaller_window_knows(d: Sliding, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sliding, "_CHUNK", chunk)
        assert reduced_elements([d]) == (by_sets(d), d.outputs)


@given(windows())
@settings(max_examples=200)
def test_windows_without_dilation_cost_what_is_counted_one_by_one(d: Sliding) -> None:
    span = d.inputs - 1 + d.low + d.high - (d.size - 1)
    plain = replace(d, base_dilation=1, window_dilation=1, outputs=max(span // d.stride + 1, 0))
    assert reduced_elements([plain]) == (by_sets(plain), plain.outputs)


@pytest.mark.parametrize("length", [1, 2, 255, 256, 1 << 20, 1 << 40])
def test_runs_cost_one_operation_a_position(length: int) -> None:
    prefixes = Sliding(length, length, length, low=length - 1)
    suffixes = Sliding(length, length, length, high=length - 1)
    whole = Sliding(2 * length - 1, length, length, low=length - 1, high=length - 1)
    halves = Sliding(length, length, length, low=length // 2, high=(length - 1) // 2)
    for d in (prefixes, suffixes, whole):
        assert reduced_elements([d]) == (length, length)
    assert reduced_elements([halves])[0] <= 2 * length
    row_of_four = Sliding(size=4, inputs=4, outputs=1)
    assert reduced_elements([whole, row_of_four]) == (4 * length, length)
    both = reduced_elements([whole, replace(whole)])
    assert both == (length**2, length**2)
