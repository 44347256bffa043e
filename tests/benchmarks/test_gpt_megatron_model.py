"""The measured GPT computes what a GPT computes: its hand-written gradients beside JAX's."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from benchmarks.models import gpt_megatron as model
from tests.long import long_but

C = model.Gpt(hidden=32, layers=1, heads=4, seq=12, dropout=False)


class Here:
    """A layout of one device."""

    def constrain(self, x: Any, *spec: Any) -> Any:
        return x

    residual = gathered = constrain


def parameters() -> dict[str, Any]:
    """Numbers of the size that trained weights have."""
    h, heads = C.hidden, (C.heads, C.head_dim)
    shapes = {
        "norm1": {"scale": (h,), "bias": (h,)}, "norm2": {"scale": (h,), "bias": (h,)},
        "qkv": (h, 3, *heads), "qkv_bias": (3, *heads), "out": (*heads, h), "out_bias": (h,),
        "up": (h, 4 * h), "up_bias": (4 * h,), "down": (4 * h, h), "down_bias": (h,),
    }  # fmt: skip
    draw = np.random.default_rng(0)
    return jax.tree.map(  # type: ignore[no-any-return]
        lambda s: 0.2 * draw.normal(size=s).astype(np.float32),
        shapes,
        is_leaf=lambda s: isinstance(s, tuple),
    )


def plain_norm(x: Any, p: Any) -> Any:
    deviation = x - x.mean(-1, keepdims=True)
    variance = jnp.square(deviation).mean(-1, keepdims=True)
    return deviation / jnp.sqrt(variance + model.EPSILON) * p["scale"] + p["bias"]


def plain_layer(p: Any, x: Any) -> Any:
    """A layer as textbooks have it."""
    y = plain_norm(x, p["norm1"])
    q, k, v = jnp.einsum("bsd,dchk->cbshk", y, p["qkv"]) + p["qkv_bias"][:, None, None]
    scores = jnp.einsum("bshk,bthk->bhst", q, k) / C.head_dim**0.5
    scores = jnp.where(jnp.tril(jnp.ones((C.seq, C.seq), bool)), scores, -jnp.inf)
    values = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores), v)
    x = x + jnp.einsum("bshk,hkd->bsd", values, p["out"]) + p["out_bias"]
    up = jax.nn.gelu(plain_norm(x, p["norm2"]) @ p["up"] + p["up_bias"])
    return x + up @ p["down"] + p["down_bias"]


@functools.cache
def measured(recompute: str) -> list[Any]:
    """A loss and its gradients: of the model's layer, or with "" of the plain one."""
    draw = np.random.default_rng(1)
    x, weight = draw.normal(size=(2, 2, C.seq, C.hidden)).astype(np.float32)
    layer = plain_layer
    if recompute:
        c = dataclasses.replace(C, recompute=recompute)
        block = functools.partial(model.layer, c=c, at=Here())
        layer = jax.checkpoint(block, policy=model.kept_by(c))
    loss = jax.value_and_grad(lambda p, x: jnp.sum(weight * layer(p, x)), (0, 1))
    return [np.asarray(a) for a in jax.tree.leaves(jax.jit(loss)(parameters(), x))]


@pytest.mark.parametrize("recompute", long_but(["selective"], model.RECOMPUTE))
def test_a_layer_and_its_gradients(recompute: str) -> None:
    for one, other in zip(measured(recompute), measured(""), strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max() < 2e-5 * (50 + np.abs(other).max())


def test_dropout_drops_a_tenth_and_keeps_the_mean() -> None:
    x = np.random.default_rng(3).uniform(1, 2, (64, 512)).astype(jnp.bfloat16)
    c = dataclasses.replace(C, dropout=True)
    found = np.asarray(jax.jit(lambda x: model.dropout(x, c, lambda mask: mask))(x), np.float32)
    kept = found != 0
    assert abs(1 - kept.mean() - 0.1) < 0.02
    np.testing.assert_allclose(found[kept], x[kept].astype(np.float32) / model.KEEP, rtol=1e-2)
