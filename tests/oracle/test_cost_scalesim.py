"""SCALE-Sim 3.0.0's own cycle counts, row by row."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy_tpu import scalesim_cycles
from flint.backends.cost.chips.families.systolic.scalesim import DATAFLOWS, cycles, dram_words

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


def test_cycles_with_a_limit_are_those_of_the_words_on_average() -> None:
    """Both operands get the bandwidth; what small ones wait for at first SCALE-Sim leaves out."""
    found = np.array([scalesim_cycles(r) for r in rows(limited=True)])
    truth = np.array([int(r["total_cycles"]) for r in rows(limited=True)])
    assert len(truth) > 20
    assert np.median(np.abs(found / truth - 1)) < 0.35
    big = truth > 10_000
    assert np.all((found[big] / truth[big] > 0.35) & (found[big] / truth[big] < 1.25))
