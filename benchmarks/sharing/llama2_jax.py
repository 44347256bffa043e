"""Llama 2: the program of examples/llama_jax.py with the sizes of 2023.

    flint capture benchmarks/sharing/llama2_jax.py --mesh 8x8 --set model=13b

Sizes: arXiv 2307.09288, table 1, and `params.json` of the released weights.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

from jax.sharding import AbstractMesh

import flint

EXAMPLE = Path(__file__).parents[2] / "examples/llama_jax.py"
#: Hidden size, layers, heads, heads of keys and values, width of the feed-forward block.
SIZES = {
    "7b": (4096, 32, 32, 32, 11_008),
    "13b": (5120, 40, 40, 40, 13_824),
    "70b": (8192, 80, 64, 8, 28_672),
}


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("llama_jax_of_examples", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@flint.entry(axes=("data", "model"))
def train(
    mesh: AbstractMesh, *, model: str = "7b", parallel: str = "fsdp+tp", remat: str = "full"
) -> flint.Step:
    """One training step on sequences of 4,096 tokens."""
    llama = _example()
    dim, layers, heads, kv_heads, ffn = SIZES[model]
    llama.CONFIGS[model] = dataclasses.replace(
        llama.CONFIGS["8b"],
        dim=dim,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        ffn_dim=ffn,
        vocab=32_000,
        rope_theta=10_000.0,
    )
    step: flint.Step = llama.train(mesh, model=model, parallel=parallel, remat=remat, seq=4096)
    return step
