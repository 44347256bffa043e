"""Convolutions of one to three spatial dimensions, plain, grouped, dilated and transposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flint.frontends.torch_ops.lazy_jax import jax, jnp, lax
from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.types import broadcast

if TYPE_CHECKING:
    from jax import Array


class _How(NamedTuple):
    """What the operators end with; a list of one number counts for all dimensions."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


@torch_op("aten::convolution")
def convolution(x: Array, weight: Array, bias: Array | None, *how: Any) -> Array:
    """Features are dimension 1 of the input; the weight is (out, in, window...)."""
    found = _How(*how)
    out = (_transposed if found.transposed else _plain)(x, weight, found)
    if bias is None:
        return out
    return out + broadcast(bias.reshape(-1, *(1,) * (out.ndim - 2)), out.shape)


@torch_op("aten::convolution_backward")
def convolution_backward(
    grad: Array, x: Array, weight: Array, bias_sizes: Sequence[int] | None, *options: Any
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias; None where the mask does not want one."""
    *how, (wanted_x, wanted_weight, wanted_bias) = options

    def of_input(x: Array) -> Array:
        return convolution(x, weight, None, *how)

    def of_weight(weight: Array) -> Array:
        return convolution(x, weight, None, *how)

    dx = jax.linear_transpose(of_input, x)(grad)[0] if wanted_x else None
    dweight = jax.linear_transpose(of_weight, weight)(grad)[0] if wanted_weight else None
    others = (0, *range(2, grad.ndim))
    dbias = jnp.sum(grad, others, dtype=grad.dtype) if wanted_bias else None
    return dx, dweight, dbias


def _plain(x: Array, weight: Array, how: _How) -> Array:
    return lax.conv_general_dilated(
        x,
        weight,
        _each(how.stride, x),
        [(p, p) for p in _each(how.padding, x)],
        rhs_dilation=_each(how.dilation, x),
        feature_group_count=how.groups,
    )


def _transposed(x: Array, weight: Array, how: _How) -> Array:
    """The gradient of a convolution, as one: windows slide over an input with holes."""
    groups = how.groups
    reach = [d * (k - 1) for d, k in zip(_each(how.dilation, x), weight.shape[2:], strict=True)]
    sides = zip(reach, _each(how.padding, x), _each(how.output_padding, x), strict=True)
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
        lhs_dilation=_each(how.stride, x),
        rhs_dilation=_each(how.dilation, x),
        dimension_numbers=(f"NC{spatial}", f"IO{spatial}", f"NC{spatial}"),
        feature_group_count=groups,
    )


def _each(values: Sequence[int], x: Array) -> tuple[int, ...]:
    return tuple(values) if len(values) == x.ndim - 2 else tuple(values) * (x.ndim - 2)
