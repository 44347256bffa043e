"""What the page on rankings is made with: groups, correlations and regrets."""

from __future__ import annotations

import pytest

from benchmarks import explore_ranking as ranking
from benchmarks.explore_ranking import PricedRow, cases


def _row(index: int, measured: float, predicted: float, **changed: int) -> PricedRow:
    sizes = {"hidden": 1024, "layers": 12, "heads": 16, "seq": 1024, "pipe": 1, "data": 4,
             "model": 2, "micro_batch": 1, "microbatches": 2, "half": 1} | changed  # fmt: skip
    times = dict.fromkeys(("low_ns", "high_ns", "roofline_ns", "ideal_ns"), 1.0)
    return PricedRow(
        index, "a row", **sizes, measured_ns=measured, predicted_ns=predicted, **times,
        memory_bytes=1, capacity_bytes=2,
    )  # fmt: skip


def test_groups_are_of_one_model_and_number_of_devices() -> None:
    rows = [_row(n, n + 1.0, 1.0) for n in range(6)]
    rows += [_row(9, 1.0, 1.0, data=8), *(_row(n, 1.0, 1.0, layers=16) for n in range(5))]
    assert ranking.grouped(rows, ranking.by_devices) == [rows[:6]]
    other = _row(10, 1.0, 1.0, microbatches=4)
    assert [len(g) for g in ranking.grouped([*rows, other], ranking.by_devices)] == [7]
    assert [len(g) for g in ranking.grouped([*rows, other], ranking.by_batch)] == [6]


def test_an_order_is_judged_by_time_for_a_sequence() -> None:
    """Twice the batch in 1.5 times the time is the better one."""
    score = ranking.SCORES["Flint"]
    group = [_row(0, 100.0, 90.0), _row(1, 150.0, 160.0, microbatches=4), _row(2, 300.0, 280.0)]
    assert ranking.correlation(group, score) == pytest.approx(1.0)
    assert ranking.regret(group, score) == 0.0
    wrong = [_row(0, 100.0, 200.0), _row(1, 150.0, 140.0), _row(2, 200.0, 90.0)]
    assert ranking.correlation(wrong, score) == pytest.approx(-1.0)
    assert ranking.regret(wrong, score) == pytest.approx(1.0)
    near, slower = ranking.by_chance([wrong])
    assert near == pytest.approx(1 / 3)
    assert slower == pytest.approx(0.5)


def test_several_first_count_as_their_mean() -> None:
    group = [_row(0, 100.0, 50.0), _row(1, 120.0, 50.0), _row(2, 110.0, 60.0)]
    assert ranking.regret(group, ranking.SCORES["Flint"]) == pytest.approx(0.1)
    assert ranking.correlation(group, lambda row: 1.0) == 0.0


def test_every_measured_row_is_a_case() -> None:
    found = cases()
    assert len(found) == 771
    assert found[0].data == "vTrain 512 GPUs"
