"""Stages of JAX pipelines as programs: ports, shardings, phases and communication.

The model is tests/jax_pipelines.py on pipe=2, data=2, model=2: a microbatch has 2 sequences of 16
tokens, one for each data rank; float32 takes 4 bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import flint
from flint.frontends.jax_pipeline import capture_jax_pipeline
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase, Program
from flint.passes.pipeline.split.parts import PartitionedBody, partition_body
from flint.steps.captured import Body, CapturedPipeline, Port, Role
from tests.jax_pipelines import (
    BATCH,
    HIDDEN,
    LENGTH,
    MESH,
    VOCABULARY,
    WIDTH,
    constrain,
    parts,
    shaped,
)
from tests.jax_pipelines import pipeline as decoder

DEEP = Mesh(("pipe", "data", "model"), (4, 2, 2))


@pytest.fixture(scope="module")
def trained() -> CapturedPipeline:
    """The decoder in two stages with tied tables, AdamW and a clipped norm."""
    tied = [("embed['table']", "head['table']")]
    given = decoder(optimizer="adamw", clip_norm=1.0, tied=tied, gradient_dtype="float32")
    return capture_jax_pipeline(given, MESH, "model.py")


@pytest.fixture(scope="module")
def steps(trained: CapturedPipeline) -> list[PartitionedBody]:
    """Its two stages, for one device."""
    return [partition_body(body.step) for body in trained.bodies]


def ports(body: Body, *roles: Role) -> tuple[list[str], list[str]]:
    """Names of arguments and results of some roles."""
    return (
        [p.name for p in body.arguments if p.role in roles],
        [p.name for p in body.results if p.role in roles],
    )


def communication(program: Program) -> Counter[tuple[Collective, str, int, Phase]]:
    """How often each (kind, axes, input bytes, phase) runs."""
    found: Counter[tuple[Collective, str, int, Phase]] = Counter()
    for row in map(program.row, range(len(program))):
        if row.kind is Kind.COLLECTIVE:
            key = (row.collective, str(row.group), row.comm_bytes, row.phase)
            found[key] += int(program.trips[row.number])
    return found


def test_stages_and_labels(trained: CapturedPipeline) -> None:
    """Layers are split evenly, with the parts before and after."""
    assert trained.stages == (0, 1) and trained.labels == ("embed, layers 0-1", "layers 2-3, head")
    assert (trained.schedule, trained.microbatches, trained.axis) == ("1f1b", 4, "pipe")
    assert trained.tied == (((0, "embed['table']"), (1, "head['table']")),)
    assert trained.name == "layer" and trained.source == "model.py"


def test_ports_of_steps(trained: CapturedPipeline) -> None:
    """The first stage reads tokens, the last one targets; gradients follow the parameters."""
    first, last = (b.step for b in trained.bodies)
    names = ["embed['table']", "layers['down']", "layers['scale']", "layers['up']"]
    assert first.arguments == (
        *(Port(Role.PARAMETER, n) for n in names),
        Port(Role.BATCH, "tokens"),
        Port(Role.COTANGENT),
    )
    assert first.results == (Port(Role.OUTPUT), *(Port(Role.GRADIENT, n) for n in names))
    assert ports(last, Role.BATCH) == (["targets"], [])
    roles = [p.role for p in last.arguments[-2:]]
    assert roles == [Role.INPUT, Role.COTANGENT]
    assert [p.role for p in last.results[:2]] == [Role.LOSS, Role.INPUT_GRADIENT]
    assert ports(last, Role.GRADIENT)[1] == ports(last, Role.PARAMETER)[0]


@pytest.mark.parametrize("stage", [0, 1])
def test_gradients_are_sharded_as_their_parameters(
    steps: list[PartitionedBody], stage: int
) -> None:
    """Local shapes agree; so do those of the boundary, which is sharded over data."""
    body = steps[stage]
    body.program.verify()
    at = dict(zip(body.arguments, body.argument_rows, strict=True))
    shape = {p: body.program.row(r).shape for p, r in at.items()}
    result = dict(zip(body.results, body.result_rows, strict=True))
    for port, row in result.items():
        local = body.program.row(row).shape
        if port.role is Role.GRADIENT:
            assert local == shape[Port(Role.PARAMETER, port.name)]
        elif port.role is not Role.LOSS:
            assert local == (BATCH // 4 // 2, LENGTH, WIDTH)
    assert shape[Port(Role.PARAMETER, "layers['up']")] == (2, WIDTH, HIDDEN // 2)
    other = Role.COTANGENT if stage == 0 else Role.INPUT
    assert shape[Port(other)] == (BATCH // 4 // 2, LENGTH, WIDTH)
    assert shape[Port(Role.COTANGENT)] == (() if stage else (1, LENGTH, WIDTH))


def test_phases_and_names(steps: list[PartitionedBody]) -> None:
    """Products of matrices run forward, again (the layers are checkpointed) and backward."""
    program = steps[0].program
    products = Counter(
        (row.phase, row.scope)
        for row in map(program.row, range(len(program)))
        if row.op is OpClass.MATMUL
    )
    assert products == {
        (Phase.FORWARD, "layers"): 2,
        (Phase.REMAT, "layers"): 1,  # the last product of a layer is not needed again
        (Phase.BACKWARD, "layers"): 4,
    }
    names = [program.row(i).name for i in range(6)]
    assert names[0] == "embed['table']" and names[3] == "layers['up']"
    assert names[4:] == ["tokens", "cotangent 0"]
    places = {program.row(i).location.split(":")[0] for i in range(len(program))}
    assert places == {"", "jax_pipelines.py"}


def test_communication_of_a_stage(steps: list[PartitionedBody]) -> None:
    """Tensor parallelism: per layer one all-reduce each way; gradients are reduced over data."""
    program = steps[0].program
    hidden = LENGTH * WIDTH * 4
    matrix, table = WIDTH * HIDDEN // 2 * 4, VOCABULARY // 2 * WIDTH * 4
    assert communication(program) == {
        (Collective.ALL_REDUCE, "model", hidden, Phase.FORWARD): 2 + 1,  # and the embedding
        (Collective.ALL_REDUCE, "model", hidden, Phase.BACKWARD): 2,
        (Collective.ALL_REDUCE, "data", matrix, Phase.BACKWARD): 2 * 2,
        (Collective.ALL_REDUCE, "data", WIDTH * 4, Phase.BACKWARD): 2,
        (Collective.ALL_REDUCE, "data", table, Phase.BACKWARD): 1,
    }


def test_update_of_a_stage(trained: CapturedPipeline) -> None:
    """AdamW holds two moments sharded as the parameters and a count; memory is reused."""
    bodies = trained.bodies[0]
    assert bodies.update is not None and bodies.norm is not None
    names = ports(bodies.step, Role.PARAMETER)[0]
    states = ["state['count']"] + [f"state['{m}'][\"{n}\"]" for m in "mv" for n in names]
    assert ports(bodies.update, Role.PARAMETER) == (names, names)
    assert ports(bodies.update, Role.STATE) == (states, states)
    assert ports(bodies.update, Role.GRADIENT) == (names, [])
    assert bodies.update.arguments[-1] == Port(Role.SQUARED_NORM)
    assert bodies.norm.arguments == tuple(Port(Role.GRADIENT, n) for n in names)
    body = partition_body(bodies.update)
    body.program.verify()
    at = {p: body.program.row(r) for p, r in zip(body.arguments, body.argument_rows, strict=True)}
    moment = at[Port(Role.STATE, "state['m'][\"layers['up']\"]")]
    assert moment.shape == (2, WIDTH, HIDDEN // 2) and moment.dtype == "float32"
    assert not communication(body.program)
    kept = {p for p, row in at.items() if row.flags & Flag.DONATED}
    assert kept == set(body.results)


def test_norm_of_a_stage(trained: CapturedPipeline) -> None:
    """Squares are summed over the axis that shards a parameter, once for each such parameter."""
    norm = trained.bodies[0].norm
    assert norm is not None
    body = partition_body(norm)
    body.program.verify()
    assert body.program.row(body.result_rows[0]).shape == ()
    found = communication(body.program)
    assert {(k[0], k[1], k[2]): n for k, n in found.items()} == {
        (Collective.ALL_REDUCE, "model", 4): 3  # the scales are whole on each rank
    }


def test_what_is_sent_in_parts_is_gathered_once_in_a_stage() -> None:
    """Stages send half of a sequence; with `ends` two layers share one gathering of it."""

    def gathered(ends: Any) -> int:
        given = decoder(stages=parts(ends=ends), boundary=P("data", "model", None))
        step = capture_jax_pipeline(given, MESH, "model.py").bodies[1].step
        found = communication(partition_body(step).program)
        size = LENGTH // 2 * WIDTH * 4
        return found[Collective.ALL_GATHER, "model", size, Phase.FORWARD]

    assert gathered(None) == 5  # each layer, normalised and for its sum, and the head
    assert gathered(lambda x: constrain(x, "data", None, None)) == 1


def test_equal_stages_are_captured_once() -> None:
    """Of six stages of one layer, the middle ones are one; chunks make virtual stages."""
    given = decoder(DEEP, stages=parts(DEEP, count=8), chunks=2, schedule="interleaved-1f1b")
    found = capture_jax_pipeline(given, DEEP)
    assert found.stages == (0, 1, 1, 1, 1, 1, 1, 2) and len(found.bodies) == 3
    assert found.labels[3] == "layers 3" and found.chunks == 2
    assert all(b.update is None and b.norm is None for b in found.bodies)


def test_one_stage_for_each_position() -> None:
    """Stages of the same function and shapes are one; tied names are those of the ports."""
    square = {"w": shaped((WIDTH, WIDTH), None, "model", mesh=DEEP)}

    def block(params: Any, x: Any) -> Any:
        return jnp.tanh(x @ params["w"])

    given = flint.Pipeline(
        stages=[flint.Stage(block, square) for _ in range(4)],
        inputs=(shaped((BATCH, WIDTH), "data", mesh=DEEP),),
        loss=lambda y: jnp.mean(y * y),
        microbatches=2,
        tied=[("stage1['w']", "stage2['w']")],
    )
    found = capture_jax_pipeline(given, DEEP)
    assert found.stages == (0, 1, 1, 2)
    assert found.labels == ("stage0", "stage1", "stage2", "stage3")
    assert found.tied == (((1, "stage1['w']"), (2, "stage1['w']")),)
    assert [p.role for p in found.bodies[0].step.arguments] == [
        Role.PARAMETER, Role.BATCH, Role.COTANGENT
    ]  # fmt: skip


def test_inference() -> None:
    """Without a loss there is no backward pass and nothing is differentiated."""
    found = capture_jax_pipeline(decoder(loss=None, targets=()), MESH)
    assert found.schedule == "forward"
    assert [p.role for p in found.bodies[1].step.results] == [Role.OUTPUT]
    assert ports(found.bodies[1].step, Role.COTANGENT, Role.BATCH) == ([], [])
    program = partition_body(found.bodies[1].step).program
    assert {p for p, _ in Counter(program.phase.tolist()).items()} == {int(Phase.FORWARD)}


def test_capture_is_the_same_each_time() -> None:
    """Modules are equal byte for byte."""
    one, other = (capture_jax_pipeline(decoder(optimizer="sgd"), MESH) for _ in range(2))
    assert [b.step.captured.module for b in one.bodies] == [
        b.step.captured.module for b in other.bodies
    ]
    assert one.labels == other.labels and one.stages == other.stages


def test_boundary_follows_the_inputs() -> None:
    """Without `boundary`, dimension 0 is sharded as that of the inputs."""
    found = capture_jax_pipeline(decoder(boundary=None), MESH)
    body = partition_body(found.bodies[0].step)
    row = body.program.row(body.result_rows[0])
    assert row.shape == (1, LENGTH, WIDTH)
    sequence = capture_jax_pipeline(decoder(boundary=P("data", "model", None)), MESH)
    body = partition_body(sequence.bodies[0].step)
    assert body.program.row(body.result_rows[0]).shape == (1, LENGTH // 2, WIDTH)


def test_users_optimizer() -> None:
    """State of a user's optimizer is sharded as the parameters that it is like."""

    def init(params: Any) -> Any:
        return [jax.tree.map(jnp.zeros_like, params), jnp.zeros(7)]

    def update(params: Any, gradients: Any, state: Any) -> Any:
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state[0], gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), [momentum, state[1]]

    found = capture_jax_pipeline(decoder(optimizer=(init, update)), MESH)
    body = found.bodies[0].update
    assert body is not None
    whole = partition_body(body)
    whole.program.verify()
    at = {p.name: whole.program.row(r).shape for p, r in _of(whole, Role.STATE)}
    assert at == {
        "state[0][\"embed['table']\"]": (VOCABULARY // 2, WIDTH),
        "state[0][\"layers['down']\"]": (2, HIDDEN // 2, WIDTH),
        "state[0][\"layers['scale']\"]": (2, WIDTH),
        "state[0][\"layers['up']\"]": (2, WIDTH, HIDDEN // 2),
        "state[1]": (7,),
    }


def test_state_described_by_shapes() -> None:
    """An `init` may describe state instead of making it, with shardings of its own."""

    def init(params: Any) -> Any:
        one = {n: jax.ShapeDtypeStruct(p.shape, jnp.bfloat16) for n, p in params.items()}
        return {"one": one, "rows": shaped((8, 2), "data", dtype=jnp.bfloat16)}

    found = capture_jax_pipeline(decoder(optimizer=(init, lambda p, g, s: (p, s))), MESH)
    body = found.bodies[0].update
    assert body is not None
    whole = partition_body(body)
    at = {p.name: whole.program.row(r) for p, r in _of(whole, Role.STATE)}
    assert at["state['rows']"].shape == (4, 2)
    table = at["state['one'][\"embed['table']\"]"]
    assert (table.shape, table.dtype) == ((VOCABULARY // 2, WIDTH), "bfloat16")
    # What is handed on unchanged is still a result with its own port.
    assert len(whole.results) == len(whole.result_rows) == 9


def test_one_stage() -> None:
    """A pipeline of one stage reads tokens and targets, under different names where they agree."""
    mesh = Mesh(("pipe", "data", "model"), (1, 2, 2))
    given = decoder(mesh, loss=lambda y, tokens: jnp.mean(y * tokens[..., None]))
    found = capture_jax_pipeline(given, mesh)
    assert found.labels == ("embed, layers 0-3, head",)
    step = found.bodies[0].step
    assert ports(step, Role.BATCH)[0] == ["tokens", "target_tokens"]
    assert [p.role for p in step.results[:2]] == [Role.LOSS, Role.GRADIENT]


@pytest.mark.parametrize(("microbatches", "dtype"), [(1, ""), (1, "float32"), (2, "")])
def test_gradients_wait_for_other_microbatches_only(microbatches: int, dtype: str) -> None:
    """With one, and no other type for sums, they are reduced between products, not after all."""
    given = decoder(microbatches=microbatches, gradient_dtype=dtype)
    trace = flint.trace(given, MESH)
    for program in trace.workload.programs:
        sums = (program.kind == Kind.COLLECTIVE) & (program.phase == Phase.BACKWARD)
        over_data = np.array([str(g) == "data" for g in program.groups])[program.group]
        last = np.flatnonzero((program.dims[:, 2] > 1) & (program.phase == Phase.BACKWARD)).max()
        early = np.flatnonzero(sums & over_data) < last
        assert early.any() == (microbatches == 1 and not dtype)
    assert not trace.warnings


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_values_that_the_other_stage_does_not_read_are_not_sent(schedule: str) -> None:
    """The last stage reads no mask, and the first has no use for the mask's gradient."""

    def product(params: Any, x: Any) -> Any:
        return x @ params["w"], x * 2.0

    def masked(params: Any, values: Any) -> Any:
        return (values[0] * values[1]) @ params["w"], values[1]

    def last(params: Any, values: Any) -> Any:
        return (values[0] @ params["w"]).mean()

    weights = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32)}
    given = flint.Pipeline(
        stages=[flint.Stage(fn, weights) for fn in (product, masked, last)],
        inputs=[jax.ShapeDtypeStruct((16, 8), jnp.float32)],
        microbatches=2,
        crossing=2,
        schedule=schedule,
        backward=True,
    )
    trace = flint.trace(given, "pipe=3")
    sent = []
    for program in trace.workload.programs:
        found: Counter[tuple[Kind, int]] = Counter()
        for row in map(program.row, range(len(program))):
            found[row.kind, row.channel] += int(program.trips[row.number])
        sent.append({k: n for k, n in found.items() if k[0] in (Kind.SEND, Kind.RECV)})
    assert sent == [
        {(Kind.SEND, 0): 2, (Kind.SEND, 2): 2, (Kind.RECV, 1): 2},
        {
            (Kind.RECV, 0): 2,
            (Kind.RECV, 2): 2,
            (Kind.SEND, 0): 2,
            (Kind.RECV, 1): 2,
            (Kind.RECV, 3): 2,
            (Kind.SEND, 1): 2,
        },
        {(Kind.RECV, 0): 2, (Kind.SEND, 1): 2, (Kind.SEND, 3): 2},
    ]


def _products(*, trains: bool, schedule: str) -> flint.Pipeline:
    def product(params: Any, x: Any) -> Any:
        return x @ params["w"]

    def last(params: Any, x: Any) -> Any:
        return (x @ params["w"]).mean() if trains else x @ params["w"]

    weights = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32)}
    return flint.Pipeline(
        stages=[flint.Stage(fn, weights) for fn in (product, last)],
        inputs=[jax.ShapeDtypeStruct((16, 8), jnp.float32)],
        microbatches=4,
        schedule=schedule,
        backward=trains,
    )


def test_a_schedule_of_forward_passes_does_not_train() -> None:
    """Rather than dropping the backward passes."""
    with pytest.raises(flint.FlintError) as error:
        flint.trace(_products(trains=True, schedule="forward"), "pipe=2")
    assert error.value.code == "FL246" and "the step trains" in error.value.message


def test_inference_in_a_schedule_of_training_holds_nothing() -> None:
    """Its backward passes do not take place."""
    trace = flint.trace(_products(trains=False, schedule="gpipe"), "pipe=2")
    positions = trace.workload.metadata["pipeline"]["positions"]
    assert [stage["in_flight"] for (stage,) in positions] == [1, 1]


def _of_two_stages(block: Any) -> flint.Pipeline:
    return flint.Pipeline(
        stages=[flint.Stage(block, {"w": shaped((WIDTH, WIDTH), None, "model")}) for _ in range(2)],
        inputs=(shaped((BATCH, WIDTH), "data"),),
        microbatches=2,
    )


def test_a_stage_lists_the_devices_of_its_position() -> None:
    """XLA sees one position of four devices; ranks and axes are those of all eight."""

    def block(params: Any, x: Any) -> Any:
        def shifted(x: Any) -> Any:
            return jax.lax.ppermute(jax.lax.psum(x, "data"), "data", [(0, 1)])

        over = jax.shard_map(shifted, mesh=abstract_mesh(MESH), in_specs=P("data"),
                             out_specs=P("data"), axis_names={"data"}, check_vma=False)  # fmt: skip
        return jnp.tanh(over(x) @ params["w"])

    trace = flint.trace(_of_two_stages(block), MESH)
    for program in trace.workload.programs:
        rows = [r for r in map(program.row, range(len(program))) if r.kind > Kind.COMPUTE]
        found = {(r.opcode, str(r.group or r.route)) for r in rows if r.opcode.startswith("hlo")}
        assert ("hlo.all-reduce", "data") in found
        assert ("hlo.collective-permute", "data+1 (no wrap)") in found
    assert trace.workload.metadata["partitioner"] == "xla" and not trace.warnings


def test_methods_of_one_object_are_one_function() -> None:
    """A bound method is a new object each time that it is looked up."""

    class Model:
        def block(self, w: Any, x: Any) -> Any:
            return jnp.tanh(x @ w)

    model, weight = Model(), shaped((WIDTH, WIDTH), mesh=DEEP)
    given = flint.Pipeline(
        stages=[flint.Stage(model.block, weight) for _ in range(4)],
        inputs=[shaped((BATCH, WIDTH), "data", mesh=DEEP)],
    )
    assert capture_jax_pipeline(given, DEEP).stages == (0, 1, 1, 2)


def _of(body: Any, role: Role) -> list[tuple[Port, int]]:
    pairs = zip(body.arguments, body.argument_rows, strict=True)
    return [(p, r) for p, r in pairs if p.role is role]
