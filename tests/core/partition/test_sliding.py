"""Windows: what of a convolution or a running sum is work."""

import pytest

from flint.passes.work.sliding import Sliding, used_taps


def test_thin_padding_counts() -> None:
    same = Sliding(size=3, inputs=8, outputs=8, low=1, high=1)
    assert used_taps([same]) == (24, 24)


def test_holes_of_a_dilated_input_do_not_count() -> None:
    # The gradient of a stride-2 convolution with 3 taps: every product of the forward pass once.
    forward = Sliding(size=3, inputs=9, outputs=4, stride=2)
    backward = Sliding(size=3, inputs=4, outputs=9, low=2, high=2, base_dilation=2)
    assert used_taps([forward]) == (12, 12)
    assert used_taps([backward]) == (12, 27)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("low", [-1, 0, 3, 9])
@pytest.mark.parametrize("high", [0, 2, 7])
@pytest.mark.parametrize(("base", "wide"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_elements_that_meet_are_counted_one_by_one(
    stride: int, low: int, high: int, base: int, wide: int
) -> None:
    inputs, size = 8, 3
    outputs = (base * (inputs - 1) + low + high - wide * (size - 1)) // stride + 1
    real = {low + base * element for element in range(inputs)}
    meet = sum(
        stride * position + wide * element in real
        for position in range(outputs)
        for element in range(size)
    )
    thin = base == 1 and low + high < inputs
    one = Sliding(size, inputs, outputs, stride, low, high, base, wide)
    assert used_taps([one]) == (size * outputs if thin else meet, size * outputs)
    both = used_taps([one, Sliding(size=2, inputs=5, outputs=4)])
    assert both == tuple(8 * taps for taps in used_taps([one]))


def test_dimensions_of_any_length_are_counted() -> None:
    """A batch of 8,192 products as TPU programs write it meets one element in each position."""
    batch = Sliding(8192, inputs=8192, outputs=8192, stride=8191, base_dilation=8192)
    assert used_taps([batch]) == (8192, 8192 * 8192)
    wide = Sliding(size=2, inputs=3, outputs=(1 << 23) + 1, low=1 << 23)
    assert used_taps([wide])[0] == 3, "the last two positions see the first two elements"
