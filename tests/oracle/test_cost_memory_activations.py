"""Activation memory of GPT models as Megatron-LM trains them, against what was published.

"Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198) has, for each layer
with s tokens, b sequences, hidden size h, a heads and t tensor-parallel ranks, in bytes

    s b h (10 + 24/t + 5 a s / (h t))   without sequence parallelism, nothing recomputed
    s b h 34 / t                        with it, and attention recomputed

Of the first 10: inputs of both norms (4) and what they return (4), masks of two dropouts (2). Of 24:
queries, keys, values and what attention returns (8), operands of the GELU and of the product after
it (16). Of 5: the softmax, what its dropout leaves (2 each), its mask (1). A first pipeline stage
holds the layers of L (1 + (p - 1) / (p m)) with p stages of m chunks. The model computes all of
these; it is captured and its buffers are counted. They also hold the embedding's dropout mask and
the operands of the loss.
"""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import flint
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.ir.mesh import Mesh
from flint.passes.profiles import rewrite
from tests.saved_activations import saved_activation_bytes

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "benchmarks/data/megatron/step_times_a100.csv"
MODES = {
    "full": ("measured_activation_gib_no_recompute", "none"),
    "seqsel": ("measured_activation_gib_seqsel", "selective"),
}
BAR = 0.07


def rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def captured(row: dict[str, str]) -> flint.Workload:
    path = ROOT / "benchmarks/models/gpt_megatron.py"
    spec = importlib.util.spec_from_file_location("memory_gpt_megatron", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    n = {name: int(row[name]) for name in ("tp", "pp", "dp", "microbatch", "interleaving")}
    mesh = Mesh.parse({"pipe": n["pp"], "data": n["dp"], "model": n["tp"]})
    sizes: dict[str, Any] = {
        "hidden": int(row["hidden"]),
        "num_layers": int(row["layers"]),
        "heads": int(row["heads"]),
        "seq": int(row["seq"]),
        "micro_batch": n["microbatch"],
        # as many as fill the pipeline: more are not in flight at once
        "microbatches": min(int(row["batch"]) // n["microbatch"], 2 * n["pp"]),
        "chunks": n["interleaving"],
        "recompute": MODES[row["mode"]][1],
        "sequence_parallel": row["mode"] == "seqsel",
    }
    return flint.trace(module.train(abstract_mesh(mesh), **sizes), mesh).workload


@pytest.mark.long
@pytest.mark.parametrize("number", range(4))
def test_activation_memory(number: int) -> None:
    row = rows()[number]
    program = rewrite(captured(row), profile="xla-gpu", granularity="kernel").program_of(0)
    expected = float(row[MODES[row["mode"]][0]]) * 2**30
    assert saved_activation_bytes(program) == pytest.approx(expected, rel=BAR)
