"""Attention cut apart by a pipeline: the units of a stage have flash kernels both ways, and no scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import flint
from flint.backends.cost.estimate import Estimate, estimate
from flint.cluster.models import Cluster
from flint.ir.program import Kind
from flint.ir.workload import Workload
from flint.passes.profiles import kernels_for
from flint.requests.estimate import EstimateRequest

SEQ, HEADS, KEYS, SIZE, LAYERS, MICRO = 256, 4, 2, 16, 4, 4
WIDTH = HEADS * SIZE
#: Elements of the scores of one microbatch on a device.
SCORES = 1 * HEADS * SEQ * SEQ


def attend(x: jax.Array) -> jax.Array:
    q = x.reshape(*x.shape[:2], KEYS, HEADS // KEYS, SIZE)
    k = v = q[:, :, :, 0]
    scores = jnp.einsum("bsngk,btnk->bngst", q, k).astype(jnp.float32) / math.sqrt(SIZE)
    mask = jnp.arange(SEQ)[:, None] >= jnp.arange(SEQ)
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1).astype(x.dtype)
    return jnp.einsum("bngst,btnk->bsngk", weights, v).reshape(x.shape)


def odd(x: jax.Array) -> jax.Array:
    """Scores that leave the attention: a sum of all of them is added to what it returns."""
    q = x.reshape(*x.shape[:2], HEADS, SIZE)
    scores = jnp.einsum("bshk,bthk->bhst", q, q).astype(jnp.float32)
    weights = jax.nn.softmax(jnp.sort(scores, axis=-1), axis=-1).astype(x.dtype)
    return jnp.einsum("bhst,bthk->bshk", weights, q).reshape(x.shape)


@cache
def pipelined(form: Callable[[jax.Array], jax.Array], scan: bool, schedule: str) -> Workload:
    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return x + attend_with(x @ w)

    attend_with = form

    def loss(params, x: jax.Array) -> jax.Array:
        with jax.named_scope("layers"):
            if scan:
                x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, params["layers"])
            else:
                for number, w in enumerate(params["layers"]):
                    with jax.named_scope(str(number)):
                        x = jax.jit(layer)(x, w)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    one = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16)
    stack = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.bfloat16)
    pipeline = flint.Pipeline(
        model=loss,
        params={"layers": stack if scan else [one] * LAYERS},
        inputs=(jax.ShapeDtypeStruct((MICRO, SEQ, WIDTH), jnp.bfloat16),),
        backward=True,
        cut="layers",
        microbatches=MICRO,
        schedule=schedule,
        boundary=P(),
    )
    return flint.trace(pipeline, {"pipe": 2}).workload


def estimated(workload: Workload, profile: str = "xla-gpu+flash") -> Estimate:
    return estimate(workload, EstimateRequest(Cluster.load("h100-dgx"), profile=profile))


@pytest.mark.parametrize(("scan", "schedule"), [(True, "1f1b"), (False, "1f1b"), (True, "zb-h1")])
def test_a_stage_keeps_no_scores_and_runs_flash_kernels_both_ways(
    scan: bool, schedule: str
) -> None:
    workload = pipelined(attend, scan, schedule)
    for program in kernels_for(workload, "xla-gpu+flash").programs:
        program.verify()
        count = {"forward": 0, "backward": 0}
        for row, opcode in enumerate(program.opcodes[o] for o in program.opcode):
            if "attention" in opcode:
                assert "[causal]" in opcode
                way = "backward" if "backward" in opcode else "forward"
                count[way] += int(program.trips[row])
        assert count == {"forward": MICRO * LAYERS // 2, "backward": MICRO * LAYERS // 2}
        wide = [
            program.row(r)
            for r in range(len(program))
            if program.kind[r] in (Kind.COMPUTE, Kind.VALUE)
            and math.prod(program.shapes[program.shape[r]]) % SCORES == 0
            and program.shapes[program.shape[r]][-1:] == (SEQ,)
        ]
        assert not wide
    plain, flash = estimated(workload, "xla-gpu"), estimated(workload)
    first, fused = plain.classes[0].memory.breakdown, flash.classes[0].memory.breakdown
    scores = SCORES * (2 + 4) * LAYERS // 2  # bf16 weights and f32 exponentials, a microbatch
    stored = ("pipeline_stash", "saved_activations")
    assert sum(first.get(k, 0) - fused.get(k, 0) for k in stored) >= scores
    assert not [n for n in flash.notes if "attention" in n]


def test_attention_that_is_not_recognised_gives_a_note() -> None:
    found = estimated(pipelined(odd, True, "1f1b"))
    (note,) = [n for n in found.notes if "attention" in n]
    assert "8 of 8 attentions" in note and "scores are stored" in note
    assert not [n for n in estimated(pipelined(odd, True, "1f1b"), "xla-gpu").notes if "atten" in n]
