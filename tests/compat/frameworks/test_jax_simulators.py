"""brax and numpyro: physics and samplers, as steps split over data."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
jax = pytest.importorskip("jax")

import jax.numpy as jnp

import flint
from flint.ir.op_class import OpClass
from tests.compat.frameworks.jax_totals import DATA, collectives, matmul_flops, shaped

F32 = 4
ENVIRONMENTS, STEPS = 64, 5


def test_brax_rolls_environments_out() -> None:
    envs = pytest.importorskip("brax.envs")
    env = envs.create("inverted_pendulum", backend="positional", auto_reset=False)
    state = jax.eval_shape(jax.vmap(env.reset), jax.random.split(jax.random.key(0), ENVIRONMENTS))

    def split(a: Any) -> Any:
        spec = ("data",) if a.shape[:1] == (ENVIRONMENTS,) else ()
        return shaped(a.shape, *spec, dtype=a.dtype, mesh=DATA)

    hidden = 32
    policy = {
        "in": shaped((env.observation_size, hidden), mesh=DATA),
        "out": shaped((hidden, env.action_size), mesh=DATA),
    }

    def rollout(policy: Any, state: Any) -> Any:
        def one(state: Any, _: Any) -> Any:
            action = jnp.tanh(jnp.tanh(state.obs @ policy["in"]) @ policy["out"])
            state = jax.vmap(env.step)(state, action)
            return state, None

        state, _ = jax.lax.scan(one, state, None, length=STEPS)
        return jnp.square(state.obs).mean()

    trace = flint.trace(jax.jit(rollout), DATA, policy, jax.tree.map(split, state))
    # each environment by itself: the mean alone is put together
    assert collectives(trace) == {("all_reduce", "data"): F32}
    own = 2 * (ENVIRONMENTS // 8) * hidden * (env.observation_size + env.action_size) * STEPS
    program = trace.program
    rows = [program.row(i) for i in range(len(program))]
    found = sum(
        r.flops * int(program.trips[i])
        for i, r in enumerate(rows)
        if r.op == OpClass.MATMUL
        and "test_jax_simulators" in r.location
        and r.dims[3] in (env.observation_size, hidden)
    )
    assert found == own


SAMPLES, FEATURES, LEAPS = 4096, 32, 8


def test_numpyro_potential_energy_and_its_gradient() -> None:
    numpyro = pytest.importorskip("numpyro")
    from numpyro import distributions as dist
    from numpyro.infer.util import potential_energy

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(FEATURES), 1).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def leapfrog(w: Any, r: Any, x: Any, y: Any) -> Any:
        energy = lambda w: potential_energy(model, (x, y), {}, {"w": w})

        def leap(carry: Any, _: Any) -> Any:
            w, r = carry
            r = r - 0.05 * jax.grad(energy)(w)
            return (w + 0.1 * r, r), None

        return jax.lax.scan(leap, (w, r), None, length=LEAPS)[0]

    vector = shaped((FEATURES,), mesh=DATA)
    trace = flint.trace(
        leapfrog,
        DATA,
        *(vector, vector),
        shaped((SAMPLES, FEATURES), "data", mesh=DATA),
        shaped((SAMPLES,), "data", mesh=DATA),
    )
    # x @ w, and its gradient: two products of a vector in each leap, and the gradient is summed
    assert matmul_flops(trace) == LEAPS * 2 * 2 * (SAMPLES // 8) * FEATURES
    assert collectives(trace)["all_reduce", "data"] == LEAPS * F32 * FEATURES
