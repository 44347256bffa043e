"""A search for other values of variables: many change, and totals stay within a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s
from flint.tools.share.shapes.totals import Totals
from flint.tools.share.sizes import Variable

#: How far a variable may move, as a factor.
MOST_FACTOR = 1.6
#: Values of a variable beside its own, at most.
MOST_VALUES = 64
#: Variables beyond which those of one value move together.
MOST_APART = 16
#: A value of which this part is its step: alignment to powers of two is kept so far.
_PARTS = 128
#: Ways that are followed at once, steps of each, and how worse a step may be at first and at last.
_WAYS, _STEPS = 160, 400
_HOT, _COLD = 2.0, 0.02
#: Weight of a bound that is broken by as much as it is wide, against a variable that stays.
_BROKEN = 12.0
#: Moves below this share are hardly moves.
_SMALL_MOVE = 0.03


@dataclass(frozen=True, eq=False)
class Choices:
    """Values that groups of variables may have, the first is their own; `group` is that of each variable.

    `weight` says how much it is worth that a variable changes: more if more rows have it.

    Where there are many variables those of one value are a group: layers that are alike stay alike.
    """

    values: tuple[Float64s, ...]
    group: NDArray[np.int64]
    weight: Float64s

    @classmethod
    def of(cls, variables: Sequence[Variable]) -> Choices:
        """Multiples of the power of two that an original is one of, as far as that leaves a choice."""
        together = len(variables) > MOST_APART
        groups: dict[tuple[int, ...], int] = {}
        group = [
            groups.setdefault((v.value, v.layers) if together else (v.number,), len(groups))
            for v in variables
        ]
        firsts = {g: v.value for v, g in reversed(list(zip(variables, group, strict=True)))}
        values = tuple(_values(firsts[g]) for g in range(len(groups)))
        uses = np.array([float(v.uses) for v in variables])
        weight = 0.5 + 1.5 * uses / max(float(uses.max(initial=1.0)), 1.0)
        return cls(values, np.array(group, dtype=np.int64), weight)

    def __len__(self) -> int:
        return len(self.values)


def _values(value: int) -> Float64s:
    step = max(min(value & -value, _power_below(value // _PARTS)), 1)
    first = max(int(value / MOST_FACTOR) // step, 1)
    last = max(int(value * MOST_FACTOR) // step, first)
    found = [m * step for m in range(first, last + 1) if m * step != value]
    if len(found) > MOST_VALUES:
        found = [found[i * len(found) // MOST_VALUES] for i in range(MOST_VALUES)]
    return np.array([value, *found], dtype=np.float64)


def _power_below(number: int) -> int:
    return 1 << max(number.bit_length() - 1, 0)


class Search:
    """Simulated annealing of several ways at once, by a generator of random numbers.

    `beside` are logs by which totals of real workloads were found to move beyond what they do here.
    """

    def __init__(
        self, totals: Totals, choices: Choices, bound: float, random: np.random.Generator
    ) -> None:
        self._totals, self._choices = totals, choices
        self._bound = float(np.log1p(bound))
        self._random = random
        self._sizes = np.array([len(v) for v in choices.values])
        width = int(self._sizes.max(initial=1))
        self._table = np.stack([np.resize(v, width) for v in choices.values])
        self._at = np.zeros((_WAYS, len(choices)), dtype=np.int64)
        self._tried: set[bytes] = set()

    def next(self, beside: Float64s) -> NDArray[np.int64]:
        """The best values that were not given before."""
        self._at[::2] = 0  # other ways than before
        at, cost = self._at, self._cost(self._at, beside)
        for heat in np.geomspace(_HOT, _COLD, _STEPS):
            other = self._moved(at)
            others = self._cost(other, beside)
            better = self._random.random(_WAYS) < np.exp(np.minimum((cost - others) / heat, 0.0))
            at = np.where(better[:, None], other, at)
            cost = np.where(better, others, cost)
        self._at = at
        order = np.argsort(cost, kind="stable")
        new = [w for w in order.tolist() if at[w].tobytes() not in self._tried]
        best = at[new[0] if new else int(order[0])]
        self._tried.add(best.tobytes())
        found: NDArray[np.int64] = self._values(best[None, :])[0].astype(np.int64)
        return found

    def _moved(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """One, two or three variables of each way with other values."""
        found = at.copy()
        for chance in (1.0, 0.7, 0.3):
            which = self._random.integers(len(self._choices), size=_WAYS)
            value = self._random.integers(self._sizes[which])
            ways = np.flatnonzero(self._random.random(_WAYS) < chance)
            found[ways, which[ways]] = value[ways]
        return found

    def _values(self, at: NDArray[np.int64]) -> Float64s:
        """Of each variable."""
        found = self._table[np.arange(len(self._choices))[None, :], at]
        return np.asarray(found[:, self._choices.group])

    def _cost(self, at: NDArray[np.int64], beside: Float64s) -> Float64s:
        values = self._values(at)
        logs = self._totals.logs(values) + beside
        over = np.maximum(np.abs(logs) / (0.85 * self._bound) - 1.0, 0.0).sum(axis=1)
        moves = np.abs(np.log(values / self._totals.own))
        stay = 1.0 - np.minimum(moves / _SMALL_MOVE, 1.0)
        return np.asarray(_BROKEN * over + (stay * self._choices.weight).sum(axis=1))
