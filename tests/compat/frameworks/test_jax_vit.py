"""A ViT as big_vision has it: patches, remat over scanned layers, MAP head, sigmoid loss, Adam."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
jax = pytest.importorskip("jax")
linen = pytest.importorskip("flax.linen")
optax = pytest.importorskip("optax")

import jax.numpy as jnp

import flint
from tests.compat.frameworks.jax_totals import (
    DATA,
    argument_bytes,
    collectives,
    matmul_flops,
    replicated,
    shaped,
)

BATCH, SIZE, PATCH, WIDTH, HIDDEN, HEADS, LAYERS, CLASSES = 64, 64, 16, 128, 512, 4, 3, 256
TOKENS = (SIZE // PATCH) ** 2
F32 = 4


class Mlp(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(WIDTH)(linen.gelu(linen.Dense(HIDDEN)(x)))


class Block(linen.Module):
    @linen.compact
    def __call__(self, x: Any, _: Any) -> Any:
        y = linen.LayerNorm()(x)
        x = x + linen.MultiHeadDotProductAttention(HEADS)(y, y)
        return x + Mlp()(linen.LayerNorm()(x)), None


class Vit(linen.Module):
    @linen.compact
    def __call__(self, images: Any) -> Any:
        x = linen.Conv(WIDTH, (PATCH, PATCH), strides=(PATCH, PATCH), padding="VALID")(images)
        x = x.reshape(x.shape[0], -1, WIDTH)
        x = x + self.param("positions", linen.initializers.normal(), (1, TOKENS, WIDTH))
        blocks = linen.scan(
            linen.remat(Block, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
        )
        x, _ = blocks()(x, None)
        x = linen.LayerNorm()(x)
        probe = self.param("probe", linen.initializers.xavier_uniform(), (1, 1, WIDTH))
        probe = jnp.tile(probe, [x.shape[0], 1, 1])
        x = linen.MultiHeadDotProductAttention(HEADS)(probe, x)
        x = x + Mlp()(linen.LayerNorm()(x))
        return linen.Dense(CLASSES)(x[:, 0])


OPTIMIZER = optax.adam(1e-3)


def step(parameters: Any, state: Any, images: Any, labels: Any) -> Any:
    def loss(p: Any) -> Any:
        return optax.sigmoid_binary_cross_entropy(Vit().apply(p, images), labels).sum(-1).mean()

    value, gradients = jax.value_and_grad(loss)(parameters)
    updates, state = OPTIMIZER.update(gradients, state)
    return optax.apply_updates(parameters, updates), state, value


def forward_flops(images: int) -> int:
    """Products of a forward pass: patches, layers, the head that a probe queries, logits."""
    rows = images * TOKENS
    patches = 2 * rows * PATCH * PATCH * 3 * WIDTH
    attention = 2 * rows * 4 * WIDTH * WIDTH + 2 * 2 * rows * TOKENS * WIDTH
    layers = LAYERS * (attention + 2 * rows * 2 * WIDTH * HIDDEN)
    keys = 2 * rows * 2 * WIDTH * WIDTH
    probe = 2 * images * (2 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN) + 2 * 2 * images * TOKENS * WIDTH
    return patches + layers + keys + probe + 2 * images * WIDTH * CLASSES


def test_a_vit_trains() -> None:
    images = shaped((BATCH, SIZE, SIZE, 3), "data", mesh=DATA)
    labels = shaped((BATCH, CLASSES), "data", mesh=DATA)
    made = jax.eval_shape(Vit().init, jax.random.key(0), images)
    parameters = replicated(made, DATA)
    state = replicated(jax.eval_shape(OPTIMIZER.init, made), DATA)
    trace = flint.trace(jax.jit(step), DATA, parameters, state, images, labels)
    own = BATCH // 8
    rows = own * TOKENS
    layers = LAYERS * (
        2 * rows * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN) + 2 * 2 * rows * TOKENS * WIDTH
    )
    patches = 2 * rows * PATCH * PATCH * 3 * WIDTH
    # backward twice the forward pass but for the images' gradient, and layers once more (remat)
    last = 2 * rows * WIDTH * HIDDEN * LAYERS
    # gradients of the probe's keys and values sum over one query: XLA multiplies
    outer = 2 * 2 * own * TOKENS * WIDTH
    expected = 3 * forward_flops(own) - patches + layers - last - outer
    assert matmul_flops(trace) == expected
    weights = sum(leaf.size for leaf in jax.tree.leaves(made))
    assert collectives(trace) == {("all_reduce", "data"): F32 * (weights + 1)}
    assert argument_bytes(trace) == F32 * (3 * weights + 1 + own * (SIZE * SIZE * 3 + CLASSES))
