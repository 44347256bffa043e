"""Random numbers and dropout.

Every draw is one `stablehlo.rng`. Its numbers differ from PyTorch's, as they do between devices.
`rng_bit_generator` is not used: it is a function of its key, so that two equal calls (layers that
repeat) would count as one. Devices draw their parts alone, as PyTorch's do: XLA's partitioner would
let one device draw what several hold, and send it to them, so every draw says that it is local.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import register_all, torch_op
from flint.frontends.torch_ops.types import Operand, broadcast, cast, jax_dtype

if TYPE_CHECKING:
    from jax import Array

Drawn: TypeAlias = "Callable[..., Array]"


def _drawn(low: Any, high: Any, shape: Sequence[int]) -> Array:
    from jax.experimental.xla_metadata import set_xla_metadata

    from flint.passes.mlir import LOCAL_DRAW

    with set_xla_metadata(**{LOCAL_DRAW: "yes"}):
        return lax.rng_uniform(low, high, tuple(shape))


def _uniform(shape: Sequence[int], dtype: torch.dtype | None = None) -> Array:
    """Numbers from 0 to 1, of PyTorch's default type unless another is wanted."""
    wanted = jax_dtype(dtype or torch.get_default_dtype())
    drawn = jnp.float64 if wanted == jnp.float64 else jnp.float32
    return _drawn(drawn(0), drawn(1), shape).astype(wanted)


def _normal(shape: Sequence[int], dtype: torch.dtype | None = None) -> Array:
    """Numbers of the standard normal distribution, by the inverse of its integral."""
    wanted = jax_dtype(dtype or torch.get_default_dtype())
    drawn = jnp.float64 if wanted == jnp.float64 else jnp.float32
    below = _drawn(drawn(-1), drawn(1), shape)
    return (lax.erf_inv(below) * drawn(math.sqrt(2))).astype(wanted)


def _integers(low: int, high: int, shape: Sequence[int], dtype: torch.dtype | None) -> Array:
    """Whole numbers from `low` to `high`, without the latter."""
    return cast(_drawn(jnp.int64(low), jnp.int64(high), shape), dtype or torch.int64)


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
    return jnp.where(kept, grad * jnp.asarray(scale, grad.dtype), jnp.asarray(0, grad.dtype))


def _type(x: Array, dtype: torch.dtype | None) -> np.dtype[Any]:
    return x.dtype if dtype is None else jax_dtype(dtype)


def _like(draw: Drawn) -> Drawn:
    """Numbers in the shape of a tensor, and in its type unless another is wanted."""
    return lambda x, *bounds, dtype=None, **_: draw(x.shape, *bounds).astype(_type(x, dtype))


def _randperm(n: int, *, dtype: torch.dtype | None = None, **_: object) -> Array:
    numbers = lax.iota(jax_dtype(dtype or torch.int64), n)
    return lax.sort((_uniform((n,), torch.float32), numbers), num_keys=1)[1]


def _normal_tensors(mean: Operand, std: Operand = 1.0, **_: object) -> Array:
    arrays: list[Any] = [a for a in (mean, std) if hasattr(a, "dtype")]
    shape = jnp.broadcast_shapes(*(a.shape for a in arrays))
    return _normal(shape).astype(arrays[0].dtype) * std + mean


def _bernoulli(x: Array, p: Array, **_: object) -> Array:
    return (_uniform(x.shape).astype(p.dtype) < broadcast(p, x.shape)).astype(x.dtype)


#: Integers are below `high`. A `generator`, of which there is no trace, is among `_`.
_DRAWS: dict[str, Drawn] = {
    "rand": lambda size, *, dtype=None, **_: _uniform(size, dtype),
    "randn": lambda size, *, dtype=None, **_: _normal(size, dtype),
    "rand_like": _like(_uniform),
    "randn_like": _like(_normal),
    "randint": lambda high, size, *, dtype=None, **_: _integers(0, high, size, dtype),
    "randint_like": _like(lambda shape, high: _integers(0, high, shape, None)),
    "randperm": _randperm,
}
for _name, _draw in _DRAWS.items():
    register_all({f"{_name} {_name}.generator": _draw})
register_all(
    {
        "randint.low randint.low_generator": lambda low, high, size, *, dtype=None, **_: _integers(
            low, high, size, dtype
        ),
        "randint_like.low_dtype randint_like.low_generator_dtype": _like(
            lambda shape, low, high: _integers(low, high, shape, None)
        ),
        "normal.float_float": lambda mean, std, size, *, dtype=None, **_: (
            _normal(size, dtype) * std + mean
        ),
        "normal.Tensor_float normal.Tensor_Tensor normal.float_Tensor": _normal_tensors,
        "normal_functional": lambda x, mean=0.0, std=1.0, **_: (
            _normal(x.shape).astype(x.dtype) * std + mean
        ),
        "uniform": lambda x, low=0.0, high=1.0, **_: (
            _uniform(x.shape).astype(x.dtype) * (high - low) + low
        ),
        "exponential": lambda x, rate=1.0, **_: (-jnp.log1p(-_uniform(x.shape)) / rate).astype(
            x.dtype
        ),
        "bernoulli.p": lambda x, p=0.5, **_: (_uniform(x.shape, torch.float32) < p).astype(x.dtype),
        "bernoulli.Tensor": _bernoulli,
    }
)


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
