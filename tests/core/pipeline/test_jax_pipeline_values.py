"""Gradients of stages run one after the other are those of the whole model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import numpy as np

import flint
from flint.frontends.jax_stages.bodies import step_function
from flint.frontends.jax_stages.stage_function import StageFunction
from flint.frontends.jax_stages.stages import stage_functions
from flint.ir.mesh import Mesh
from flint.steps.captured import Port, Role
from tests.jax_pipelines import BATCH, LAYERS, LENGTH, MESH, VOCABULARY, embed, head, layer, loss
from tests.jax_pipelines import pipeline as decoder

MICROBATCHES = 4


def without_shardings(stage: StageFunction) -> StageFunction:
    """A stage that runs on one device."""

    def plain(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)

    return replace(
        stage,
        params={n: plain(p) for n, p in stage.params.items()},
        batch={n: plain(p) for n, p in stage.batch.items()},
        inputs=tuple(map(plain, stage.inputs)),
        outputs=tuple(map(plain, stage.outputs)),
    )


def quick(function: Any) -> Any:
    """A jitted function that is compiled fast: it runs a few times on small arrays."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


class Runner:
    """Runs the steps of all stages on arrays, microbatch after microbatch."""

    def __init__(self, pipeline: flint.Pipeline, mesh: Mesh, params: list[dict[str, Any]]):
        count = mesh.axis_size("pipe")
        stages = map(without_shardings, stage_functions(pipeline, mesh, count))
        self.bodies = [step_function(stage, MESH, True) for stage in stages]
        self.steps = [quick(body.fn) for body in self.bodies]
        self.params = params

    def run(self, stage: int, given: dict[Port, Any]) -> dict[Port, Any]:
        """Results of one stage by port."""
        body = self.bodies[stage]
        values = {Port(Role.PARAMETER, n): v for n, v in self.params[stage].items()} | given
        results = self.steps[stage](*(values[port] for port, _ in body.arguments))
        assert len(results) == len(body.results)
        return dict(zip([port for port, _ in body.results], results, strict=True))

    def microbatch(self, batch: dict[Port, Any], share: float) -> tuple[Any, list[dict[str, Any]]]:
        """Loss and gradients of each stage, times `share`."""
        last = len(self.bodies) - 1
        inputs: list[dict[Port, Any]] = [{}]
        unused = self._cotangents()
        for s in range(last):
            out = self.run(s, inputs[s] | batch | unused[s])
            inputs.append(
                {Port(Role.INPUT, "", p.number): v for p, v in out.items() if p.role is Role.OUTPUT}
            )
        back = {Port(Role.COTANGENT): jnp.float32(share)}
        gradients: list[dict[str, Any]] = [{} for _ in self.bodies]
        value = None
        for s in reversed(range(last + 1)):
            out = self.run(s, inputs[s] | batch | back)
            value = out.get(Port(Role.LOSS), value)
            back = {
                Port(Role.COTANGENT, "", p.number): v
                for p, v in out.items()
                if p.role is Role.INPUT_GRADIENT
            }
            gradients[s] = {p.name: v for p, v in out.items() if p.role is Role.GRADIENT}
        return value, gradients

    def _cotangents(self) -> list[dict[Port, Any]]:
        """Any values: a first run of a stage is for its outputs only."""
        return [
            {
                p: jnp.ones(leaf.shape, leaf.dtype)
                for p, leaf in body.arguments
                if p.role is Role.COTANGENT
            }
            for body in self.bodies
        ]


def accumulated(
    runner: Runner, inputs: dict[str, Any], count: int = MICROBATCHES
) -> tuple[Any, list[dict[str, Any]]]:
    """Mean loss and summed gradients over `count` microbatches."""
    total, sums = 0.0, None
    for m in range(count):
        size = BATCH // count
        part = slice(m * size, (m + 1) * size)
        batch = {Port(Role.BATCH, n): v[part] for n, v in inputs.items()}
        value, gradients = runner.microbatch(batch, 1 / count)
        total += value / count
        sums = gradients if sums is None else jax.tree.map(jnp.add, sums, gradients)
    assert sums is not None
    return total, sums


def random_like(shapes: dict[str, Any], seed: int) -> dict[str, Any]:
    """Small random arrays."""
    make = np.random.default_rng(seed)
    return {
        n: jnp.asarray(0.1 * make.standard_normal(s.shape), jnp.float32) for n, s in shapes.items()
    }


def whole(params: list[dict[str, Any]], tokens: Any, targets: Any) -> Any:
    """The decoder of the tests without stages, from the parameters of two stages."""
    x = embed({"table": params[0]["embed['table']"]}, tokens, None)
    for stage in params:
        for i in range(len(stage["layers['up']"])):
            x = layer({n: stage[f"layers['{n}']"][i] for n in ("scale", "up", "down")}, x, None)
    return loss(head({"table": params[-1]["head['table']"]}, x, None), targets)


@pytest.mark.parametrize("split", ["uniform", [1, 3]])
def test_gradients_of_a_decoder(split: Any) -> None:
    """Loss and every gradient agree with `jax.grad` of the whole batch."""
    given = decoder(plain=True, split=split)
    stages = stage_functions(given, MESH, 2)
    params = [random_like(dict(s.params), i) for i, s in enumerate(stages)]
    make = np.random.default_rng(5)
    data = {
        n: jnp.asarray(make.integers(0, VOCABULARY, (BATCH, LENGTH)), jnp.int32)
        for n in ("tokens", "targets")
    }
    value, gradients = accumulated(Runner(given, MESH, params), data)
    expected, wanted = quick(jax.value_and_grad(whole))(params, data["tokens"], data["targets"])
    assert sum(len(s["layers['up']"]) for s in params) == LAYERS
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for got, want in zip(gradients, wanted, strict=True):
        assert got.keys() == want.keys()
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-6, err_msg=name)
            assert float(jnp.abs(want[name]).max()) > 1e-4


def test_two_values_cross_and_integers_have_no_gradient() -> None:
    """Of two crossing values, positions are integers; an integer table is a buffer."""
    mesh = Mesh(("pipe", "data"), (3, 2))
    buffers = {"w": jax.ShapeDtypeStruct((4, 4), jnp.float32), "shift": _integers(4)}

    def first(params: Any, x: Any, positions: Any) -> Any:
        return jnp.sin(x @ params["w"]) + params["shift"], positions

    def middle(params: Any, values: Any) -> Any:
        x, positions = values
        return x * positions[:, None] + jnp.tanh(x @ params["w"]), positions + params["shift"][0]

    def last(params: Any, values: Any) -> Any:
        x, positions = values
        return (x @ params["w"]) * positions[:, None]

    given = flint.Pipeline(
        stages=[flint.Stage(f, buffers, name=f.__name__) for f in (first, middle, last)],
        inputs=(jax.ShapeDtypeStruct((BATCH, 4), jnp.float32), _integers(BATCH)),
        loss=lambda y: jnp.mean(y * y),
        microbatches=2,
        crossing=2,
    )
    make = np.random.default_rng(0)
    weights = [jnp.asarray(make.standard_normal((4, 4)), jnp.float32) for _ in range(3)]
    shift = jnp.arange(4, dtype=jnp.int32)
    names = ["first", "middle", "last"]
    params = [{f"{n}['w']": w, f"{n}['shift']": shift} for n, w in zip(names, weights, strict=True)]
    x = jnp.asarray(make.standard_normal((BATCH, 4)), jnp.float32)
    positions = jnp.arange(BATCH, dtype=jnp.int32)

    def everything(ws: list[Any]) -> Any:
        values = first({"w": ws[0], "shift": shift}, x, positions)
        values = middle({"w": ws[1], "shift": shift}, values)
        return jnp.mean(last({"w": ws[2], "shift": shift}, values) ** 2)

    runner = Runner(given, mesh, params)
    value, gradients = accumulated(runner, {"x": x, "positions": positions}, 2)
    expected, wanted = quick(jax.value_and_grad(everything))(weights)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for name, got, want in zip(names, gradients, wanted, strict=True):
        assert list(got) == [f"{name}['w']"]
        np.testing.assert_allclose(got[f"{name}['w']"], want, rtol=1e-4, atol=1e-6)
    roles = [(p.role, p.number) for p, _ in runner.bodies[1].results]
    assert roles == [
        (Role.OUTPUT, 0), (Role.OUTPUT, 1), (Role.INPUT_GRADIENT, 0), (Role.GRADIENT, 0)
    ]  # fmt: skip


def _integers(size: int) -> Any:
    return jax.ShapeDtypeStruct((size,), jnp.int32)
