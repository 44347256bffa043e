"""What a program keeps on its host takes no memory of the device, and is copied on streams of its own."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.backends.cost.estimate import Estimate, estimate
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Program
from flint.passes.work.host_copies import STREAMS
from flint.requests.estimate import EstimateRequest
from flint.tracing import Trace

LAYERS, WIDTH, TOKENS, RANKS = 4, 1024, 4096, 4
#: Bytes of the activations of one layer on a device, and of its weights.
SAVED, WEIGHT = TOKENS // RANKS * WIDTH * 2, WIDTH * WIDTH * 2
POLICIES = jax.checkpoint_policies


@cache
def offloaded(*, names: bool = True, state: bool = True, scan: bool = True) -> Trace:
    """Layers of which one activation is offloaded (or kept), and momenta on the host (or not)."""
    mesh = abstract_mesh(Mesh.parse({"d": RANKS}))
    policy = POLICIES.save_only_these_names("x")
    if names:
        policy = POLICIES.save_and_offload_only_these_names(
            names_which_can_be_saved=[], names_which_can_be_offloaded=["x"],
            offload_src="device", offload_dst="pinned_host",
        )  # fmt: skip

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        x = jax.lax.with_sharding_constraint(checkpoint_name(x, "x"), NamedSharding(mesh, P("d")))
        return jnp.tanh(x @ w), None

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        block = jax.checkpoint(layer, policy=policy)
        if scan:
            x, _ = jax.lax.scan(block, x, weights)
        else:
            for number in range(LAYERS):
                x, _ = block(x, weights[number])
        return x.astype(jnp.float32).sum()

    def step(weights: jax.Array, momenta: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gradients = jax.grad(loss)(weights, x)
        if state:
            momenta = jax.device_put(momenta, jax.memory.Space.Device)
        momenta = momenta * 0.9 + gradients
        weights -= momenta * 0.1
        return weights, jax.device_put(momenta, jax.memory.Space.Host) if state else momenta

    def argument(shape: tuple[int, ...], spec: P, kind: str = "device") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec, memory_kind=kind)
        )

    stack = (LAYERS, WIDTH, WIDTH)
    args = (
        argument(stack, P()),
        argument(stack, P(), "pinned_host" if state else "device"),
        argument((TOKENS, WIDTH), P("d")),
    )
    return flint.trace(flint.Step(step, args, donate_argnums=(0, 1)), {"d": RANKS})


def priced(trace: Trace, policy: str = "overlap") -> Estimate:
    return estimate(
        trace.workload, EstimateRequest(Cluster.load("h100-dgx"), profile="xla-gpu", policy=policy)
    )


def copied(program: Program, op: OpClass) -> int:
    """Bytes that a step copies."""
    rows = program.op == op
    return int((program.operand_bytes * program.trips)[rows].sum())


@pytest.mark.parametrize("scan", [True, False])
def test_activations_and_momenta_leave_the_device(scan: bool) -> None:
    trace = offloaded(scan=scan)
    program = trace.workload.programs[0]
    program.verify()
    state = LAYERS * WEIGHT
    assert (
        copied(program, OpClass.TO_HOST)
        == copied(program, OpClass.FROM_HOST)
        == LAYERS * SAVED + state
    )
    found, kept = priced(trace), priced(offloaded(names=False, state=False, scan=scan))
    memory, before = found.classes[0].memory, kept.classes[0].memory
    assert memory.host_bytes == LAYERS * SAVED + state
    assert memory.host_breakdown == {
        "optimizer_state": state, "saved_activations": LAYERS * SAVED
    }  # fmt: skip
    assert "optimizer_state" not in memory.breakdown
    assert before.host_bytes == 0 and not before.host_breakdown
    assert memory.peak_bytes < before.peak_bytes - (LAYERS * SAVED // 2 if scan else 0)
    assert "on the host" in found.to_text() and "on the host" not in kept.to_text()
    assert "host_bytes" in found.to_json()["classes"][0]["memory"]
    assert "host_bytes" not in kept.to_json()["classes"][0]["memory"]


def test_copies_take_their_bytes_over_the_link_beside_computation() -> None:
    found = priced(offloaded())
    (share,) = _by_kind(found, "host_copy")
    link = found.cluster.chip.host_link_bytes_per_s
    assert link is not None
    assert share[0] == pytest.approx(2 * LAYERS * (SAVED + WEIGHT) / link.value * 1e9, rel=1e-3)
    assert set(STREAMS.values()) <= set(found.timeline.streams)
    blocking = priced(offloaded(), "in-order")
    assert STREAMS[OpClass.TO_HOST] not in blocking.timeline.streams
    assert found.step_time_ns < blocking.step_time_ns


def _by_kind(found: Estimate, kind: str) -> list[tuple[float, float]]:
    shares = [s for s in found.classes[0].shares if s.kind == kind]
    return [(sum(s.busy_ns for s in shares), sum(s.exposed_ns for s in shares))]


@pytest.mark.parametrize(("policy", "ahead"), [("overlap", 1), ("xla", 1), ("blocking", 0)])
def test_a_copy_from_the_host_begins_at_most_one_iteration_ahead(policy: str, ahead: int) -> None:
    (track,) = priced(offloaded(), policy).timeline.classes
    program, nodes = track.work.program, track.work.nodes
    loads = (program.op == OpClass.FROM_HOST)[nodes.row] & (program.region[nodes.row] >= 0)
    computes = track.work.stream[nodes.row] == 0
    assert loads.sum() == LAYERS
    for node in np.flatnonzero(loads).tolist():
        same = computes & (program.region[nodes.row] == program.region[nodes.row[node]])
        before = same & (nodes.instance < nodes.instance[node] - ahead)
        if before.any():
            assert track.start_ns[node] >= track.start_ns[before].max()


def test_a_chip_without_a_link_has_no_price_for_copies() -> None:
    cluster = Cluster.load("h100-dgx")
    without = cluster.model_copy(
        update={"chip": cluster.chip.model_copy(update={"host_link_bytes_per_s": None})}
    )
    with pytest.raises(FlintError, match="FL704") as raised:
        estimate(offloaded().workload, EstimateRequest(without, profile="xla-gpu"))
    assert "host_link_bytes_per_s" in str(raised.value)


def test_what_was_brought_where_it_is_already_is_no_copy() -> None:
    def step(x: jax.Array) -> jax.Array:
        return jax.device_put(x + 1, jax.memory.Space.Device) * 2

    program = flint.trace(
        flint.Step(step, (jax.ShapeDtypeStruct((64,), jnp.float32),)), {"d": 2}
    ).workload.programs[0]
    assert copied(program, OpClass.FROM_HOST) == copied(program, OpClass.TO_HOST) == 0
