"""One row of the accuracy report: how far predictions are from measurements on some rows of data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

HEADINGS = (
    "data", "chip", "split", "count", "MAPE", "median", "p90", "bias", "roofline", "constant MFU",
)  # fmt: skip


@dataclass(frozen=True)
class Accuracy:
    """Errors in percent; `bias` is the mean of signed errors, below 0 is too fast.

    `roofline` is the MAPE of a plain roofline on the same rows, `constant` that of the best constant
    share of the peak, chosen on the very rows that it is judged on; None where it means nothing.
    """

    data: str
    chip: str
    split: str
    count: int
    mape: float
    median: float
    p90: float
    bias: float
    roofline: float
    constant: float | None = None

    def cells(self) -> list[str]:
        """The row as text, in the order of HEADINGS."""
        numbers = (self.mape, self.median, self.p90, self.bias, self.roofline)
        constant = "" if self.constant is None else f"{self.constant:.1f}"
        shown = [f"{number:.1f}" for number in numbers]
        return [self.data, self.chip, self.split, f"{self.count:,}", *shown, constant]


def accuracy(
    data: str,
    chip: str,
    split: str,
    predicted: ArrayLike,
    measured: ArrayLike,
    roofline: ArrayLike,
    constant: float | None = None,
) -> Accuracy:
    """One row from times in any one unit."""
    truth = np.asarray(measured, dtype=np.float64)
    signed: Any = 100 * (np.asarray(predicted, dtype=np.float64) / truth - 1)
    bound: Any = 100 * np.abs(np.asarray(roofline, dtype=np.float64) / truth - 1)
    size = np.abs(signed)
    return Accuracy(
        data,
        chip,
        split,
        len(truth),
        float(size.mean()),
        float(np.median(size)),
        float(np.percentile(size, 90)),
        float(signed.mean()),
        float(bound.mean()),
        constant,
    )


def as_text(rows: Iterable[Accuracy]) -> str:
    """The rows as a table for a terminal."""
    lines = [HEADINGS, *(tuple(r.cells()) for r in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 3 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def as_markdown(rows: Iterable[Accuracy]) -> str:
    """The rows as a table for a page."""
    found = list(rows)
    count = len(HEADINGS) if any(r.constant is not None for r in found) else len(HEADINGS) - 1
    lines = ["| " + " | ".join(HEADINGS[:count]) + " |"]
    lines.append("|" + "---|" * 3 + "--:|" * (count - 3))
    lines += ["| " + " | ".join(r.cells()[:count]) + " |" for r in found]
    return "\n".join(lines)
