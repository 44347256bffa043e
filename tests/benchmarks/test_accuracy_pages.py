"""The summary of errors is that of docs/accuracy.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy_row import Accuracy, as_markdown
from benchmarks.accuracy_summary import SHOWN, between, reported, summary
from benchmarks.accuracy_tpu import scalesim_accuracy, tpu_rows_accuracy
from benchmarks.residuals import share_within

ROOT = Path(__file__).resolve().parents[2]


PAGE = (ROOT / "docs" / "accuracy.md").read_text("utf-8")


def test_the_readme_says_what_the_page_says() -> None:
    text = (ROOT / "docs" / "numbers.md").read_text("utf-8")
    assert between(text, "accuracy", summary(reported(PAGE))) == text


@pytest.mark.parametrize("shown", SHOWN, ids=lambda s: f"{s[1]}, {s[2]}")
def test_every_row_of_the_summary_is_in_the_page(shown: tuple[str, str, str]) -> None:
    assert any((r.data, r.split) == shown[1:] for r in reported(PAGE))


def test_only_what_is_between_the_marks_is_replaced() -> None:
    row = Accuracy("Megatron", "selene", "held out", 4, 5.04, 4, 9, -1.25, 40, 13)
    assert summary([row]).splitlines()[2].endswith("| selene | 4 | 5.0 | 4.0 | -1.2 | 40 | 13 |")
    text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    assert between(text, "x", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match="no marks"):
        between(text, "y", "new")


def test_the_tables_of_the_page_have_marks() -> None:
    """Those that `benchmarks.accuracy` makes in a minute are what stands there."""
    assert PAGE.count(": begin -->") == PAGE.count(": end -->") == 11
    shown = PAGE.partition("<!-- Systolic arrays: begin -->")[2].partition("<!-- Systolic")[0]
    assert as_markdown([*tpu_rows_accuracy(), *scalesim_accuracy()]) == shown.strip()


def test_widths_of_few_rows_hold_80_percent_of_others() -> None:
    """The 80th percentile of 9 rows holds fewer; of many rows both are the same."""
    draws = np.abs(np.random.default_rng(5).standard_normal((20_000, 10)))
    few, others = np.sort(draws[:, :9], axis=1), draws[:, 9]
    inside = {n: float((others <= few[:, n - 1]).mean()) for n in (7, 8)}
    assert round(share_within(9) * 9) == 8
    assert inside[7] < 0.72 and 0.79 < inside[8] < 0.82
    assert share_within(3) == 1.0 and abs(share_within(5000) - 0.8) < 1e-3
