"""Llama-3-8B from PyTorch, both ways in, against counting by hand: 59.303 TFLOP on every device.

Mesh 64x8, one sequence of 8192 tokens for each data-parallel rank, no recomputation. What is
counted by hand is what test_llama_accounting.py finds in the JAX example. Attention is one kernel
forward, of 2 products, and one backward: flash attention computes the scores again there, so that
its 5 products stand for the 4 that gradients need.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

from flint.frontends.model_file import Target, importable, load_step
from flint.ir.program import Collective, Kind, Phase, Program
from flint.tracing import trace_script, trace_step
from tests.oracle.test_llama_accounting import gemms_by_hand

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "llama-collectives.md"
MESH, MODEL_RANKS, LAYERS = "data=64,model=8", 8, 32

pytestmark = pytest.mark.long


@cache
def annotated(parallel: str) -> Program:
    """The first way in: one device and shardings."""
    target = Target(EXAMPLES / "torch_llama.py")
    with importable(EXAMPLES):
        loaded = load_step(target, MESH, settings={"parallel": parallel})
        return trace_step(loaded.step, loaded.mesh).program


@cache
def distributed(script: str, mesh: str, *arguments: str) -> Program:
    """The second way in: the script as rank 0 of the world."""
    return trace_script(EXAMPLES / script, mesh, arguments).workload.program_of(0)


def program(route: str) -> Program:
    if route == "distributed":
        return distributed("torch_llama.py", MESH, "--tp", str(MODEL_RANKS))
    return annotated("fsdp+tp+sp" if route == "annotated, sequence parallel" else "fsdp+tp")


def opcodes(p: Program) -> np.ndarray:
    return np.array(p.opcodes)[p.opcode]


def attention_kernels(p: Program) -> Counter[tuple[Phase, int]]:
    """Phase and flops of each kernel of attention -> how often it runs in a step."""
    found: Counter[tuple[Phase, int]] = Counter()
    for row in np.flatnonzero(["attention" in name for name in opcodes(p)]):
        if p.kind[row] == Kind.COMPUTE and p.flops[row]:
            found[Phase(p.phase[row]), int(p.flops[row])] += int(p.trips[row])
    return found


def linear_products(p: Program) -> Counter[int]:
    """Flops of each product of matrices outside of attention -> how often it runs in a step."""
    found: Counter[int] = Counter()
    is_product = (p.dims[:, 2] > 1) & (p.dims[:, 3] > 1)
    is_attention = np.array(["attention" in name for name in opcodes(p)])
    for row in np.flatnonzero(is_product & ~is_attention):
        found[int(p.flops[row])] += int(p.trips[row])
    return found


@pytest.mark.parametrize("route", ["annotated", "annotated, sequence parallel", "distributed"])
def test_products_are_those_counted_by_hand(route: str) -> None:
    p = program(route)
    linear, attention = gemms_by_hand(MODEL_RANKS)
    assert linear_products(p) == linear
    assert linear.total() == 675
    [(one_product, times)] = attention.items()
    assert times == 6 * LAYERS
    assert attention_kernels(p) == {
        (Phase.FORWARD, 2 * one_product): LAYERS,
        (Phase.BACKWARD, 5 * one_product): LAYERS,
    }
    forward_and_backward = LAYERS * (2 + 4) * one_product
    total = sum(flops * count for flops, count in linear.items()) + forward_and_backward
    assert total == 59_302_760_939_520


def collectives(p: Program) -> Counter[tuple[Collective, str]]:
    found: Counter[tuple[Collective, str]] = Counter()
    for row in np.flatnonzero(p.kind == Kind.COLLECTIVE):
        r = p.row(row)
        found[r.collective, str(r.group)] += int(p.trips[row])
    return found


def by_kind(p: Program) -> dict[str, int]:
    """All-reduces, all-gathers and reduce-scatters in a step, over whatever axis."""
    found: Counter[str] = Counter()
    for (kind, _), count in collectives(p).items():
        found[kind.name.lower()] += count
    return dict(found)


@pytest.mark.parametrize(
    ("mesh", "head", "expected"),
    [
        ("data=1,model=8", "shard", {"all_reduce": 224, "all_gather": 1, "reduce_scatter": 1}),
        ("data=8,model=8", "shard", {"all_reduce": 225, "all_gather": 292, "reduce_scatter": 292}),
        ("data=1,model=8", "vocab", {"all_reduce": 225, "all_gather": 1}),
        ("data=8,model=8", "vocab", {"all_reduce": 226, "all_gather": 292, "reduce_scatter": 291}),
    ],
)
def test_plain_tensor_parallelism_has_the_collectives_of_published_traces(
    mesh: str, head: str, expected: dict[str, int]
) -> None:
    p = distributed("torch_llama_plain_tp.py", mesh, "--head", head)
    assert by_kind(p) == expected
    assert linear_products(p).total() == 675
    assert sum(attention_kernels(p).values()) == 2 * LAYERS
    row = " | ".join(
        str(expected.get(k, 0)) for k in ("all_reduce", "all_gather", "reduce_scatter")
    )
    assert f"| {row} |" in PAGE.read_text(encoding="utf-8")
