"""Which constants measured rows determine: those that times depend on, each in a way of its own.

How much the time of each row changes with each constant is a matrix. Constants are taken one by one:
the one with the largest column left, after what those taken before explain of it. A constant whose
column is small does not show in the rows; one that is explained by others cannot be told from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.fit import Bounds, Predict

#: By how much a constant is moved, as a share of its value or of its range.
MOVED = 0.1
#: A constant shows where times move by this share of its own move, in the mean of squares.
LEAST_SHOWN = 0.04
#: Rows that each constant needs, except the first.
ROWS_EACH = 3


def determined(
    bounds: Bounds, predict: Predict, weights: Float64s
) -> tuple[list[str], dict[str, str]]:
    """The constants of `bounds` that rows determine, most telling first, and why not the others."""
    names = list(bounds)
    matrix = _sensitivities(bounds, predict) * np.sqrt(weights / weights.sum())[:, None]
    shown = np.sqrt((matrix**2).sum(axis=0))
    most = max(1, len(weights) // ROWS_EACH)
    taken: list[int] = []
    left = matrix.copy()
    while len(taken) < min(len(names), most):
        size = np.sqrt((left**2).sum(axis=0))
        size[taken] = 0
        at = int(np.argmax(size))
        if size[at] < LEAST_SHOWN:
            break
        taken.append(at)
        axis = left[:, at] / size[at]
        left -= np.outer(axis, axis @ left)
    reasons = _reasons(names, taken, shown, len(taken) >= most)
    return [names[i] for i in taken], reasons


def _sensitivities(bounds: Bounds, predict: Predict) -> Float64s:
    """Change of the logarithm of each row's time (rows) with each constant's (columns)."""
    start = {name: value for name, (_, _, value) in bounds.items()}
    columns = []
    for name, (low, high, value) in bounds.items():
        step = MOVED * max(abs(value), MOVED * (high - low))
        below, above = max(low, value - step), min(high, value + step)
        if above <= below:
            columns.append(np.zeros(len(predict(start))))
            continue
        ratio = np.log(predict({**start, name: above}) / predict({**start, name: below}))
        columns.append(ratio * (step / MOVED) / (above - below))
    return np.stack(columns, axis=1)


def _reasons(
    names: Sequence[str], taken: Sequence[int], shown: Float64s, is_full: bool
) -> dict[str, str]:
    found: dict[str, str] = {}
    for at, name in enumerate(names):
        if at in taken:
            continue
        if shown[at] < LEAST_SHOWN:
            found[name] = "does not show in these rows"
        elif is_full:
            found[name] = "there are too few rows for it"
        else:
            others = ", ".join(names[i] for i in taken)
            found[name] = f"cannot be distinguished from {others}"
    return found


def at_bounds(values: Mapping[str, float], bounds: Bounds) -> list[str]:
    """Constants that ended at the edge of what they may be."""
    found = []
    for name, value in values.items():
        low, high, _ = bounds[name]
        edge = 1e-3 * (high - low)
        if value - low < edge or high - value < edge:
            found.append(name)
    return found
