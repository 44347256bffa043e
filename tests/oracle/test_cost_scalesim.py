"""SCALE-Sim 3.0.0's own cycle counts, row by row."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from flint.backends.cost.systolic.scalesim import DATAFLOWS, cycles

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "scalesim" / "cycles.csv"
Row = dict[str, str]


def rows(*, limited: bool) -> list[Row]:
    with DATA.open(encoding="utf-8") as file:
        return [r for r in csv.DictReader(file) if r["bw"].startswith("USER") == limited]


@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_cycles_without_a_limit_are_exact(dataflow: str) -> None:
    part = [r for r in rows(limited=False) if r["dataflow"] == dataflow]
    assert len(part) > 20
    columns = [np.array([int(r[c]) for r in part]) for c in ("M", "N", "K", "rows", "cols")]
    expected = [int(r["total_cycles"]) for r in part]
    assert cycles(*columns, dataflow).tolist() == expected
