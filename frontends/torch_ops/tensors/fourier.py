"""Discrete Fourier transforms over several dimensions.

PyTorch passes the scale as a number: 0 for none, 1 for the root of the number of elements, 2 for
that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from flint.frontends.torch_ops.lazy_jax import jnp
from flint.frontends.torch_ops.registry import torch_op

if TYPE_CHECKING:
    from jax import Array

#: NumPy's names of PyTorch's scales, for transforms and for their inverses.
_FORWARD: Final = ("backward", "ortho", "forward")
_INVERSE: Final = ("forward", "ortho", "backward")


@torch_op("aten::_fft_c2c")
def fft_c2c(x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    """Complex to complex; the inverse if not `forward`."""
    if forward:
        return jnp.fft.fftn(x, axes=dim, norm=_FORWARD[normalization])
    return jnp.fft.ifftn(x, axes=dim, norm=_INVERSE[normalization])


@torch_op("aten::_fft_r2c")
def fft_r2c(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    """Real to complex; `onesided` keeps the half of the last of `dim` that says all."""
    transform = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return transform(x, axes=dim, norm=_FORWARD[normalization])


@torch_op("aten::_fft_c2r")
def fft_c2r(x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    """One-sided complex to real; the last of `dim` gets `last_dim_size` elements."""
    sizes = [*(x.shape[d] for d in dim[:-1]), last_dim_size]
    return jnp.fft.irfftn(x, s=sizes, axes=dim, norm=_INVERSE[normalization])
