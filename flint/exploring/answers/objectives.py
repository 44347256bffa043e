"""Objectives: quantities of results that are wanted small or large, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from flint.errors import FlintError, nearest
from flint.exploring.result import Result
from flint.exploring.serving import tpot_ns, ttft_ns
from flint.text import format_bytes, format_duration

_NS_PER_S: Final = 1e9
_S_PER_HOUR: Final = 3600.0
_PER_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True)
class Objective:
    """A quantity of a result. `of` gives None where it is not known, `shown` writes it for people."""

    name: str
    title: str
    maximize: bool
    of: Callable[[Result], float | None]
    shown: Callable[[float], str]
    #: What has to be known for it, for a message where no result has it.
    needs: str = "an estimate"

    def value(self, result: Result) -> float | None:
        """The quantity of a result; None where it is not known."""
        return self.of(result)

    def loss(self, result: Result) -> float:
        """What is to be small: the quantity, or its negative; infinite where it is not known."""
        found = self.of(result)
        if found is None:
            return float("inf")
        return -found if self.maximize else found


def _time(r: Result) -> float | None:
    return r.step_time_ns or None


def _rate(r: Result) -> float | None:
    """Tokens a second."""
    return r.tokens / r.step_time_ns * _NS_PER_S if r.tokens and r.step_time_ns else None


def _rate_of_a_device(r: Result) -> float | None:
    rate = _rate(r)
    return rate / r.devices if rate else None


def _cost(r: Result) -> float | None:
    """USD of a step: what all devices cost while it runs."""
    if not r.price_per_hour or not r.step_time_ns:
        return None
    return r.price_per_hour * r.devices * r.step_time_ns / _NS_PER_S / _S_PER_HOUR


def _energy(r: Result) -> float | None:
    """J of a step: every chip at the limit of its power, so an upper bound of what chips take."""
    return r.power_w * r.devices * r.step_time_ns / _NS_PER_S if r.power_w else None


def _by_million_tokens(of: Callable[[Result], float | None]) -> Callable[[Result], float | None]:
    def found(r: Result) -> float | None:
        value = of(r)
        return value / r.tokens * _PER_MILLION if value is not None and r.tokens else None

    return found


def _memory(r: Result) -> float | None:
    return float(r.memory_bytes) or None


def _headroom(r: Result) -> float | None:
    known = r.memory_bytes and r.capacity_bytes
    return float(r.capacity_bytes - r.memory_bytes) if known else None


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(value: float) -> str:
    return format_bytes(int(value)) if value >= 0 else f"-{format_bytes(int(-value))}"


_TOKENS: Final = "tokens of a step (--tokens)"
_PRICE: Final = "price_per_hour in the cluster's file"
_ALL: Final = (
    Objective("time", "time", False, _time, format_duration),
    Objective("tokens_per_s", "tokens/s", True, _rate, _number, _TOKENS),
    Objective(
        "tokens_per_s_per_device", "tokens/s a device", True, _rate_of_a_device, _number, _TOKENS
    ),
    Objective("mfu", "MFU", True, lambda r: r.mfu or None, lambda v: f"{v:.1%}"),
    Objective("cost_per_step", "USD a step", False, _cost, lambda v: f"{v:.4g}", _PRICE),
    Objective(
        "cost_per_mtoken",
        "USD a million tokens",
        False,
        _by_million_tokens(_cost),
        lambda v: f"{v:.4g}",
        f"{_PRICE}, and {_TOKENS}",
    ),
    Objective(
        "energy_per_mtoken",
        "J a million tokens, at most",
        False,
        _by_million_tokens(_energy),
        _number,
        f"chip.power_w in the cluster's file, and {_TOKENS}",
    ),
    Objective("memory", "memory", False, _memory, _bytes),
    Objective("headroom", "memory left", True, _headroom, _bytes),
    Objective("devices", "devices", False, lambda r: float(r.devices), _number),
    Objective("ttft", "time to first token", False, ttft_ns, format_duration, "a prefill step"),
    Objective("tpot", "time per output token", False, tpot_ns, format_duration, "a decode step"),
)
OBJECTIVES: Final[Mapping[str, Objective]] = MappingProxyType({o.name: o for o in _ALL})


def find_objectives(names: Sequence[str]) -> tuple[Objective, ...]:
    """Objectives by name, each once. Raises FlintError FL869 for an unknown or repeated one."""
    for at, name in enumerate(names):
        if name not in OBJECTIVES:
            raise FlintError(
                "FL869",
                f"unknown objective '{name}'{nearest(name, list(OBJECTIVES))}",
                help="objectives are " + ", ".join(OBJECTIVES),
            )
        if name in names[:at]:
            raise FlintError("FL869", f"objective '{name}' is named twice", help="leave one out")
    return tuple(OBJECTIVES[name] for name in names)


def usual_objective(results: Iterable[Result]) -> Objective:
    """Tokens a second where steps have different numbers of tokens, else the time of a step.

    Times of steps that do different amounts of work do not compare.
    """
    tokens = {r.tokens for r in results if r.step_time_ns}
    return OBJECTIVES["time" if len(tokens) < 2 or 0 in tokens else "tokens_per_s"]


def require_known(objectives: Sequence[Objective], results: Sequence[Result]) -> None:
    """Raise FlintError FL869 for an objective that no result has a value of."""
    priced = [r for r in results if r.step_time_ns]
    for objective in objectives:
        if priced and all(objective.value(r) is None for r in priced):
            raise FlintError(
                "FL869",
                f"objective '{objective.name}' is known of none of {len(priced)} points",
                help=f"it needs {objective.needs}",
            )


def values_of(result: Result) -> dict[str, float]:
    """Every quantity that is known, by name: what `--where` may ask for, and exports hold."""
    found = {o.name: o.value(result) for o in _ALL}
    return {name: value for name, value in found.items() if value is not None}
