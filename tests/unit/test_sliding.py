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


def test_running_windows() -> None:
    assert Sliding(size=8, inputs=8, outputs=8, low=7).is_running
    assert Sliding(size=8, inputs=8, outputs=8, high=7).is_running
    assert not Sliding(size=8, inputs=8, outputs=1).is_running
    assert not Sliding(size=3, inputs=8, outputs=8, low=1, high=1).is_running


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
