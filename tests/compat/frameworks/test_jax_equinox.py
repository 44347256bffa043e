"""Equinox: `filter_jit` steps with modules as arguments, and diffrax's solvers on top of it."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")
optax = pytest.importorskip("optax")

import jax.numpy as jnp

import flint
from flint.errors import FlintError
from flint.ir.program import Flag
from tests.compat.frameworks.jax_totals import (
    DATA,
    argument_bytes,
    collectives,
    matmul_flops,
    shaped,
)

BATCH, LENGTH, WIDTH, HIDDEN, HEADS, VOCABULARY, LAYERS = 16, 32, 64, 256, 4, 512, 2
F32 = 4
#: Weights with biases of one block: two norms, attention, two layers.
BLOCK = 2 * 2 * WIDTH + 4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN + HIDDEN + WIDTH
WEIGHTS = LAYERS * BLOCK + 2 * VOCABULARY * WIDTH


class Block(eqx.Module):
    first: Any
    second: Any
    attention: Any
    up: Any
    down: Any
    activation: Any

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, 3)
        self.first, self.second = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[0])
        self.up = eqx.nn.Linear(WIDTH, HIDDEN, key=keys[1])
        self.down = eqx.nn.Linear(HIDDEN, WIDTH, key=keys[2])
        self.activation = jax.nn.gelu  # a leaf that is no array

    def __call__(self, x: Any) -> Any:
        y = jax.vmap(self.first)(x)
        mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        x = x + self.attention(y, y, y, mask=mask)
        y = jax.vmap(self.up)(jax.vmap(self.second)(x))
        return x + jax.vmap(self.down)(self.activation(y))


class Gpt(eqx.Module):
    embedding: Any
    blocks: list[Block]
    head: Any

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, LAYERS + 2)
        self.embedding = eqx.nn.Embedding(VOCABULARY, WIDTH, key=keys[0])
        self.blocks = [Block(k) for k in keys[1:-1]]
        self.head = eqx.nn.Linear(WIDTH, VOCABULARY, use_bias=False, key=keys[-1])

    def __call__(self, tokens: Any) -> Any:
        x = jax.vmap(self.embedding)(tokens)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(x)


OPTIMIZER = optax.adamw(1e-3)


def loss(model: Any, tokens: Any) -> Any:
    logits = jax.vmap(model)(tokens)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()


def step(model: Any, state: Any, tokens: Any) -> Any:
    value, gradients = eqx.filter_value_and_grad(loss)(model, tokens)
    updates, state = OPTIMIZER.update(gradients, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, value


def arguments() -> tuple[Any, Any, Any]:
    make = lambda: Gpt(jax.random.key(0))
    model = eqx.filter_eval_shape(make)
    state = eqx.filter_eval_shape(lambda: OPTIMIZER.init(eqx.filter(make(), eqx.is_array)))
    return model, state, shaped((BATCH, LENGTH), "data", dtype=jnp.int32, mesh=DATA)


def donated(trace: Any) -> int:
    rows = map(trace.program.row, range(len(trace.program)))
    return sum(r.result_bytes for r in rows if r.flags & Flag.DONATED)


@pytest.mark.parametrize("donate", ["none", "all-except-first", "all"])
def test_a_gpt_trains_data_parallel(donate: str) -> None:
    model, state, tokens = arguments()
    trace = flint.trace(eqx.filter_jit(step, donate=donate), DATA, model, state, tokens)
    rows = BATCH // 8 * LENGTH
    block = 2 * rows * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN) + 2 * 2 * rows * LENGTH * WIDTH
    assert matmul_flops(trace) == 3 * (LAYERS * block + 2 * rows * WIDTH * VOCABULARY)
    assert collectives(trace) == {("all_reduce", "data"): F32 * (WEIGHTS + 1)}
    batch = F32 * BATCH * LENGTH // 8
    assert argument_bytes(trace) == F32 * (3 * WEIGHTS + 1) + batch
    moments = F32 * (2 * WEIGHTS + 1)
    assert (
        donated(trace)
        == {"none": 0, "all-except-first": moments + batch, "all": moments + batch + F32 * WEIGHTS}[
            donate
        ]
    )


def test_methods_and_partials_of_modules() -> None:
    model, _, tokens = arguments()
    rows = BATCH // 8 * LENGTH
    forward = matmul_flops(flint.trace(eqx.filter_jit(loss), DATA, model, tokens))
    assert matmul_flops(flint.trace(functools.partial(loss, model), DATA, tokens)) == forward
    assert forward > 2 * rows * WIDTH * VOCABULARY
    one = flint.trace(eqx.filter_jit(model), DATA, jax.ShapeDtypeStruct((LENGTH,), jnp.int32))
    assert matmul_flops(one) * BATCH // 8 == forward


# diffrax --------------------------------------------------------------------------------------

ROWS, STATE, MOST = 64, 32, 16


def solved(y: Any, w: Any) -> Any:
    diffrax = pytest.importorskip("diffrax")
    term = diffrax.ODETerm(lambda t, y, w: jnp.tanh(y @ w))
    controller = diffrax.PIDController(1e-3, 1e-3)
    solver = diffrax.Tsit5()
    found = diffrax.diffeqsolve(
        term, solver, 0.0, 1.0, 0.1, y, args=w, max_steps=MOST, stepsize_controller=controller
    )
    return found.ys.sum()


def test_an_adaptive_solver_needs_its_number_of_steps() -> None:
    pytest.importorskip("diffrax")
    y, w = shaped((ROWS, STATE), "data", mesh=DATA), shaped((STATE, STATE), mesh=DATA)
    with pytest.raises(FlintError, match="depends on data") as caught:
        flint.trace(eqx.filter_jit(solved), DATA, y, w)
    assert caught.value.code == "FL403" and "diffeqsolve" in str(caught.value)
    with pytest.raises(FlintError, match="and a loop around it"):
        flint.trace(eqx.filter_jit(solved), DATA, y, w, trip_counts={"checkpointed.py:271": MOST})
    # steps, and stages of each: Tsit5 keeps the last of its seven for the next step
    stages = 6
    counts = {"loop0": MOST, "loop1": stages}
    trace = flint.trace(eqx.filter_jit(solved), DATA, y, w, trip_counts=counts)
    elements = ROWS // 8 * STATE
    evaluations = MOST * stages * 2 * elements * STATE
    sums = MOST * (stages + 1) * 2 * 7 * elements  # of seven stages, and for the error
    # XLA multiplies and sums where a vector meets itself (the norm of the error)
    assert matmul_flops(trace) == evaluations + sums
    # the size of the error is the whole batch's
    assert {kind for kind, _ in collectives(trace)} == {"all_reduce"}
