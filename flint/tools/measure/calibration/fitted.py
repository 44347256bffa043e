"""What a calibration found of one class of kernels, or of one tier of the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flint.io.documents import Digits, Millionths
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.fit import Bounds, Predict, fit

# Which constants measured rows determine: those that times depend on, each in a way of its own.
#
# How much the time of each row changes with each constant is a matrix. Constants are taken one by one:
# the one with the largest column left, after what those taken before explain of it. A constant whose
# column is small does not show in the rows; one that is explained by others cannot be told from them.

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


#: What moving a constant by its own value costs, as a share of an error of 100 % of all rows: of
#: constants that explain rows about as well, the nearest to the base's are taken.
PRIOR = 0.01
#: Fitted constants are written where they leave no more than this share of the error.
LEAST_GAIN = 0.97
#: Of fewer rows than these no half is held out, but each in turn.
FEW = 8
#: Rows that are fitted on at most: more do not make constants better, and take longer.
MOST_FITTED = 2000


@dataclass(frozen=True, slots=True)
class Error:
    """How far prices are from measurements.

    Fits are judged by logarithms, as a price that is twice too long is no worse than one that is half too short.
    """

    mean_percent: Annotated[float, Digits(4)]
    """Mean absolute error of the rows, in percent of each row's measured time."""
    mean_log_ratio: Millionths
    """Mean of the logarithms of price over measurement, without signs: by it fits are judged."""
    of_sum_percent: Annotated[float, Digits(4)]
    """Error of the sum of all times, in percent; below 0 the prices are too short."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A constant that was fitted."""

    name: str  #: Its name in a cluster file.
    before: float  #: The base's value, in the unit that the name ends in.
    after: float  #: The fitted one.
    is_at_bound: bool  #: Whether it may not go further.


@dataclass(frozen=True)
class Fitted:
    """One class of kernels ("products") or one tier ("nvlink").

    `before` and `after` are errors on rows that were held out, with the base's constants and the
    fitted ones; `one_constant` is that of a roofline times one constant. `after` is None where nothing
    was fitted. `changes` are written only if `is_better`. `kept` says why other constants stay.
    """

    name: str
    rows: int
    fitted_on: int
    held_out: int
    measured_ns: float
    before: Error | None
    after: Error | None = None
    one_constant: Error | None = None
    changes: tuple[Changed, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def is_better(self) -> bool:
        """Whether the fitted constants are nearer to rows that they were not fitted on."""
        return bool(self.changes) and not self.reason


@dataclass(frozen=True, eq=False)
class FitRows:
    """What a fit is made of: times, how much rows count, which half they are in, how often they ran."""

    measured_ns: Float64s
    weight: Float64s
    count: NDArray[np.int64]
    half: NDArray[np.int64]


def error_of(predicted: Float64s, rows: FitRows, chosen: NDArray[np.int64]) -> Error | None:
    """The error of prices on the chosen rows; None for no rows."""
    if not len(chosen):
        return None
    off = np.abs(predicted / rows.measured_ns - 1)[chosen]
    priced = float((predicted * rows.count)[chosen].sum())
    measured = float((rows.measured_ns * rows.count)[chosen].sum())
    weight = rows.weight[chosen]
    ratios = np.abs(np.log(predicted[chosen] / rows.measured_ns[chosen]))
    mean, ratio = float(np.average(off, weights=weight)), float(np.average(ratios, weights=weight))
    return Error(100 * mean, ratio, 100 * (priced / measured - 1))


@dataclass(frozen=True)
class Problem:
    """What is fitted: constants with their bounds, and what predicts times of some rows with them."""

    bounds: Bounds
    predict: Callable[[NDArray[np.int64]], Predict]
    roofline: Float64s

    @property
    def start(self) -> dict[str, float]:
        """The base's constants."""
        return {name: value for name, (_, _, value) in self.bounds.items()}

    def times(self, values: Mapping[str, float], rows: NDArray[np.int64]) -> Float64s:
        """Times of some rows with some constants changed."""
        return self.predict(rows)({**self.start, **values})

    def solve(
        self, rows: FitRows, chosen: NDArray[np.int64]
    ) -> tuple[dict[str, float], dict[str, str]]:
        """The constants that the chosen rows determine, and why not the others."""
        some = chosen[:: -(-len(chosen) // MOST_FITTED)]
        model, weight = self.predict(some), rows.weight[some]
        names, kept = determined(self.bounds, model, weight)
        if not names:
            return {}, kept
        ours = {n: self.bounds[n] for n in sorted(names)}
        start = self.start
        values = _near(ours, lambda c: model({**start, **c}), rows.measured_ns[some], weight)
        return values, kept


def fitted(name: str, rows: FitRows, problem: Problem) -> Fitted:
    """Fit what rows determine, and hold it against rows that it was not fitted on.

    Of `FEW` rows or more half 0 is fitted on and half 1 is held out. Of fewer each is held out once in
    turn, and the constants that are written are fitted on all.
    """
    every = np.arange(len(rows.half))
    few = len(every) < FEW and bool((rows.half == 0).any())
    outside = every if few or not (rows.half == 1).any() else every[rows.half == 1]
    inside = every if few else every[rows.half == 0]
    found = Fitted(
        name,
        len(every),
        max(len(every) - 1, 0) if few else len(inside),
        len(outside) if len(every) > 1 or not few else 0,
        float((rows.measured_ns * rows.count).sum()),
        error_of(problem.times({}, every), rows, outside),
    )
    if not problem.bounds:
        return replace(found, reason="it has no constants")
    if not len(inside) or len(every) < 2:
        return _kept(found, problem, "one shape is not enough: nothing would check a fit")
    values, kept = problem.solve(rows, inside)
    if not values:
        return _kept(found, problem, "its rows determine no constant", kept)
    if few:
        after_ns, one_ns = _each_in_turn(rows, problem, every)
    else:
        after_ns = problem.times(values, every)
        one_ns = _one_constant(rows, problem, inside)
    after = error_of(after_ns, rows, outside)
    edges = at_bounds(values, {n: problem.bounds[n] for n in values})
    changes = tuple(Changed(n, problem.start[n], v, n in edges) for n, v in values.items())
    return replace(
        found,
        after=after,
        one_constant=error_of(one_ns, rows, outside),
        changes=changes,
        kept=kept,
        reason=_reason(found.before, after),
    )


def _each_in_turn(
    rows: FitRows, problem: Problem, every: NDArray[np.int64]
) -> tuple[Float64s, Float64s]:
    """Each row's time with constants that were fitted on the others; and by one constant."""
    after, one = np.zeros(len(every)), np.zeros(len(every))
    for row in every.tolist():
        others = every[every != row]
        values, _ = problem.solve(rows, others)
        after[row] = problem.times(values, np.array([row]))[0]
        one[row] = _one_constant(rows, problem, others)[row]
    return after, one


def _one_constant(rows: FitRows, problem: Problem, inside: NDArray[np.int64]) -> Float64s:
    ratio = float(np.median(rows.measured_ns[inside] / problem.roofline[inside]))
    return ratio * problem.roofline


def _reason(before: Error | None, after: Error | None) -> str:
    """Why fitted constants are not written; "" if they are better."""
    if before is None or after is None or after.mean_log_ratio < LEAST_GAIN * before.mean_log_ratio:
        return ""
    what = "are nearer" if after.mean_log_ratio > before.mean_log_ratio else "are equally good"
    return f"on the held-out rows the base's constants {what}"


def _kept(
    found: Fitted, problem: Problem, reason: str, kept: Mapping[str, str] | None = None
) -> Fitted:
    return replace(found, kept=dict(kept or dict.fromkeys(problem.bounds, reason)), reason=reason)


def _near(
    bounds: Bounds, predict: Predict, measured: Float64s, weight: Float64s
) -> dict[str, float]:
    """A fit in which each constant that leaves its value costs as much as an error of all rows.

    Errors are logarithms of ratios, so that a base which is off by ten still shows where to go, and
    constants that cannot be 0 are looked for by their logarithms.
    """
    scaled = {n: _scaled(b) for n, b in bounds.items()}

    def times(found: dict[str, float]) -> Float64s:
        moved = [1 + (found[n] - start) / _step(scaled[n]) for n, (_, _, start) in scaled.items()]
        return np.concatenate([1 + np.log(predict(_plain(found, bounds)) / measured), moved])

    heavy = np.full(len(bounds), PRIOR * weight.sum())
    ones = np.ones(len(measured) + len(bounds))
    found = fit(scaled, times, ones, np.concatenate([weight, heavy]))
    return {n: float(f"{v:.4g}") for n, v in _plain(found, bounds).items()}


def _scaled(bound: tuple[float, float, float]) -> tuple[float, float, float]:
    low, high, start = bound
    return (log(low), log(high), log(start)) if low > 0 else bound


def _step(bound: tuple[float, float, float]) -> float:
    """A move of a constant that costs PRIOR: by a factor of e, or a tenth of its range."""
    low, high, _ = bound
    return 0.1 * (high - low) if low == 0 else 1.0


def _plain(found: Mapping[str, float], bounds: Bounds) -> dict[str, float]:
    return {
        n: float(np.clip(exp(v), *bounds[n][:2])) if bounds[n][0] > 0 else v
        for n, v in found.items()
    }
