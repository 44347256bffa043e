"""Stages of a model that was cut, as programs: scopes, lines and work are those of the model."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp

import flint
from flint.frontends.jax_pipeline import capture_jax_pipeline
from flint.frontends.jax_step.program import capture_jax
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Phase, Program
from flint.passes.partition.xla import partition_xla
from flint.passes.pipeline.split.parts import partition_body
from tests.jax_pipelines import BATCH, HIDDEN, LENGTH, VOCABULARY, WIDTH, constrain, shaped

DEEP = Mesh(("pipe", "data", "model"), (4, 2, 2))
LAYERS = 8


def block(x: Any, p: Any) -> Any:
    with jax.named_scope("mlp"):
        x = x + jnp.tanh(x @ p["up"]) @ p["down"]
    return constrain(x, "data", None, None, mesh=DEEP)


def model(params: Any, tokens: Any, targets: Any, run: Any) -> Any:
    with jax.named_scope("embed"):
        x = constrain(params["embed"][tokens], "data", None, None, mesh=DEEP)
    with jax.named_scope("layers"):
        x = run(x, params["layers"])
    with jax.named_scope("head"):
        logits = x @ params["head"]
        picked = jax.nn.one_hot(targets, VOCABULARY)
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * picked, -1))


def scan(x: Any, layers: Any) -> Any:
    return jax.lax.scan(lambda x, p: (jax.checkpoint(block)(x, p), None), x, layers)[0]


def loop(x: Any, layers: Any) -> Any:
    for p in layers:
        x = block(x, p)
    return x


def pipeline(run: Any, **changes: Any) -> flint.Pipeline:
    one = {"up": (WIDTH, HIDDEN, None, "model"), "down": (HIDDEN, WIDTH, "model", None)}
    stacked = {
        n: shaped((LAYERS, i, o), None, *spec, mesh=DEEP) for n, (i, o, *spec) in one.items()
    }
    single = {n: shaped((i, o), *spec, mesh=DEEP) for n, (i, o, *spec) in one.items()}
    params = {
        "embed": shaped((VOCABULARY, WIDTH), "model", None, mesh=DEEP),
        "layers": stacked if run is scan else [single] * LAYERS,
        "head": shaped((WIDTH, VOCABULARY), None, "model", mesh=DEEP),
    }
    tokens = shaped((BATCH, LENGTH), "data", None, dtype=jnp.int32, mesh=DEEP)
    return flint.Pipeline(
        model=functools.partial(model, run=run),
        params=params,
        inputs=(tokens, tokens),
        backward=True,
        cut="layers",
        microbatches=2,
        **changes,
    )


def stages(run: Any) -> list[Program]:
    captured = capture_jax_pipeline(pipeline(run), DEEP)
    programs = [partition_body(b.step).program for b in captured.bodies]
    return [programs[number] for number in captured.stages]


def products(programs: list[Program]) -> int:
    """FLOPs of matrix products on one device, loops multiplied."""
    return sum(
        p.row(i).flops * int(p.trips[i])
        for p in programs
        for i in range(len(p))
        if p.row(i).op is OpClass.MATMUL
    )


def whole(run: Any) -> Program:
    """The model that is not cut, on one microbatch."""
    given = pipeline(run)
    tokens = shaped((BATCH // 2, LENGTH), "data", None, dtype=jnp.int32, mesh=DEEP)

    def step(params: Any, tokens: Any, targets: Any) -> Any:
        return jax.value_and_grad(given.model)(params, tokens, targets)

    args = (given.params, tokens, tokens)
    return partition_xla(capture_jax(flint.Step(step, args), DEEP))


@pytest.mark.parametrize("run", [scan, loop])
def test_stages_do_the_work_of_the_model(run: Any) -> None:
    cut = stages(run)
    assert len(cut) == 4
    assert cut[1] is cut[2]
    assert products(cut) == products([whole(run)])


@pytest.mark.parametrize("run", [scan, loop])
def test_rows_keep_their_scopes_lines_and_phases(run: Any) -> None:
    _, middle, _, last = stages(run)
    of_model = {
        (r.scope, r.location, r.phase)
        for p in (whole(run),)
        for r in map(p.row, range(len(p)))
        if r.op is OpClass.MATMUL
    }
    for program in (middle, last):
        found = {
            (r.scope, r.location, r.phase)
            for r in map(program.row, range(len(program)))
            if r.op is OpClass.MATMUL
        }
        assert found <= of_model
        assert {"layers/mlp"} <= {scope for scope, _, _ in found}
        assert {Phase.FORWARD, Phase.BACKWARD} <= {phase for _, _, phase in found}
        assert all(line.startswith("test_jax_cut_program.py:") for _, line, _ in found)


def test_a_scan_of_eight_layers_becomes_scans_of_two() -> None:
    for program in stages(scan):
        assert {r.trip_count for r in program.regions} == {2}


def test_collectives_of_stages_are_those_of_the_model() -> None:
    def reduced(programs: list[Program]) -> int:
        return sum(
            p.row(i).comm_bytes * int(p.trips[i])
            for p in programs
            for i in range(len(p))
            if p.row(i).kind is Kind.COLLECTIVE and p.row(i).scope.startswith("layers")
        )

    assert reduced(stages(loop)) == reduced([whole(loop)]) > 0


def test_equal_stages_are_captured_once() -> None:
    captured = capture_jax_pipeline(pipeline(scan, optimizer="adamw"), DEEP)
    assert captured.stages == (0, 1, 1, 2)
    assert captured.labels == ("embed, layers 0-1", "layers 2-3", "layers 4-5", "layers 6-7, head")
