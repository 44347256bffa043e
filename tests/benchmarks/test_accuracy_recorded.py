"""Audited runs beside their estimates: which rows there are, and what a constant share would say."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.accuracy_recorded import MODELS, Audited, Found, constant_share, table
from benchmarks.step_rows import read

ROWS = [Audited(row) for row in read("mlperf/steps.csv") if row["benchmark"] in MODELS]


def test_ranks_of_a_row_are_those_of_its_mesh() -> None:
    for row in ROWS:
        ranks = row.replicas * row.mesh["context"] * row.mesh["model"]
        assert ranks == int(row.row["chips"]), row.label
        assert 1 <= row.mesh["data"] <= row.replicas
    assert {row.half for row in ROWS} == {0, 1}


def test_a_constant_share_is_that_of_alike_rows_of_the_other_half() -> None:
    """Twice as fast as the roofline of its flops allows half of the time: a share of a half."""
    kinds = [r for r in ROWS if r.kind == ("lora", "fp8") and r.row["preset"][:2] != "mi"]
    mine = next(r for r in kinds if r.half == 1)
    others = [
        Found(r, 1.0, 0.5, 0.1, 9.0, float(r.row["step_s"]) / 2) for r in kinds if r.half == 0
    ]
    found = Found(mine, 1.1 * float(mine.row["step_s"]), 0.5, 0.1, 9.0, 1.5)
    assert constant_share(found, [found, *others]) == pytest.approx(3.0)
    assert "| NVIDIA, held out | 1 | 10.0 | 10.0 | +10.0 |" in table([found, *others])
