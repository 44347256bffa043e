"""Attention that programs write out: recognised in each form, and nothing else is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from flint.frontends.jax_step.program import capture_jax
from flint.ir.columns import barrier_views
from flint.ir.mesh import Mesh
from flint.ir.program import Kind, Phase, Program, Row
from flint.passes.base import run_passes
from flint.passes.fusion.attention import FuseAttention
from flint.passes.partition.xla import partitioned
from flint.passes.profiles import profile
from flint.passes.rewrites.dead_code import DropDeadCode
from flint.steps.step import Step
from tests.auto_mesh import auto_mesh
from tests.program_text import Rows

BATCH, SEQ, HEADS, SIZE = 2, 64, 4, 16
MESH = auto_mesh((2,), ("data",))
QKV = (BATCH, SEQ, HEADS, SIZE)
LOCAL = BATCH // 2 * HEADS  # batch x heads of a device
PART = LOCAL * SEQ * SIZE * 2  # bytes of q, of a device
LINES = LOCAL * SEQ * 4  # bytes of a statistic of each row
PRODUCT = 2 * LOCAL * SEQ * SEQ * SIZE  # flops

Attend = Callable[..., jax.Array]


def scores_of(q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32) * SIZE**-0.5


def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    weights = jax.nn.softmax(scores_of(q, k), axis=-1).astype(q.dtype)
    return jnp.einsum("bhst,bthk->bshk", weights, v)


def selected(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    mask = jnp.arange(SEQ)[:, None] >= jnp.arange(SEQ)
    weights = jax.nn.softmax(jnp.where(mask, scores_of(q, k), -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bhst,bthk->bshk", weights, v)


def added(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    bias = jnp.where(jnp.tril(jnp.ones((SEQ, SEQ), bool)), 0.0, -1e9)
    weights = jax.nn.softmax(scores_of(q, k) + bias, axis=-1).astype(q.dtype)
    return jnp.einsum("bhst,bthk->bshk", weights, v)


def grouped(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    k, v = k[:, :, ::2], v[:, :, ::2]
    q = q.reshape(BATCH, SEQ, HEADS // 2, 2, SIZE)
    scores = jnp.einsum("bsngk,btnk->bngst", q, k).astype(jnp.float32)
    mask = jnp.arange(SEQ)[:, None] >= jnp.arange(SEQ)
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bngst,btnk->bsngk", weights, v).reshape(QKV)


def by_hand(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = scores_of(q, k)
    e = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    weights = (e / e.sum(-1, keepdims=True)).astype(q.dtype)
    return jnp.einsum("bhst,bthk->bshk", weights, v)


def captured(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Program:
    sharding = NamedSharding(MESH, P("data"))
    args = tuple(jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=sharding) for s in shapes)
    program = partitioned(capture_jax(Step(function, args), Mesh(("data",), (2,)))).program
    return DropDeadCode().apply(program)


def attentions(program: Program) -> list[Row]:
    after = FuseAttention().apply(program)
    after.verify()
    rows = (after.row(i) for i in range(len(after)))
    return [r for r in rows if "attention" in r.opcode]


def trained(attend: Attend) -> Callable[..., Any]:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(attend(q, k, v).astype(jnp.float32) ** 2)

    return jax.grad(loss, argnums=(0, 1, 2))


FORMS = {plain: "", selected: "[causal]", added: "[causal]", grouped: "[causal]", by_hand: ""}


@pytest.mark.parametrize("attend", FORMS, ids=lambda f: f.__name__)
def test_attention_forward(attend: Attend) -> None:
    (row,) = attentions(captured(attend, QKV, QKV, QKV))
    assert row.opcode == "fusion.attention" + FORMS[attend]
    assert row.dims == (LOCAL, SEQ, SEQ, SIZE)
    assert row.flops == 2 * PRODUCT
    assert row.result_bytes == PART
    assert row.operand_bytes == (2 if attend is grouped else 3) * PART


@pytest.mark.parametrize("attend", FORMS, ids=lambda f: f.__name__)
def test_attention_backward_has_five_products_and_no_scores(attend: Attend) -> None:
    program = captured(trained(attend), QKV, QKV, QKV)
    forward, backward = attentions(program)
    assert forward.opcode == "fusion.attention" + FORMS[attend]
    assert forward.result_bytes == PART + LINES
    assert backward.opcode == "fusion.attention_backward" + FORMS[attend]
    assert backward.dims == (LOCAL, SEQ, SEQ, SIZE)
    assert backward.flops == 5 * PRODUCT
    sides = 1 if attend is grouped else 2  # k and v, of half the heads or of all
    assert backward.operand_bytes == (3 + sides) * PART + LINES
    assert backward.result_bytes == (1 + sides) * PART
    after = run_passes(program, [FuseAttention(), *profile("xla-gpu").kernels])
    square = LOCAL * SEQ * SEQ
    kernels = (after.row(i) for i in range(len(after)))
    assert not [r for r in kernels if r.kind is Kind.COMPUTE and r.result_bytes >= 2 * square * 2]


def looped(attend: Attend, policy: Any) -> Callable[..., Any]:
    """Three layers in a loop; the backward pass has what `policy` keeps."""
    block = jax.checkpoint(lambda x: x + attend(x, x, x), policy=policy)

    def loss(x: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, _: (block(x), None), x, length=3)
        return jnp.sum(x.astype(jnp.float32) ** 2)

    return jax.grad(loss)


@pytest.mark.parametrize("saved", ["dots_saveable", "everything_saveable"])
def test_what_passes_a_barrier_is_part_of_attention(saved: str) -> None:
    """Layers that are written out: scores that the forward pass saved go through an optimization barrier."""
    layer = jax.checkpoint(
        lambda x: x + selected(x, x, x), policy=getattr(jax.checkpoint_policies, saved)
    )
    program = captured(jax.grad(lambda x: jnp.sum(layer(layer(x)).astype(jnp.float32) ** 2)), QKV)
    assert barrier_views(program).any()
    rows = [r.opcode for r in attentions(program)]
    assert rows == ["fusion.attention[causal]"] * 2 + ["fusion.attention_backward[causal]"] * 2
    after = FuseAttention().apply(program)
    assert barrier_views(after).any()  # what the kernels do not hold still waits


def test_recomputed_attention_in_a_loop_runs_forward_again() -> None:
    keep = jax.checkpoint_policies.nothing_saveable
    program = captured(looped(selected, keep), QKV)
    rows = attentions(program)
    assert rows[0].opcode == "fusion.attention[causal]"
    assert rows[-1].opcode == "fusion.attention_backward[causal]"
    assert rows[-1].phase is Phase.BACKWARD


def test_weights_that_a_loop_saved_are_saved_no_more() -> None:
    keep = jax.checkpoint_policies.everything_saveable
    program = captured(looped(selected, keep), QKV)
    after = FuseAttention().apply(program)
    after.verify()
    forward, backward = attentions(program)
    assert (forward.region, backward.region) == (0, 1)
    square = LOCAL * SEQ * SEQ
    wide = [
        r.opcode
        for r in map(after.row, range(len(after)))
        if r.kind in (Kind.COMPUTE, Kind.VALUE) and r.shape and _elements(r) >= square
    ]
    before = [r for r in map(program.row, range(len(program))) if _elements(r) >= 3 * square]
    assert before
    assert not wide


def _elements(row: Row) -> int:
    return functools.reduce(lambda a, b: a * b, row.shape, 1)


def softmax_rows(b: Rows, scores: int) -> int:
    """exp / sum over the last dimension of 4 x 64."""
    wide = {"shape": (4, 64), "result_bytes": 1024, "flops": 256}
    e = b.op("exponential", scores, **wide)
    total = b.op("reduce", e, shape=(4,), result_bytes=16, dims=(1, 4, 1, 64), flops=256)
    return b.op("divide", e, b.op("broadcast_in_dim", total, **{**wide, "flops": 0}), **wide)


def products(b: Rows) -> tuple[int, dict[str, Any]]:
    dot = {"shape": (4, 64), "result_bytes": 1024, "dims": (1, 4, 64, 8), "flops": 4096}
    return b.op("dot_general", b.parameter(), b.parameter(), **dot), dot


def test_attention_behind_an_update_in_place_reads_the_whole_cache() -> None:
    def decode(q: jax.Array, k: jax.Array, cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        cache = jax.lax.dynamic_update_slice_in_dim(cache, k, SEQ - 1, 1)
        return plain(q, cache, cache), cache

    new = (BATCH, 1, HEADS, SIZE)
    program = captured(decode, new, new, QKV)
    (row,) = attentions(program)
    assert row.operand_bytes == PART + PART // SEQ


def test_scores_that_leave_the_device_are_no_attention() -> None:
    b = Rows()
    scores, dot = products(b)
    weights = softmax_rows(b, b.all_reduce(scores, result_bytes=1024, shape=(4, 64)))
    b.result(b.op("dot_general", weights, b.parameter(), **dot))
    assert attentions(b.build()) == []


def test_weights_that_the_step_returns_are_no_attention() -> None:
    b = Rows()
    scores, dot = products(b)
    weights = softmax_rows(b, scores)
    b.result(b.op("dot_general", weights, b.parameter(), **dot), weights)
    assert attentions(b.build()) == []


def test_a_router_is_no_attention() -> None:
    b = Rows()
    scores, dot = products(b)
    weights = softmax_rows(b, scores)
    b.result(b.op("dot_general", b.op("sort", weights), b.parameter(), **dot))
    assert attentions(b.build()) == []


def test_a_mask_that_is_an_argument_is_read() -> None:
    b = Rows()
    scores, dot = products(b)
    mask = b.parameter(shape=(4, 64), result_bytes=256, dtype="bool")
    masked = b.op("select", mask, scores, shape=(4, 64), result_bytes=1024, flops=256)
    b.result(b.op("dot_general", softmax_rows(b, masked), b.parameter(), **dot))
    (row,) = attentions(b.build())
    assert row.opcode == "fusion.attention"
    assert row.operand_bytes == 64 * 3 + 256


def test_softmax_operators_of_pytorch_are_recognised() -> None:
    b = Rows()
    wide = {"shape": (2, 8, 8), "result_bytes": 256}
    dot = {"dims": (2, 8, 8, 4), "flops": 1024}
    q, k, v = (b.parameter() for _ in range(3))
    scores = b.op("aten.bmm", q, k, **wide, **dot)
    scaled = b.op("aten.mul", scores, **wide)
    weights = b.op("aten._softmax", scaled, dims=(1, 16, 1, 8), **wide)
    b.result(b.op("aten.bmm", weights, v, shape=(2, 8, 4), dims=(2, 8, 4, 8), flops=1024))
    (row,) = attentions(b.build())
    assert (row.dims, row.flops) == ((2, 8, 8, 4), 2048)
    assert (row.operand_bytes, row.result_bytes) == (192, 64)
