"""Flax: a linen transformer of lm1b's form, and NNX modules handed over as they are."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
jax = pytest.importorskip("jax")
pytest.importorskip("flax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp
from flax import linen, nnx

import flint
from flint.ir.program import Flag
from tests.compat.frameworks.jax_totals import (
    MESH,
    argument_bytes,
    collectives,
    matmul_flops,
    replicated,
    shaped,
)

BATCH, LENGTH, WIDTH, HIDDEN, HEADS, VOCABULARY, LAYERS = 32, 64, 128, 512, 8, 1024, 2
F32 = 4


class Block(linen.Module):
    """Attention and MLP as in Flax's lm1b example: before each a layer norm."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        y = linen.LayerNorm()(x)
        mask = linen.make_causal_mask(jnp.ones(x.shape[:2]))
        y = linen.MultiHeadDotProductAttention(HEADS, use_bias=False)(y, mask=mask)
        x = x + y
        y = linen.Dense(HIDDEN, name="up")(linen.LayerNorm()(x))
        return x + linen.Dense(WIDTH, name="down")(linen.relu(y))


class Lm(linen.Module):
    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        x = linen.Embed(VOCABULARY, WIDTH)(tokens)
        for _ in range(LAYERS):
            x = Block()(x)
        return linen.Dense(VOCABULARY, use_bias=False, name="logits")(linen.LayerNorm()(x))


def linen_loss(parameters: Any, tokens: Any) -> Any:
    logits = Lm().apply(parameters, tokens)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()


def test_linen_lm_trains_data_parallel() -> None:
    tokens = shaped((BATCH, LENGTH), "data", dtype=jnp.int32)
    parameters = replicated(jax.eval_shape(Lm().init, jax.random.key(0), tokens))
    optimizer = optax.adamw(1e-3)
    state = replicated(jax.eval_shape(optimizer.init, parameters))

    def step(parameters: Any, state: Any, tokens: Any) -> Any:
        loss, gradients = jax.value_and_grad(linen_loss)(parameters, tokens)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    trace = flint.trace(jax.jit(step, donate_argnums=(0, 1)), MESH, parameters, state, tokens)
    rows = BATCH // 8 * LENGTH
    layer = 2 * rows * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN) + 2 * 2 * rows * LENGTH * WIDTH
    forward = LAYERS * layer + 2 * rows * WIDTH * VOCABULARY
    assert matmul_flops(trace) == 3 * forward
    weights = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    # every gradient and the loss are summed over data; nothing is sharded over model
    sent = collectives(trace)
    assert set(sent) == {("all_reduce", "data")}
    assert sent["all_reduce", "data"] == F32 * (weights + 1)
    assert any("'model'" in warning for warning in trace.warnings)
    assert argument_bytes(trace) == F32 * (3 * weights + 1) + F32 * BATCH * LENGTH // 8
    donated = [
        r for r in map(trace.program.row, range(len(trace.program))) if r.flags & Flag.DONATED
    ]
    assert len(donated) == 3 * len(jax.tree.leaves(parameters)) + 1


class Mlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.lecun_normal()
        up, down = (nnx.with_partitioning(init, s) for s in ((None, "model"), ("model", None)))
        self.up = nnx.Linear(WIDTH, HIDDEN, use_bias=False, kernel_init=up, rngs=rngs)
        self.down = nnx.Linear(HIDDEN, WIDTH, use_bias=False, kernel_init=down, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.down(self.dropout(nnx.relu(self.up(x))))


def nnx_step(model: Any, optimizer: Any, x: Any) -> Any:
    loss, gradients = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


FORMS = {
    "nnx.jit": lambda *a: flint.trace(nnx.jit(nnx_step), MESH, *a),
    "nnx.jit donated": lambda *a: flint.trace(nnx.jit(nnx_step, donate_argnums=(0, 1)), MESH, *a),
    "plain": lambda *a: flint.trace(nnx_step, MESH, *a),
    "traced": lambda *a: flint.trace(nnx.jit(nnx_step).trace(*a), MESH),
}


@pytest.mark.parametrize("form", FORMS)
def test_nnx_modules_and_optimizers_are_arguments(form: str) -> None:
    with jax.sharding.use_abstract_mesh(MESH):
        model = nnx.eval_shape(lambda: Mlp(nnx.Rngs(0)))
        adam = lambda: nnx.Optimizer(Mlp(nnx.Rngs(0)), optax.adamw(1e-3), wrt=nnx.Param)
        optimizer = nnx.eval_shape(adam)
    trace = FORMS[form](model, optimizer, shaped((256, WIDTH), "data"))
    rows = 256 // 8
    # two products forward; backward two for the second layer, and one for the first one's weight
    assert matmul_flops(trace) == 5 * 2 * rows * WIDTH * HIDDEN // 4
    sent = collectives(trace)
    part = WIDTH * HIDDEN // 4
    assert sent["all_reduce", "data"] == F32 * (2 * part + 1)
    assert sent["all_reduce", "model"] == F32 * rows * WIDTH
    assert set(sent) == {("all_reduce", "data"), ("all_reduce", "model")}
    # new weights and two moments are results: the update is not dead code
    kept = trace.rewritten("xla-gpu").program
    assert int(kept.flops.sum()) > matmul_flops(trace) + 3 * 2 * part
