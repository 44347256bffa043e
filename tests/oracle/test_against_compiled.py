"""Captured programs against what XLA's GPU compiler makes of them (docs/compilers.md).

What it made is recorded by `python -m benchmarks.compilers --write`, so that captured sides are held
against it without a compiler; where its plugin is installed, some are compiled again.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="the programs are JAX's")

from benchmarks.compilers.compare import Comparison
from benchmarks.compilers.programs import Sample, samples
from benchmarks.compilers.reasons import REASONS
from benchmarks.compilers.table import compiled_side
from benchmarks.compilers.whole import Compiler
from flint.passes.base import run_passes
from flint.passes.compilers.sides import Side, side
from flint.passes.partition.xla import partitioned
from flint.passes.profiles import profile
from tests.recorded import recorded_version_only

pytestmark = [pytest.mark.long, recorded_version_only]
RECORDED = Path(__file__).parent / "compiled_xla_gpu.json"
#: Of every kind of parallelism, quick ones. What differs stays in its class, and has a reason.
CHECKED = (
    "gpt2 fsdp untied", "gpt2 tp", "ssm scan", "lstm", "mixer tp", "clip", "decode cache", "muon",
    "context parallel",
    "llama_fsdp", "llama_tp_sp", "llama_dp_tp_sp", "llama_fsdp_tp", "llama_hsdp",
    "llama_3_axes_pinned", "llama_few_kv_heads", "moe_einsum_tp", "ring_attention_dp",
    "manual_partial", "embed_vocab", "op_fft", "op_gathered", "op_map_sharded",
)  # fmt: skip
COMPILED = ("llama_fsdp", "llama_tp_sp", "op_fft")


@dataclass(frozen=True)
class Recorded:
    """What the compiler made of a program, and how far the captured one was from it."""

    mesh: str
    compiled: Side
    verdict: str


@cache
def recorded() -> dict[str, Recorded]:
    """Every program that was compiled."""
    programs: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))["programs"]
    return {n: Recorded(r["mesh"], compiled_side(r), r["verdict"]) for n, r in programs.items()}


@cache
def sample(name: str) -> Sample:
    """The program of a name."""
    return next(s for s in samples() if s.name == name)


def test_enough_programs_are_equal_and_every_other_has_a_reason() -> None:
    verdicts = [r.verdict for r in recorded().values()]
    assert len(verdicts) >= 80
    assert verdicts.count("equal") >= 0.7 * len(verdicts)
    near = verdicts.count("equal") + verdicts.count("within 1 %")
    assert near >= 0.8 * len(verdicts)
    differ = {n for n, r in recorded().items() if r.verdict != "equal"}
    assert differ <= set(REASONS), "say why in benchmarks/compilers/reasons.py"
    assert set(REASONS) <= differ, "equal now: take it out of REASONS"


@pytest.mark.parametrize("name", CHECKED)
def test_captured_is_as_near_as_recorded(name: str) -> None:
    captured = sample(name).capture("cuda")
    program = run_passes(partitioned(captured).program, profile("xla-gpu").passes)
    expected = recorded()[name]
    assert str(captured.mesh) == expected.mesh
    found = Comparison(name, expected.mesh, side(program), expected.compiled)
    assert found.verdict == expected.verdict, (
        f"captured {found.captured.collectives} compiled {found.compiled.collectives}: "
        "run python -m benchmarks.compilers --write"
    )


@pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None
    or importlib.util.find_spec("jax_plugins.xla_cuda12") is None,
    reason="jax-cuda12-plugin is not installed",
)
def test_the_compiler_makes_what_is_recorded() -> None:
    whole = Compiler("xla-gpu")
    for name in COMPILED:
        made, _ = whole.compiled(sample(name).capture("cuda"))
        assert side(made).collectives == recorded()[name].compiled.collectives, name
