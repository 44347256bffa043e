"""Quantities of results that a page compares points by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from flint.exploring.result import Result
from flint.text import format_bytes, format_duration


class Measure(NamedTuple):
    """A quantity of a result: its title, its value, how that is written, and whether more is better.

    `base` is that of its round numbers.
    """

    title: str
    of: Callable[[Result], float]
    written: Callable[[float], str]
    more_is_better: bool = False
    base: float = 10.0

    def best(self, results: Iterable[Result]) -> Result | None:
        """The first of the best; None of nothing."""
        return min(results, key=self.order, default=None)

    def order(self, result: Result) -> float:
        """What sorts the best first."""
        value = self.of(result)
        return -value if self.more_is_better else value


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def tokens_per_s(result: Result) -> float:
    """0 where tokens or time are not known."""
    return result.tokens / result.step_time_ns * 1e9 if result.step_time_ns else 0.0


TIME = Measure("step time", lambda r: r.step_time_ns, format_duration)
TOKENS = Measure("tokens/s", tokens_per_s, _rate, more_is_better=True)
MEMORY = Measure(
    "peak memory", lambda r: float(r.memory_bytes), lambda v: format_bytes(int(v)), base=2.0
)
MFU = Measure("MFU", lambda r: r.mfu, lambda v: f"{v:.1%}", more_is_better=True)


def usual(results: Iterable[Result]) -> Measure:
    """Tokens per second where points differ in the tokens of a step and all say them, else time."""
    counts = {result.tokens for result in results}
    return TOKENS if len(counts) > 1 and 0 not in counts else TIME
