"""The summary of errors is that of docs/accuracy.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy_row import Accuracy, as_markdown
from benchmarks.accuracy_summary import SHOWN, between, reported, summary
from benchmarks.accuracy_tpu import scalesim_accuracy, tpu_rows_accuracy

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
