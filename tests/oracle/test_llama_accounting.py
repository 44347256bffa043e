"""Llama-3-8B against counting by hand, and docs/llama-collectives.md against what Flint says."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import flint
from flint.ir.program import Collective, Kind, Program
from tests.auto_mesh import auto_mesh

pytest.importorskip("jaxlib", reason="needs JAX")

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "llama-collectives.md"
SECTIONS = {
    "fsdp": "## FSDP (",
    "tp": "## Tensor parallelism (",
    "tp+sp": "## Tensor and sequence parallelism (",
    "fsdp+tp": "## FSDP and tensor parallelism (",
}

LAYERS, SEQ, MODEL_RANKS = 32, 8192, 8
DIM, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 4096, 32, 8, 128, 14_336, 128_256


@cache
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("llama_jax", ROOT / "examples" / "llama_jax.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["llama_jax"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@cache
def program(parallel: str, remat: str = "none") -> Program:

    mesh = auto_mesh((64, 8), ("data", "model"))
    step = example().train(mesh, parallel=parallel, remat=remat)
    traced = flint.trace(step.fn, mesh, *step.args, donate_argnums=step.donate_argnums)
    return traced.program


def gemms(p: Program) -> Counter[int]:
    """Flops of each product of two matrices -> how often it runs in a step."""
    found: Counter[int] = Counter()
    is_product = (p.dims[:, 2] > 1) & (p.dims[:, 3] > 1)
    for row in np.flatnonzero(is_product):
        found[int(p.flops[row])] += int(p.trips[row])
    return found


def gemms_by_hand(split: int) -> tuple[Counter[int], Counter[int]]:
    """Linear and attention products of one rank, each split into `split` parts."""
    attention_weights = [DIM * HEADS * HEAD_DIM] * 2 + [DIM * KV_HEADS * HEAD_DIM] * 2
    linear: Counter[int] = Counter()
    for weights in attention_weights + [DIM * FFN] * 3:
        linear[2 * SEQ * weights // split] += 3 * LAYERS
    linear[2 * SEQ * DIM * VOCAB // split] += 3
    attention = Counter({2 * SEQ * SEQ * HEADS * HEAD_DIM // split: 6 * LAYERS})
    return linear, attention


@pytest.mark.parametrize(
    ("parallel", "split"),
    [("fsdp+tp", MODEL_RANKS), ("tp", MODEL_RANKS), ("tp+sp", MODEL_RANKS), ("fsdp", 1)],
)
def test_every_matrix_product_is_there_and_no_other(parallel: str, split: int) -> None:
    linear, attention = gemms_by_hand(split)
    assert linear.total() == 675
    assert gemms(program(parallel)) == linear + attention


def test_matmul_work_per_device_is_59_303_teraflop() -> None:
    flops = sum(size * count for size, count in gemms(program("fsdp+tp")).items())
    assert flops == 59_302_760_939_520
    linear, attention = gemms_by_hand(MODEL_RANKS)
    for label, counted in (("46.109", linear), ("13.194", attention), ("59.303", None)):
        total = flops if counted is None else sum(f * n for f, n in counted.items())
        assert f"{total / 1e12:.3f}" == label
        assert f"| {label} |" in PAGE.read_text()


def test_recomputation_adds_what_the_page_says() -> None:
    linear, attention = gemms_by_hand(MODEL_RANKS)
    again: Counter[int] = Counter()
    for weights in [DIM * HEADS * HEAD_DIM] * 2 + [DIM * KV_HEADS * HEAD_DIM] * 2 + [DIM * FFN] * 2:
        again[2 * SEQ * weights // MODEL_RANKS] += LAYERS
    again[next(iter(attention))] += 2 * LAYERS
    found = gemms(program("fsdp+tp", remat="full"))
    assert found == linear + attention + again
    assert (found.total(), again.total()) == (1_123, 256)
    assert f"{sum(f * n for f, n in found.items()) / 1e12:.3f}" == "74.146"
    plain, full = collectives(program("fsdp+tp")), collectives(program("fsdp+tp", remat="full"))
    assert runs_of(full, "all_gather", "data") == runs_of(plain, "all_gather", "data") == 450
    assert runs_of(full, "all_reduce", "model") == runs_of(plain, "all_reduce", "model") + LAYERS


#: (part, phase, collective, axes, payload bytes) -> (rows, runs in a step)
Table = dict[tuple[str, str, str, str, int], tuple[int, int]]


def collectives(p: Program) -> Table:
    table: Table = {}
    for index in np.flatnonzero(p.kind == Kind.COLLECTIVE):
        r = p.row(index)
        assert r.collective is not Collective.PERMUTE
        key = (r.scope, r.phase.name.lower(), r.collective.name.lower(), str(r.group), r.comm_bytes)
        rows, runs = table.get(key, (0, 0))
        table[key] = (rows + 1, runs + int(p.trips[index]))
    return table


def runs_of(table: Table, kind: str, axes: str) -> int:
    return sum(runs for key, (_, runs) in table.items() if key[2:4] == (kind, axes))


def page_tables(parallel: str) -> list[list[list[str]]]:
    """The tables of one section of the page: rows of cells, without the headings."""
    section = PAGE.read_text().split(SECTIONS[parallel])[1].split("\n## ")[0]
    tables: list[list[list[str]]] = []
    for block in section.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("| ")]
        if lines:
            tables.append([[c.strip() for c in line.strip("|").split("|")] for line in lines[1:]])
    return tables


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize("parallel", SECTIONS)
def test_the_page_lists_exactly_the_collectives_of_the_program(parallel: str) -> None:
    found = page_tables(parallel)[0]
    written: Table = {
        (part, phase, kind, axes, number(payload)): (number(rows), number(runs))
        for part, phase, kind, axes, _, payload, rows, runs in found
    }
    assert len(written) == len(found)
    assert written == collectives(program(parallel))


@pytest.mark.parametrize("parallel", SECTIONS)
def test_totals_on_the_page_are_the_sums_of_its_rows(parallel: str) -> None:
    rows, totals = page_tables(parallel)
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for _, _, kind, axes, _, payload, _, runs in rows:
        n, total = sums.get((kind, axes), (0, 0))
        sums[kind, axes] = (n + number(runs), total + number(runs) * number(payload))
    assert {(k, a): (number(n), number(b)) for k, a, n, b in totals} == sums


@pytest.mark.parametrize(
    ("parallel", "kind", "runs"),
    [
        ("tp", Collective.ALL_REDUCE, 133),
        ("fsdp+tp", Collective.ALL_REDUCE, 133),
        ("tp+sp", Collective.REDUCE_SCATTER, 130),
        ("tp+sp", Collective.ALL_REDUCE, 3),
    ],
)
def test_rewrites_of_the_gpu_profile_leave_what_the_page_says(
    parallel: str, kind: Collective, runs: int
) -> None:
    from flint.passes.base import run_passes
    from flint.passes.profiles import profile

    p = run_passes(program(parallel), profile("xla-gpu").passes)
    over_model = np.array([str(g) == "model" for g in p.groups])
    chosen = (p.collective == kind) & (p.group >= 0) & over_model[p.group]
    assert int(p.trips[chosen].sum()) == runs
    assert str(runs) in PAGE.read_text()
