"""Convolutions of one to three spatial dimensions, plain, grouped, dilated and transposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flint.frontends.torch_ops.lazy_jax import jax, jnp, lax
from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.types import broadcast

if TYPE_CHECKING:
    from jax import Array


@torch_op("aten::convolution")
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """Features are dimension 1 of the input; the weight is (out, in, window...)."""
    if transposed:
        out = _transposed(x, weight, stride, padding, dilation, output_padding, groups)
    else:
        out = _plain(x, weight, stride, padding, dilation, groups)
    if bias is None:
        return out
    return out + broadcast(bias.reshape(-1, *(1,) * (out.ndim - 2)), out.shape)


@torch_op("aten::convolution_backward")
def convolution_backward(
    grad: Array,
    x: Array,
    weight: Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias; None where the mask does not want one."""
    options = (stride, padding, dilation, transposed, output_padding, groups)

    def of_input(x: Array) -> Array:
        return convolution(x, weight, None, *options)

    def of_weight(weight: Array) -> Array:
        return convolution(x, weight, None, *options)

    wanted_x, wanted_weight, wanted_bias = output_mask
    dx = jax.linear_transpose(of_input, x)(grad)[0] if wanted_x else None
    dweight = jax.linear_transpose(of_weight, weight)(grad)[0] if wanted_weight else None
    others = (0, *range(2, grad.ndim))
    dbias = jnp.sum(grad, others, dtype=grad.dtype) if wanted_bias else None
    return dx, dweight, dbias


def _plain(
    x: Array,
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    return lax.conv_general_dilated(
        x,
        weight,
        _each(stride, x),
        [(p, p) for p in _each(padding, x)],
        rhs_dilation=_each(dilation, x),
        feature_group_count=groups,
    )


def _transposed(
    x: Array,
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """The gradient of a convolution, as one: windows slide over an input with holes."""
    reach = [d * (k - 1) for d, k in zip(_each(dilation, x), weight.shape[2:], strict=True)]
    sides = zip(reach, _each(padding, x), _each(output_padding, x), strict=True)
    inputs, outputs, *window = weight.shape
    if groups > 1:  # (groups x in, out, ...) to (in, groups x out, ...)
        parts = weight.reshape(groups, inputs // groups, outputs, *window)
        weight = parts.swapaxes(0, 1).reshape(inputs // groups, groups * outputs, *window)
    spatial = "DHW"[-len(window) :]
    return lax.conv_general_dilated(
        x,
        lax.rev(weight, tuple(range(2, weight.ndim))),
        (1,) * len(window),
        [(r - p, r - p + more) for r, p, more in sides],
        lhs_dilation=_each(stride, x),
        rhs_dilation=_each(dilation, x),
        dimension_numbers=(f"NC{spatial}", f"IO{spatial}", f"NC{spatial}"),
        feature_group_count=groups,
    )


def _each(values: Sequence[int], x: Array) -> tuple[int, ...]:
    """One number for each spatial dimension; a single one counts for all."""
    return tuple(values) if len(values) == x.ndim - 2 else tuple(values) * (x.ndim - 2)
