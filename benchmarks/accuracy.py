"""Write the tables of docs/accuracy.md, and its summary in docs/numbers.md: how far estimates are off.

    python -m benchmarks.accuracy               at most 60 rows of each set of training steps
    python -m benchmarks.accuracy --most 16     fewer of them, in a few minutes

They are those of accuracy_kernels, accuracy_collectives, accuracy_tpu and accuracy_steps, which can be
run one by one. A table stands between two marks, `<!-- NAME: begin -->` and `end`; the rest of a page is
written by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.accuracy_collectives import table as collective_accuracy
from benchmarks.accuracy_constants import as_markdown as constants_table
from benchmarks.accuracy_constants import doubtful
from benchmarks.accuracy_kernels import kernel_accuracy
from benchmarks.accuracy_parts import table as parts_table
from benchmarks.accuracy_row import Accuracy, as_markdown
from benchmarks.accuracy_steps import Result, commands, coverage, priced, step_accuracy
from benchmarks.accuracy_summary import between, summary
from benchmarks.accuracy_tpu import scalesim_accuracy, tpu_rows_accuracy
from benchmarks.fits.fit import all_fits
from benchmarks.step_rows import Case, all_cases
from benchmarks.trace_sums import all_sums, table

ROOT = Path(__file__).resolve().parents[1]
PAGE, SUMMARY = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "numbers.md"


def measured(steps: Sequence[Result]) -> dict[str, list[Accuracy]]:
    """All rows, by section."""
    return {
        "GPU kernels": kernel_accuracy(),
        "Collectives": collective_accuracy(),
        "Systolic arrays": [*tpu_rows_accuracy(), *scalesim_accuracy()],
        "Training steps": step_accuracy(steps),
    }


def filled(text: str, tables: Mapping[str, Sequence[Accuracy]], steps: Sequence[Result]) -> str:
    """The text of docs/accuracy.md with its tables made again."""
    lines = [f"# {label}\n{command}" for label, command in commands(all_cases())]
    parts = {
        **{title: as_markdown(rows) for title, rows in tables.items()},
        "Sums over real profiles": table(list(all_sums())),
        "What a user types": "```sh\n" + "\n".join(lines).replace(" && ", "\n") + "\n```",
        "Parts": parts_table(),
        "How sure they are": coverage(steps),
        "Constants": constants_table(doubtful(all_fits())),
    }
    for name, found in parts.items():
        text = between(text, name, found)
    return text


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
    steps = _steps(parser.parse_args().most)
    tables = measured(steps)
    PAGE.write_text(filled(PAGE.read_text("utf-8"), tables, steps), encoding="utf-8")
    rows = [row for section in tables.values() for row in section]
    text = between(SUMMARY.read_text("utf-8"), "accuracy", summary(rows))
    SUMMARY.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
