"""Megatron's Llama computes what a Llama computes, in the kernels that Megatron-core launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

import flint
from benchmarks.models import llama_megatron as model
from flint.cluster.models import Cluster
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.ir.mesh import Mesh

DRAW = np.random.default_rng(0)


def _plain_norm(x: Any, scale: Any) -> Any:
    return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + model.EPSILON) * scale


def _plain_swiglu(x: Any) -> Any:
    gate, up = x[..., 0, :], x[..., 1, :]
    return gate / (1 + jnp.exp(-gate)) * up


def _plain_rotary(x: Any) -> Any:
    half = x.shape[-1] // 2
    turn = jnp.arange(x.shape[1])[:, None, None] / 500_000.0 ** (jnp.arange(half) / half)
    z = (x[..., :half] + 1j * x[..., half:]) * jnp.exp(1j * turn)
    return jnp.concatenate([z.real, z.imag], -1)


@pytest.mark.parametrize(
    ("ours", "plain", "shapes"),
    [
        (model.rms_norm, _plain_norm, [(2, 5, 16), (16,)]),
        (model.swiglu, _plain_swiglu, [(2, 5, 2, 8)]),
        (model.rotary, _plain_rotary, [(2, 5, 3, 8)]),
    ],
)
def test_gradients_written_by_hand_are_those_of_the_plain_function(
    ours: Any, plain: Any, shapes: list[tuple[int, ...]]
) -> None:
    given = [DRAW.normal(size=s).astype(np.float32) for s in shapes]
    weight = DRAW.normal(size=jax.eval_shape(plain, *given).shape).astype(np.float32)
    found, wanted = (
        jax.value_and_grad(lambda *a, f=f: jnp.sum(f(*a) * weight), tuple(range(len(given))))(
            *given
        )
        for f in (ours, plain)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), found, wanted)


def test_it_is_the_products_that_a_llama_needs_in_few_kernels() -> None:
    axes = {"pipe": 1, "data": 1, "model": 2}
    step = model.train(abstract_mesh(Mesh.parse(axes)), num_layers=2, microbatches=2)
    found = flint.trace(step, axes).estimate(Cluster.load("b200-dgx"), stack="megatron")
    c, tokens = model.SIZES["llama3-8b"], 2 * 8192
    layer = 2 * c.hidden**2 + 2 * c.hidden * c.kv_heads * c.head_dim + 3 * c.hidden * c.ffn
    products = 6 * tokens * (2 * layer + c.hidden * c.vocab)
    scores = 2 * 2 * 6 * tokens * 8192 * c.hidden  # products of queries and keys, and of values
    assert products < found.model_flops <= products + 1.02 * scores
    program = found.timeline.classes[0].work.program
    names = {
        program.strings[s].split("kernel.")[1]
        for s in program.scope
        if "kernel." in program.strings[s]
    }
    assert {"norm", "norm_backward", "rotary", "swiglu", "swiglu_backward", "add", "adam"} <= names
    assert not found.unpriced
