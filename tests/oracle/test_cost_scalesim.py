"""SCALE-Sim 3.0.0's own cycle counts, row by row."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from flint.backends.cost.chips.systolic.scalesim import DATAFLOWS, cycles
from flint.backends.cost.chips.systolic.scalesim_reads import dram_words
from flint.backends.cost.chips.systolic.scalesim_stalls import limited_cycles

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


def limited(row: Row) -> int:
    m, n, k, high, wide = (int(row[name]) for name in ("M", "N", "K", "rows", "cols"))
    srams = [int(x) for x in row["sram_kb"].split("/")]
    words = int(row["bw"].removeprefix("USER:"))
    return limited_cycles(m, n, k, high, wide, row["dataflow"], words, *srams)


def test_cycles_with_a_limit_are_exact() -> None:
    part = rows(limited=True)
    assert len(part) > 20
    assert [limited(r) for r in part] == [int(r["total_cycles"]) for r in part]


@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_words_in_closed_form_are_near_what_was_read(dataflow: str) -> None:
    part = [r for r in rows(limited=True) if r["dataflow"] == dataflow]
    found, truth = [], []
    for r in part:
        m, n, k = (np.array([int(r[c])]) for c in ("M", "N", "K"))
        half = int(r["sram_kb"].split("/")[0]) * 512
        found.append(dram_words(m, n, k, 128, 128, dataflow, half)[0])
        truth.append(int(r["dram_ifmap_reads"]) + int(r["dram_filter_reads"]))
    off = np.abs(np.array(found) / np.array(truth) - 1)
    assert off.mean() < 0.4
