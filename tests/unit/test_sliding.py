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


def test_a_dimension_with_too_many_pairs_is_taken_whole() -> None:
    """2^24 pairs are looked at one by one; 8,388,609 x 2 would take long, and count as taps."""
    wide = Sliding(size=2, inputs=3, outputs=(1 << 23) + 1, low=1 << 23)
    assert used_taps([wide]) == ((1 << 24) + 2, (1 << 24) + 2)
    near = Sliding(size=2, inputs=3, outputs=1 << 10, low=1 << 10)
    assert used_taps([near])[0] < 1 << 11


def test_running_windows() -> None:
    assert Sliding(size=8, inputs=8, outputs=8, low=7).is_running
    assert Sliding(size=8, inputs=8, outputs=8, high=7).is_running
    assert not Sliding(size=8, inputs=8, outputs=1).is_running
    assert not Sliding(size=3, inputs=8, outputs=8, low=1, high=1).is_running
    assert not Sliding(size=8, inputs=8, outputs=8, low=3, high=4).is_running
    assert not Sliding(size=8, inputs=8, outputs=8, low=7, high=1).is_running
    assert not Sliding(size=8, inputs=4, outputs=8, low=7).is_running
    assert not Sliding(size=8, inputs=8, outputs=4, stride=2, low=7).is_running
    assert not Sliding(size=8, inputs=8, outputs=8, low=7, base_dilation=2).is_running
    assert not Sliding(size=8, inputs=8, outputs=8, low=7, window_dilation=2).is_running


def test_flops_of_captured_programs() -> None:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    from jax import lax

    import flint

    def array(*shape: int) -> object:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def conv(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=numbers).sum()

    gradients = flint.trace(jax.grad(conv, (0, 1)), {"x": 1}, array(2, 9, 9, 4), array(3, 3, 4, 8))
    one_way = 2 * (2 * 4 * 4 * 8) * 3 * 3 * 4
    assert gradients.summary().classes[0].matmul_flops == 2 * one_way

    running = flint.trace(lambda x: jnp.cumsum(x, 1), {"x": 1}, array(8, 1024))
    assert running.summary().classes[0].flops == 8 * 1024
