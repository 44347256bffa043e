"""Values that are written in place, and collectives inside stages, in composed pipelines."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import flint
from flint import FlintError
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.ir.mesh import Mesh
from flint.ir.program import Kind
from tests.jax_pipelines import MESH, pipeline, shaped

FLAT = Mesh(("pipe", "data"), (2, 2))
WIDTH = 8
X = shaped((8, 4, WIDTH), "data", mesh=FLAT)


def stages(function: Any, weights: Any) -> flint.Pipeline:
    """The same stage twice."""
    return flint.Pipeline(
        stages=[flint.Stage(function, weights, name) for name in "ab"],
        inputs=(X,),
        loss=lambda y: jnp.mean(y),
        microbatches=2,
    )


def test_the_sum_of_an_embeddings_gradients_is_as_large_as_the_table() -> None:
    """The gradient of a look-up is a scatter, which writes the rows looked up and no others."""
    program = flint.trace(pipeline(), MESH).workload.programs[0]
    for row in map(program.row, range(len(program))):
        if row.opcode == "pipeline.accumulator":
            assert row.result_bytes == 4 * math.prod(row.shape), row.name


def test_a_gradient_that_is_written_in_place_is_sent_whole() -> None:
    """The input's gradient is a scatter of more elements than it has; messages have its size."""
    weights = {"at": shaped((4,), dtype=jnp.int32, mesh=FLAT), "scale": shaped((), mesh=FLAT)}
    workload = flint.trace(stages(lambda p, x: x[p["at"]] * p["scale"], weights), FLAT).workload
    for program in workload.programs:
        messages = (program.kind == Kind.SEND) | (program.kind == Kind.RECV)
        assert set(program.comm_bytes[messages].tolist()) == {2 * 4 * WIDTH * 4}


def test_a_stage_does_not_communicate_along_the_pipeline() -> None:
    """Without check_vma, gradients of a shard_map are summed over all axes that it does not name."""

    def doubled(w: Any, x: Any) -> Any:
        spec = P("data")
        mapped = jax.shard_map(
            lambda w, x: x @ w,
            mesh=abstract_mesh(FLAT),
            in_specs=(P(), spec),
            out_specs=spec,
            check_vma=False,
        )
        return mapped(w, x)

    with pytest.raises(
        FlintError, match="a stage communicates over 'pipe', the axis of the stages"
    ) as error:
        flint.trace(stages(doubled, shaped((WIDTH, WIDTH), mesh=FLAT)), FLAT)
    assert error.value.code == "FL240" and "check_vma" in str(error.value.help)
