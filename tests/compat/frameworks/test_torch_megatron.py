"""Megatron-core with Transformer Engine's layers, which are not installed: totals counted by hand."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("megatron.core", reason="pip install --no-deps megatron-core einops")
if importlib.util.find_spec("transformer_engine") is not None:
    pytest.skip("Transformer Engine is installed", allow_module_level=True)

from flint.frontends.torch_world.program.build import build_program
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import record
from flint.ir.mesh import Mesh
from flint.ir.op_class import ATTENTION, OpClass
from flint.ir.program import Collective, Kind, Row

SCRIPT = Path(__file__).parents[2] / "torch_programs" / "megatron_engine.py"
LAYERS, HIDDEN, HEADS, LENGTH, VOCABULARY, EXPERTS = 2, 512, 8, 1024, 4096, 4
SPLIT = 2


def rows(*options: str) -> list[Row]:
    job = Job(rank=0, world_size=4, script=str(SCRIPT), argv=options, steps=2)
    (found,) = record([job])
    program = build_program(found, Mesh(("data", "model"), (2, 2))).program
    return [program.row(i) for i in range(len(program))]


def product(n: int, k: int, m: int = LENGTH) -> int:
    """FLOPs of a product, forward and backward."""
    return 3 * 2 * m * n * k


def attention() -> int:
    """Queries of all heads, 4 products of the square forward, 10 backward."""
    size = HIDDEN // HEADS
    scores = HEADS // SPLIT * LENGTH * LENGTH
    return (4 + 10) * scores * size


def outside() -> int:
    return product(VOCABULARY // SPLIT, HIDDEN)


def attention_layer() -> int:
    """Queries and half as many keys and values; what they make."""
    return product(2 * HIDDEN // SPLIT, HIDDEN) + product(HIDDEN, HIDDEN // SPLIT) + attention()


def multiplied(found: list[Row]) -> int:
    return sum(r.flops for r in found if r.op in ATTENTION | {OpClass.MATMUL})


def test_sequence_parallel_layers_and_the_distributed_optimizer() -> None:
    found = rows()
    inner = 4 * HIDDEN // SPLIT
    mlp = product(2 * inner, HIDDEN) + product(HIDDEN, inner)
    # sums that gradients of weights are added to: one more for each element of a weight
    weights = LAYERS * (HIDDEN * HIDDEN // SPLIT * 3 + 3 * inner * HIDDEN)
    weights += VOCABULARY // SPLIT * HIDDEN
    assert multiplied(found) == LAYERS * (attention_layer() + mlp) + outside() + weights
    count = Counter(
        (r.collective, r.group.axes[0].name) for r in found if r.kind is Kind.COLLECTIVE
    )
    # forward: two layers gather before and scatter after each half, the ends once;
    # backward: gradients the other way, and what was gathered forward again
    assert count[Collective.ALL_GATHER, "model"] == 2 * LAYERS + 1 + 4 * LAYERS + 2
    assert count[Collective.REDUCE_SCATTER, "model"] == 2 * LAYERS + 1 + 2 * LAYERS + 1
    assert count[Collective.ALL_GATHER, "data"] == count[Collective.REDUCE_SCATTER, "data"] == 1
    assert not any(r.flags & 1 for r in found)  # everything has a price


def test_experts_on_two_ranks() -> None:
    found = rows("--experts")
    mine, each = LENGTH // SPLIT, 2 * HIDDEN
    routed = 2 * mine  # two experts for each token, balanced
    experts = product(2 * each, HIDDEN, routed) + product(HIDDEN, each, routed)
    router = product(EXPERTS, HIDDEN, mine)
    products = LAYERS * (attention_layer() + experts + router) + outside()
    weights = LAYERS * (HIDDEN * HIDDEN // SPLIT * 3 + EXPERTS // 2 * 3 * each * HIDDEN)
    weights += VOCABULARY // SPLIT * HIDDEN
    assert multiplied(found) == products + weights
    moved = [r for r in found if r.collective is Collective.ALL_TO_ALL]
    rows_moved = [r for r in moved if r.shape and r.shape[-1] == HIDDEN]
    assert len(rows_moved) == 4 * LAYERS  # there and back, forward and backward
    assert {r.comm_bytes for r in rows_moved} == {routed * HIDDEN * 2}
