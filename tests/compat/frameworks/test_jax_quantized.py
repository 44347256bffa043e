"""qwix: int8 and fp8 products of a Flax model, and penzai's transformer blocks."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
jax = pytest.importorskip("jax")

import jax.numpy as jnp

import flint
from flint.ir.op_class import OpClass
from tests.compat.frameworks.jax_totals import MESH, collectives, matmul_flops, replicated, shaped

ROWS, WIDTH, HIDDEN = 256, 128, 512


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_quantized_products_are_multiplied_as_what_they_are(dtype: str) -> None:
    qwix = pytest.importorskip("qwix")
    linen = pytest.importorskip("flax.linen")

    class Mlp(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.Dense(HIDDEN, use_bias=False, name="up")(x)
            return linen.Dense(WIDTH, use_bias=False, name="down")(linen.relu(x))

    rules = [qwix.QtRule(module_path=".*", weight_qtype=dtype, act_qtype=dtype)]
    model = qwix.quantize_model(Mlp(), qwix.QtProvider(rules))
    x = shaped((ROWS, WIDTH), "data")
    weights = replicated(jax.eval_shape(model.init, jax.random.key(0), x))

    def loss(weights: Any, x: Any) -> Any:
        return jnp.square(model.apply(weights, x)).mean()

    forward = flint.trace(loss, MESH, weights, x)
    rows = [forward.program.row(i) for i in range(len(forward.program))]
    found = [r for r in rows if r.op == OpClass.MATMUL]
    assert [r.product for r in found] == [dtype] * 2
    one = 2 * ROWS // 8 * WIDTH * HIDDEN
    assert matmul_flops(forward) == 2 * one
    trained = flint.trace(jax.grad(loss), MESH, weights, x)
    assert matmul_flops(trained) == 5 * one  # the first layer's input has no gradient
    assert collectives(trained)["all_reduce", "data"] >= 4 * 2 * WIDTH * HIDDEN


def test_penzai_layers_are_pytrees() -> None:
    pz = pytest.importorskip("penzai.pz")
    axes = {"features": WIDTH}

    def make() -> Any:
        return pz.nn.Sequential(
            [
                pz.nn.Linear.from_config("up", jax.random.key(0), axes, {"hidden": HIDDEN}),
                pz.nn.Elementwise(jax.nn.relu),
                pz.nn.Linear.from_config("down", jax.random.key(1), {"hidden": HIDDEN}, axes),
            ]
        )

    unbound, parameters = pz.unbind_params(make(), freeze=True)

    def step(values: Any, x: Any) -> Any:
        model = pz.bind_variables(unbound, values)
        return model(pz.nx.wrap(x).tag("batch", "features")).untag("batch", "features").unwrap()

    x = shaped((ROWS, WIDTH), "data")
    trace = flint.trace(step, MESH, replicated(parameters), x)
    assert matmul_flops(trace) == 2 * 2 * ROWS // 8 * WIDTH * HIDDEN
    assert collectives(trace) == {}
