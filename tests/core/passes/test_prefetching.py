"""Gathers of parameters are issued a layer ahead, in loops and in layers written one by one."""

from __future__ import annotations

import numpy as np
import pytest

import flint
from flint.backends.chakra.writing.expand import expand
from flint.backends.cost.estimate import Estimate, estimate
from flint.backends.cost.simulate.layers import layer_runs, one_layer_ahead, preparation
from flint.cluster.models import Cluster
from flint.ir.mesh import AxisRef, Group
from flint.ir.program import Collective, Kind, Program, RegionKind
from flint.requests.estimate import EstimateRequest
from tests.program_rows import ProgramBuilder
from tests.timeline_steps import MESH

DATA = Group((AxisRef("data"),))
LAYERS = 6


def gather(b: ProgramBuilder, operand: int, scope: str = "") -> int:
    return b.add(
        "sdy.all_gather", Kind.COLLECTIVE, deps=[operand], collective=Collective.ALL_GATHER,
        group=DATA, comm_bytes=64, result_bytes=256, dtype="bf16", scope=scope,
    )  # fmt: skip


def product(b: ProgramBuilder, *deps: int, scope: str = "") -> int:
    return b.add(
        "stablehlo.dot_general", deps=deps, dims=(1, 64, 64, 64), flops=2 * 64**3,
        result_bytes=8192, operand_bytes=16384, dtype="bf16", scope=scope,
    )  # fmt: skip


def scanned() -> Program:
    """A loop that slices a stack of weights, gathers the slice and multiplies."""
    b = ProgramBuilder(MESH)
    stack = b.add("weights", Kind.PARAMETER, result_bytes=64 * LAYERS)
    x = b.add("x", Kind.PARAMETER, result_bytes=8192)
    b.begin_region(RegionKind.LOOP, LAYERS)
    turn = b.add("while.carry", Kind.VALUE, deps=[])
    value = b.add("while.carry", Kind.VALUE, deps=[x])
    part = b.add(
        "stablehlo.dynamic_slice",
        deps=[stack, turn],
        result_bytes=64,
        operand_bytes=64,
        dtype="bf16",
    )
    y = product(b, value, gather(b, part))
    following = b.add(
        "stablehlo.add", deps=[turn], result_bytes=4, operand_bytes=8, flops=1, dtype="i32"
    )
    b.end_region([(turn, following), (value, y)])
    return b.build()


def unrolled() -> Program:
    b = ProgramBuilder(MESH)
    value = b.add("x", Kind.PARAMETER, result_bytes=8192)
    for layer in range(LAYERS):
        scope = f"layers/{layer}/mlp"
        weight = b.add("weight", Kind.PARAMETER, result_bytes=64)
        value = product(b, value, gather(b, weight, scope), scope=scope)
    return b.build()


def test_only_what_is_made_of_parameters_is_prepared() -> None:
    program = scanned()
    found = preparation(program)
    names = [program.opcodes[o] for o in program.opcode]
    assert {names[r]: names[to] for r, to in found.feeds.items()} == {
        "stablehlo.dynamic_slice": "sdy.all_gather"
    }
    assert [names[r] for r in np.flatnonzero(found.counts)] == ["stablehlo.add"]
    assert [names[r] for r in np.flatnonzero(found.gathers)] == ["sdy.all_gather"]


def test_a_gradient_is_not_prepared() -> None:
    b = ProgramBuilder(MESH)
    x = b.add("x", Kind.PARAMETER, result_bytes=8192)
    gather(b, product(b, x))
    found = preparation(b.build())
    assert not found.feeds and not found.gathers.any()


@pytest.mark.parametrize("make", [scanned, unrolled])
def test_the_gather_of_the_next_layer_is_issued_before_this_layer_s_product(make) -> None:
    program = make()
    nodes = expand(program)
    issued = one_layer_ahead(program, nodes, preparation(program))
    assert issued.layer is not None
    assert (
        sorted(issued.layer.tolist()) == layer_runs(program, nodes, preparation(program)).tolist()
    )
    names = [program.opcodes[program.opcode[r]] for r in issued.nodes.row]
    order = [n for n in names if n in ("sdy.all_gather", "stablehlo.dot_general")]
    assert order.count("sdy.all_gather") == LAYERS
    ahead = np.cumsum([1 if n == "sdy.all_gather" else -1 for n in order])
    assert ahead[:-2].min() == 1 and ahead.max() <= 2  # one more than is used, never more
    own = np.repeat(np.arange(len(nodes)), np.diff(issued.nodes.dep_start))
    assert (issued.nodes.deps < own).all()


def step(policy: str) -> Estimate:
    """A scan over layers whose weights are sharded over the data axis."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    def make(mesh: jax.sharding.AbstractMesh) -> flint.Step:
        def at(*axes: str | None) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*axes))

        def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
            def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
                w = jax.lax.with_sharding_constraint(w, at(None, None))
                return jnp.tanh(x @ w), None

            return jax.lax.scan(layer, x, weights)[0].sum()

        weights = jax.ShapeDtypeStruct(
            (12, 8192, 8192), jnp.bfloat16, sharding=at(None, None, "data")
        )
        x = jax.ShapeDtypeStruct((65536, 8192), jnp.bfloat16, sharding=at("data", None))
        return flint.Step(jax.grad(loss), (weights, x))

    from flint.frontends.jax_step.meshes import abstract_mesh
    from flint.ir.mesh import Mesh

    mesh = Mesh.parse({"data": 16})
    traced = flint.trace(make(abstract_mesh(mesh)), mesh)
    return estimate(traced.workload, EstimateRequest(Cluster.load("h100-dgx"), policy=policy))


def exposed(found: Estimate) -> float:
    return sum(s.exposed_ns for s in found.classes[0].shares if s.kind == "all_gather")


def test_a_scan_hides_its_gathers_but_those_of_the_first_layers() -> None:
    ahead, within = step("fsdp"), step("xla")
    count = sum(s.count for s in ahead.classes[0].shares if s.kind == "all_gather")
    busy = sum(s.busy_ns for s in ahead.classes[0].shares if s.kind == "all_gather")
    assert count >= 12
    assert exposed(ahead) <= 2.5 * busy / count
    assert exposed(within) > 0.8 * busy
    assert ahead.step_time_ns < within.step_time_ns <= step("blocking").step_time_ns
