"""Budgets: how much of a number a change may cost, and what broke one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flint.errors import FlintError, nearest
from flint.tools.change.diff.difference_numbers import DifferenceNumbers
from flint.tools.change.diff.match import Change
from flint.tools.change.diff.metrics import METRICS, Metric, Number, Unit, axes_of
from flint.tools.change.diff.snapshot import EstimateFacts

_LIMIT = re.compile(r"(\+?)\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(%|[A-Za-z]*)")
_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_BINARY = {f"{p}iB": 1024.0**i for i, p in enumerate(("", "K", "M", "G", "T", "P")) if i}
_DECIMAL = {p: 1000.0**i for i, p in enumerate(("", "k", "M", "G", "T", "P", "E"))}
#: Factors by unit, for each kind of number.
_FACTORS: Mapping[Unit, Mapping[str, float]] = {
    Unit.NS: _NS,
    Unit.BYTES: {"": 1.0, "B": 1.0, **_BINARY, **{f"{p}B": f for p, f in _DECIMAL.items()}},
    Unit.FLOPS: {"": 1.0, **_DECIMAL, **{f"{p}FLOP": f for p, f in _DECIMAL.items()}},
    Unit.COUNT: {"": 1.0, **_DECIMAL},
    Unit.PERCENT: {"": 1.0},
}
#: The unit of an example.
_USUAL = {Unit.NS: "ms", Unit.BYTES: "GiB", Unit.FLOPS: "TFLOP", Unit.COUNT: "k", Unit.PERCENT: ""}


@dataclass(frozen=True, slots=True)
class Budget:
    """At most so much of a metric: `+2%` or `+1GiB` more than before, or `400ms` whatever it was.

    Of MFU, for which more is better, at least: `+2` lets it fall by two points.
    """

    metric: Metric
    axis: str
    limit: float
    is_more: bool
    is_share: bool
    text: str

    @property
    def name(self) -> str:
        """`bytes:data`."""
        return f"{self.metric.name}:{self.axis}" if self.axis else self.metric.name

    def most(self, before: float) -> float:
        """The largest number that is within the budget; for MFU the smallest."""
        sign = -1 if self.metric.unit is Unit.PERCENT else 1
        if not self.is_more:
            return self.limit
        return before * (1 + sign * self.limit) if self.is_share else before + sign * self.limit

    def holds(self, before: float, after: float) -> bool:
        """Whether a change is within the budget, except rounding of the ninth digit."""
        most = self.most(before)
        slack = abs(most) * 1e-9
        if self.metric.unit is Unit.PERCENT:
            return after >= most - slack
        return after <= most + slack


@dataclass(frozen=True, slots=True)
class Broken:
    """A budget that does not hold, and the kernels that add most to it.

    Of peak memory no kernels but `kind`: of what the peak holds more now, `saved_activations`.
    """

    budget: Budget
    number: Number
    worst: Change | None
    kind: str = ""

    def __str__(self) -> str:
        unit, (before, after) = self.budget.metric.unit, (self.number.before, self.number.after)
        assert before is not None
        assert after is not None
        change = self.number.change_text()
        said = f"{self.number.title} {unit.text(before)} -> {unit.text(after)}"
        return f"{said}{f' ({change})' if change else ''}, budget {self.budget.name}={self.budget.text}"


def parse_budgets(text: str) -> list[Budget]:
    """`step-time=+2%,memory=+1GiB,bytes:data=+0`. Raises FlintError FL720."""
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, limit = part.partition("=")
        if not equals:
            raise FlintError(
                "FL720", f"budget '{part}' has no limit", help="write step-time=+2%,memory=+1GiB"
            )
        found.append(parse_budget(name.strip(), limit.strip()))
    return found


def parse_budget(name: str, limit: str) -> Budget:
    """One budget: a metric, perhaps with a mesh axis (`bytes:data`), and its limit."""
    known, _, axis = name.partition(":")
    metric = METRICS.get(known)
    if metric is None:
        raise FlintError(
            "FL720",
            f"unknown budget '{known}'{nearest(known, list(METRICS))}",
            help="budgets are " + ", ".join(METRICS),
        )
    if axis and not metric.by_axis:
        raise FlintError(
            "FL720",
            f"budget '{name}': {metric.title} is not split by mesh axis",
            help="with an axis: " + ", ".join(m.name for m in METRICS.values() if m.by_axis),
        )
    number, is_more, is_share = _limit(name, limit, metric.unit)
    return Budget(metric, axis, number, is_more, is_share, limit)


def _limit(name: str, text: str, unit: Unit) -> tuple[float, bool, bool]:
    found = _LIMIT.fullmatch(text)
    factors = _FACTORS[unit]
    if found and found[3] == "%" and found[1]:
        return float(found[2]) / 100, True, True
    number = float(found[2]) if found else math.inf
    bare = found is not None and found[1] == "+" and number == 0
    if found is None or not math.isfinite(number) or not (bare or found[3] in factors):
        units = ", ".join(filter(None, factors))
        raise FlintError(
            "FL720",
            f"budget {name}={text} is not a limit",
            help="write +2% or +0"
            + (f", or a number with a unit ({units}), +1{_USUAL[unit]}" if units else ""),
        )
    return number * factors.get(found[3], 1.0), bool(found[1]), False


def broken(difference: DifferenceNumbers, budgets: Iterable[Budget]) -> list[Broken]:
    """Budgets that do not hold.

    Raises FlintError FL721 for one that cannot be told: its mesh axis is not there, or a number that
    needs a cluster (or a program) is not known on both sides.
    """
    return [b for b in (_broken(difference, budget) for budget in budgets) if b is not None]


def _broken(difference: DifferenceNumbers, budget: Budget) -> Broken | None:
    one, other = difference.estimated or (None, None)
    before = budget.metric.of(difference.before, one, budget.axis)
    after = budget.metric.of(difference.after, other, budget.axis)
    axes = {*axes_of(difference.before), *axes_of(difference.after)}
    if budget.axis and axes and budget.axis not in axes:
        raise FlintError(
            "FL721",
            f"budget {budget.name}: the mesh has no axis '{budget.axis}'"
            f"{nearest(budget.axis, sorted(axes))}",
            help="its axes are " + ", ".join(sorted(axes)),
        )
    if before is None or after is None:
        raise FlintError(
            "FL721",
            f"budget {budget.name}: {budget.metric.title} is not known on both sides",
            help="give a cluster (-c h100-dgx)" if other is None else "compare captures",
        )
    if budget.holds(before, after):
        return None
    number = Number(budget.metric, budget.axis, before, after)
    kind = _fullest(one, other) if one and other and budget.metric.name == "memory" else ""
    return Broken(budget, number, _worst(difference, budget), kind)


def _fullest(before: EstimateFacts, after: EstimateFacts) -> str:
    """What of the memory at the peak grew most."""
    grew = {k: n - before.memory_bytes.get(k, 0) for k, n in after.memory_bytes.items()}
    kind = max(grew, key=lambda k: grew[k], default="")
    return kind if kind and grew[kind] > 0 else ""


def _worst(difference: DifferenceNumbers, budget: Budget) -> Change | None:
    """The change that adds most to what the budget holds; none where kernels do not make it up."""
    part = budget.metric.part
    if part is None:
        return None
    changes = [c for c in difference.changes if not budget.axis or budget.axis in c.over.split(",")]
    if budget.metric.by_axis:
        changes = [c for c in changes if c.over]
    worst = max(changes, key=lambda c: part(c.delta), default=None)
    return worst if worst is not None and part(worst.delta) > 0 else None
