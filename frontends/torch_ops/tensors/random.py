"""Random numbers and dropout.

Every draw is one `stablehlo.rng`. Its numbers differ from PyTorch's, as they do between devices.
`rng_bit_generator` is not used: it is a function of its key, so that two equal calls (layers that
repeat) would count as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.types import Operand, broadcast, cast, jax_dtype

if TYPE_CHECKING:
    from jax import Array


def _uniform(shape: Sequence[int], dtype: torch.dtype | None = None) -> Array:
    """Numbers from 0 to 1, of PyTorch's default type unless another is wanted."""
    wanted = jax_dtype(dtype or torch.get_default_dtype())
    drawn = jnp.float64 if wanted == jnp.float64 else jnp.float32
    return lax.rng_uniform(drawn(0), drawn(1), tuple(shape)).astype(wanted)


def _normal(shape: Sequence[int], dtype: torch.dtype | None = None) -> Array:
    """Numbers of the standard normal distribution, by the inverse of its integral."""
    wanted = jax_dtype(dtype or torch.get_default_dtype())
    drawn = jnp.float64 if wanted == jnp.float64 else jnp.float32
    below = lax.rng_uniform(drawn(-1), drawn(1), tuple(shape))
    return (lax.erf_inv(below) * drawn(math.sqrt(2))).astype(wanted)


def _integers(low: int, high: int, shape: Sequence[int], dtype: torch.dtype | None) -> Array:
    """Whole numbers from `low` to `high`, without the latter."""
    drawn = lax.rng_uniform(jnp.int64(low), jnp.int64(high), tuple(shape))
    return cast(drawn, dtype or torch.int64)


def _type(x: Array, dtype: torch.dtype | None) -> np.dtype[Any]:
    return x.dtype if dtype is None else jax_dtype(dtype)


# dropout --------------------------------------------------------------------------------------


@torch_op("aten::native_dropout")
def native_dropout(x: Array, p: float, train: bool | None) -> tuple[Any, Any]:
    """The input with elements dropped and the rest scaled up, and which were kept."""
    if train is False or p == 0:
        return x, jnp.ones(x.shape, bool)
    if p == 1:
        return jnp.zeros_like(x), jnp.zeros(x.shape, bool)
    kept = _uniform(x.shape, torch.float32) >= jnp.float32(p)
    return jnp.where(kept, x * jnp.asarray(1 / (1 - p), x.dtype), jnp.asarray(0, x.dtype)), kept


@torch_op("aten::native_dropout_backward")
def native_dropout_backward(grad: Array, kept: Array, scale: float) -> Array:
    """The scaled gradient of what was kept."""
    return jnp.where(kept, grad * jnp.asarray(scale, grad.dtype), jnp.asarray(0, grad.dtype))


# new tensors ----------------------------------------------------------------------------------


@torch_op("aten::rand", "aten::rand.generator")
def rand(size: Sequence[int], *, dtype: torch.dtype | None = None, **options: object) -> Array:
    """Numbers from 0 to 1."""
    return _uniform(size, dtype)


@torch_op("aten::randn", "aten::randn.generator")
def randn(size: Sequence[int], *, dtype: torch.dtype | None = None, **options: object) -> Array:
    """Numbers of the standard normal distribution."""
    return _normal(size, dtype)


@torch_op("aten::rand_like", "aten::rand_like.generator")
def rand_like(x: Array, *, dtype: torch.dtype | None = None, **options: object) -> Array:
    """Numbers from 0 to 1, in the shape of `x`."""
    return _uniform(x.shape).astype(_type(x, dtype))


@torch_op("aten::randn_like", "aten::randn_like.generator")
def randn_like(x: Array, *, dtype: torch.dtype | None = None, **options: object) -> Array:
    """Numbers of the standard normal distribution, in the shape of `x`."""
    return _normal(x.shape).astype(_type(x, dtype))


@torch_op("aten::randint", "aten::randint.generator")
def randint(
    high: int, size: Sequence[int], *, dtype: torch.dtype | None = None, **options: object
) -> Array:
    """Whole numbers from 0 to `high`, without the latter."""
    return _integers(0, high, size, dtype)


@torch_op("aten::randint.low", "aten::randint.low_generator")
def randint_low(
    low: int, high: int, size: Sequence[int], *, dtype: torch.dtype | None = None, **options: object
) -> Array:
    """Whole numbers from `low` to `high`, without the latter."""
    return _integers(low, high, size, dtype)


@torch_op("aten::randint_like", "aten::randint_like.generator")
def randint_like(
    x: Array, high: int, *, dtype: torch.dtype | None = None, **options: object
) -> Array:
    """Whole numbers from 0 to `high`, in the shape of `x`."""
    return _integers(0, high, x.shape, None).astype(_type(x, dtype))


@torch_op("aten::randint_like.low_dtype", "aten::randint_like.low_generator_dtype")
def randint_like_low(
    x: Array, low: int, high: int, *, dtype: torch.dtype | None = None, **options: object
) -> Array:
    """Whole numbers from `low` to `high`, in the shape of `x`."""
    return _integers(low, high, x.shape, None).astype(_type(x, dtype))


@torch_op("aten::randperm", "aten::randperm.generator")
def randperm(n: int, *, dtype: torch.dtype | None = None, **options: object) -> Array:
    """The numbers below `n` in some order."""
    numbers = lax.iota(jax_dtype(dtype or torch.int64), n)
    return lax.sort((_uniform((n,), torch.float32), numbers), num_keys=1)[1]


@torch_op("aten::normal.float_float")
def normal(
    mean: float,
    std: float,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    **options: object,
) -> Array:
    """Numbers of a normal distribution."""
    return _normal(size, dtype) * std + mean


# instead of a tensor's values -----------------------------------------------------------------


@torch_op("aten::normal.Tensor_float", "aten::normal.Tensor_Tensor", "aten::normal.float_Tensor")
def normal_tensors(mean: Operand, std: Operand = 1.0, *, generator: object = None) -> Array:
    """Numbers of normal distributions, one for each mean and deviation."""
    arrays: list[Any] = [a for a in (mean, std) if hasattr(a, "dtype")]
    shape = jnp.broadcast_shapes(*(a.shape for a in arrays))
    return _normal(shape).astype(arrays[0].dtype) * std + mean


@torch_op("aten::normal_functional")
def normal_functional(
    x: Array, mean: float = 0.0, std: float = 1.0, *, generator: object = None
) -> Array:
    """Numbers of a normal distribution, in the shape and type of `x`."""
    return _normal(x.shape).astype(x.dtype) * std + mean


@torch_op("aten::uniform")
def uniform(x: Array, low: float = 0.0, high: float = 1.0, *, generator: object = None) -> Array:
    """Numbers from `low` to `high`, in the shape and type of `x`."""
    return _uniform(x.shape).astype(x.dtype) * (high - low) + low


@torch_op("aten::exponential")
def exponential(x: Array, rate: float = 1.0, *, generator: object = None) -> Array:
    """Numbers of an exponential distribution, in the shape and type of `x`."""
    return (-jnp.log1p(-_uniform(x.shape)) / rate).astype(x.dtype)


@torch_op("aten::bernoulli.p")
def bernoulli_p(x: Array, p: float = 0.5, *, generator: object = None) -> Array:
    """1 with probability `p`, otherwise 0, in the shape and type of `x`."""
    return (_uniform(x.shape, torch.float32) < p).astype(x.dtype)


@torch_op("aten::bernoulli.Tensor")
def bernoulli_tensor(x: Array, p: Array, *, generator: object = None) -> Array:
    """1 with the probability that `p` holds, otherwise 0, in the shape and type of `x`."""
    return (_uniform(x.shape).astype(p.dtype) < broadcast(p, x.shape)).astype(x.dtype)


@torch_op("aten::multinomial")
def multinomial(
    x: Array, num_samples: int, replacement: bool = False, *, generator: object = None
) -> Array:
    """Indices along the last dimension, as likely as `x` says."""
    if replacement:
        upto = jnp.cumsum(x, -1)
        drawn = _uniform((*x.shape[:-1], num_samples)).astype(x.dtype) * upto[..., -1:]
        return (drawn[..., None] >= upto[..., None, :]).sum(-1, dtype=jnp.int64)
    # the largest of log(x) plus Gumbel noise are a draw without replacement
    order = jnp.log(x) - jnp.log(-jnp.log(_uniform(x.shape).astype(x.dtype)))
    return lax.top_k(order, num_samples)[1].astype(jnp.int64)
