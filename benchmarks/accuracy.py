"""Write the tables of docs/accuracy.md, and its summary in docs/numbers.md: how far estimates are off.

    python -m benchmarks.accuracy               at most 60 rows of each set of training steps
    python -m benchmarks.accuracy --most 16     fewer of them, in a few minutes
    python -m benchmarks.accuracy --only Parts  one table that needs no training steps

They are those of accuracy_kernels, accuracy_collectives, accuracy_tpu and accuracy_steps, which can be
run one by one. A table stands between two marks, `<!-- NAME: begin -->` and `end`; the rest of a page is
written by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.accuracy_collectives import table as collective_accuracy
from benchmarks.accuracy_constants import as_markdown as constants_table
from benchmarks.accuracy_constants import doubtful
from benchmarks.accuracy_kernels import kernel_accuracy
from benchmarks.accuracy_parts import table as parts_table
from benchmarks.accuracy_row import as_markdown
from benchmarks.accuracy_steps import Result, commands, coverage, priced, step_accuracy
from benchmarks.accuracy_summary import between, reported, summary
from benchmarks.accuracy_tpu import scalesim_accuracy, tpu_rows_accuracy
from benchmarks.fits.fit import all_fits
from benchmarks.residuals import coverage_table, left_out_table
from benchmarks.step_rows import Case, all_cases
from benchmarks.trace_sums import all_sums, table

ROOT = Path(__file__).resolve().parents[1]
PAGE, SUMMARY = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "numbers.md"


def tables() -> dict[str, Callable[[], str]]:
    """Tables of the page that need no training steps, by their marks."""
    return {
        "GPU kernels": lambda: as_markdown(kernel_accuracy()),
        "Collectives": lambda: as_markdown(collective_accuracy()),
        "Systolic arrays": lambda: as_markdown([*tpu_rows_accuracy(), *scalesim_accuracy()]),
        "Sums over real profiles": lambda: table(list(all_sums())),
        "What a user types": _commands,
        "Parts": parts_table,
        "Single kernels": coverage_table,
        "Chips left out": left_out_table,
        "Constants": lambda: constants_table(doubtful(all_fits())),
    }


def _commands() -> str:
    lines = [f"# {label}\n{command}" for label, command in commands(all_cases())]
    return "```sh\n" + "\n".join(lines).replace(" && ", "\n") + "\n```"


def _steps(most: int) -> list[Result]:
    """Rows of whole steps, the first `most` of each data set in the order of a hash."""
    chosen: list[Case] = []
    for data in dict.fromkeys(case.data for case in all_cases()):
        cases = [case for case in all_cases() if case.data == data]
        chosen += sorted(cases, key=lambda case: case.order)[:most]
    return [priced(case) for case in chosen]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/accuracy.md.")
    parser.add_argument("--most", type=int, default=60, help="training steps of each data set")
    parser.add_argument("--only", choices=tables(), help="one table that needs no training steps")
    given = parser.parse_args()
    text = PAGE.read_text("utf-8")
    for name, made in tables().items():
        if given.only in (None, name):
            text = between(text, name, made())
    if given.only is None:
        steps = _steps(given.most)
        text = between(text, "Training steps", as_markdown(step_accuracy(steps)))
        text = between(text, "How sure they are", coverage(steps))
    PAGE.write_text(text, encoding="utf-8")
    short = between(SUMMARY.read_text("utf-8"), "accuracy", summary(reported(text)))
    SUMMARY.write_text(short, encoding="utf-8")


if __name__ == "__main__":
    main()
