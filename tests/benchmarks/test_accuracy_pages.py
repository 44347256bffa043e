"""The summary of errors is that of docs/accuracy.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.accuracy_row import HEADINGS, Accuracy, as_markdown
from benchmarks.accuracy_summary import SHOWN, between, summary
from benchmarks.accuracy_tpu import scalesim_accuracy, tpu_rows_accuracy

ROOT = Path(__file__).resolve().parents[2]


def reported() -> list[Accuracy]:
    """The rows of docs/accuracy.md."""
    rows, is_theirs = [], False
    for line in (ROOT / "docs" / "accuracy.md").read_text("utf-8").splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if cells[0] in ("data", "profile", "constant"):  # headings: other things have tables, too
            is_theirs = "MAPE" in cells
        if not is_theirs or len(cells) < len(HEADINGS) - 1 or not re.fullmatch(r"[\d,]+", cells[3]):
            continue
        numbers = [float(c) for c in cells[4:] if c]
        count = int(cells[3].replace(",", ""))
        rows.append(Accuracy(cells[0], cells[1], cells[2], count, *numbers))
    return rows


def test_the_readme_says_what_the_page_says() -> None:
    text = (ROOT / "docs" / "numbers.md").read_text("utf-8")
    assert between(text, "accuracy", summary(reported())) == text


@pytest.mark.parametrize("shown", SHOWN, ids=lambda s: f"{s[1]}, {s[2]}")
def test_every_row_of_the_summary_is_in_the_page(shown: tuple[str, str, str]) -> None:
    assert any((r.data, r.split) == shown[1:] for r in reported())


def test_only_what_is_between_the_marks_is_replaced() -> None:
    row = Accuracy("Megatron", "selene", "held out", 4, 5.04, 4, 9, -1.25, 40, 13)
    assert summary([row]).splitlines()[2].endswith("| selene | 4 | 5.0 | 4.0 | -1.2 | 40 | 13 |")
    text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    assert between(text, "x", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match="no marks"):
        between(text, "y", "new")


def test_the_tables_of_the_page_have_marks() -> None:
    """Those that `benchmarks.accuracy` makes in a minute are what stands there."""
    text = (ROOT / "docs" / "accuracy.md").read_text("utf-8")
    assert text.count(": begin -->") == text.count(": end -->") == 9
    shown = text.partition("<!-- Systolic arrays: begin -->")[2].partition("<!-- Systolic")[0]
    assert as_markdown([*tpu_rows_accuracy(), *scalesim_accuracy()]) == shown.strip()
