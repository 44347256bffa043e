"""What can be wanted of a point: time, tokens per second, cost, memory ...

A quantity that is not known of a result (no tokens, no price) is None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from flint.errors import FlintError, nearest
from flint.text import format_bytes, format_count, format_duration
from flint.tools.explore.result import PERCENTILES, SERVED, ClassResult, PoolRole, Result
from flint.tools.explore.space.expression import Value

# What users of an inference service feel: time to the first token, time per token; and its caches.
#
# Of two pools (`flint.Disaggregated`), the prefill pool's step is the time to the first token, without queues; the
# decode pool's step, without what it waits for the caches of the requests that arrive, the time per
# output token: in the steady state it decodes others meanwhile. Of one step, which is either, both are its time;
# a recorded loop has both.


def ttft_ns(result: Result) -> float:
    """Time to the first token of a batch of prompts that finds the prefill pool free."""
    pool = _pool(result, PoolRole.PREFILL)
    alone = result.ttft_ns or result.step_time_ns
    return alone if pool is None else pool.end_ns


def tpot_ns(result: Result) -> float:
    """Time per output token: of a decode step. A step that decodes n tokens takes n of them."""
    pool = _pool(result, PoolRole.DECODE)
    alone = result.tpot_ns or result.step_time_ns
    return alone if pool is None else pool.end_ns - pool.waiting_ns


def period_ns(result: Result) -> float:
    """How often the tokens of a step come out: pools work at the same time, decoding paces them."""
    return result.step_time_ns if _pool(result, PoolRole.DECODE) is None else tpot_ns(result)


def cache_bytes(result: Result) -> int:
    """Keys and values on the device that holds most of them; 0 where a step updates no cache."""
    return max((c.cache_bytes for c in result.classes), default=0)


def _pool(result: Result, role: PoolRole) -> ClassResult | None:
    """The pool that ends last of those that serve so."""
    pools = [c for c in result.classes if c.role is role]
    return max(pools, key=lambda c: c.end_ns) if pools else None


_HOUR_NS = 3600e9
_SECOND_NS = 1e9
_MILLION = 1e6
_WH = 3600.0  # joules


class QuantityUnit(StrEnum):
    """What a quantity is counted in."""

    NS = "ns"
    BYTES = "bytes"
    PER_S = "tokens/s"
    REQUESTS = "requests/s"
    SHARE = "share"
    USD = "USD"
    KWH = "kWh"
    COUNT = "count"

    def text(self, value: float) -> str:
        """A number for people."""
        if self is QuantityUnit.NS:
            return format_duration(value)
        if self is QuantityUnit.BYTES:
            return f"-{format_bytes(round(-value))}" if value < 0 else format_bytes(round(value))
        if self is QuantityUnit.SHARE:
            return f"{value:.1%}"
        if self is QuantityUnit.USD:
            return f"${_digits(value)}"
        if self is QuantityUnit.KWH:
            return f"{_digits(value)} kWh"
        return format_count(round(value)) if self is QuantityUnit.COUNT else _digits(value)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Objective:
    """A quantity of a result, and whether more of it is better. `note` says what it omits."""

    name: str  #: as `--objective` and `--where` call it
    title: str
    unit: QuantityUnit
    maximize: bool
    of: Callable[[Result], float | None]
    note: str = ""

    def value(self, result: Result) -> float | None:
        """The quantity in its unit; None where it is not known."""
        return self.of(result)

    def order(self, result: Result) -> float:
        """What sorts the best first, and results of which it is not known last."""
        value = self.of(result)
        if value is None:
            return float("inf")
        return -value if self.maximize else value

    def text(self, result: Result) -> str:
        """The quantity for people; "-" where it is not known."""
        value = self.of(result)
        return "-" if value is None else self.unit.text(value)

    def range(self, result: Result) -> tuple[float, float] | None:
        """The quantity at both ends of the interval of the step time, the lesser first.

        None where there is no interval.
        """
        if not result.low_ns or not result.high_ns or not result.step_time_ns:
            return None
        ends = [self.of(_lasting(result, ns)) for ns in (result.low_ns, result.high_ns)]
        if ends[0] is None or ends[1] is None:
            return None
        return min(ends[0], ends[1]), max(ends[0], ends[1])


def _lasting(result: Result, step_time_ns: float) -> Result:
    """The result if all of the step took longer, or shorter, by one factor."""
    factor = step_time_ns / result.step_time_ns
    classes = tuple(
        replace(c, end_ns=c.end_ns * factor, waiting_ns=c.waiting_ns * factor)
        for c in result.classes
    )
    return replace(result, step_time_ns=step_time_ns, mfu=result.mfu / factor, classes=classes)


def _tokens_per_s(r: Result) -> float | None:
    if r.served:
        return r.served["output_tokens_per_s"]
    period = period_ns(r)
    return r.tokens / period * _SECOND_NS if r.tokens and period else None


def _tokens_per_s_per_device(r: Result) -> float | None:
    found = _tokens_per_s(r)
    return None if found is None else found / r.devices


def _cost_per_step(r: Result) -> float | None:
    if not r.price_per_hour or not r.step_time_ns:
        return None
    return r.price_per_hour * r.devices * period_ns(r) / _HOUR_NS


def _per_mtoken(of_step: float | None, r: Result) -> float | None:
    return None if of_step is None or not r.tokens else of_step / r.tokens * _MILLION


def _cost_per_mtoken(r: Result) -> float | None:
    if r.served and r.price_per_hour:
        return r.price_per_hour * r.devices / 3600 / r.served["output_tokens_per_s"] * _MILLION
    return _per_mtoken(_cost_per_step(r), r)


def _of_served(name: str) -> Callable[[Result], float | None]:
    return lambda r: r.served.get(name)


def _goodput_per_device(r: Result) -> float | None:
    return r.served["goodput"] / r.devices if r.served else None


def _kwh_per_mtoken(r: Result) -> float | None:
    joules = r.power_w * r.devices * period_ns(r) / _SECOND_NS
    return _per_mtoken(joules / _WH / 1000 or None, r)


def _headroom(r: Result) -> float | None:
    known = r.capacity_bytes and r.memory_bytes
    return float(r.capacity_bytes - r.memory_bytes) if known else None


_NS, _PER_S, _REQUESTS = QuantityUnit.NS, QuantityUnit.PER_S, QuantityUnit.REQUESTS
_COST = "cost is time x devices x the price in the cluster's file"
_ENERGY = "energy is an upper bound: chips at their power limit all the time, without hosts, network and cooling"
_TIME = Objective("time", "step time", _NS, False, lambda r: r.step_time_ns or None)
_TOKENS = Objective("tokens_per_s", "tokens/s", _PER_S, True, _tokens_per_s)
_ALL = (
    _TIME,
    _TOKENS,
    Objective("tokens_per_s_per_device", "tokens/s/device", _PER_S, True, _tokens_per_s_per_device),
    Objective("mfu", "MFU", QuantityUnit.SHARE, True, lambda r: r.mfu if r.step_time_ns else None),
    Objective(
        "cost_per_mtoken", "cost of 1M tokens", QuantityUnit.USD, False, _cost_per_mtoken, _COST
    ),
    Objective("cost_per_step", "cost of a step", QuantityUnit.USD, False, _cost_per_step, _COST),
    Objective(
        "energy_per_mtoken",
        "energy of 1M tokens",
        QuantityUnit.KWH,
        False,
        _kwh_per_mtoken,
        _ENERGY,
    ),
    Objective(
        "memory", "memory", QuantityUnit.BYTES, False, lambda r: float(r.memory_bytes) or None
    ),
    Objective("headroom", "headroom", QuantityUnit.BYTES, True, _headroom),
    Objective("devices", "devices", QuantityUnit.COUNT, False, lambda r: float(r.devices)),
    Objective("ttft", "time to first token", _NS, False, lambda r: ttft_ns(r) or None),
    Objective("tpot", "time per token", _NS, False, lambda r: tpot_ns(r) or None),
    Objective("goodput", "goodput", _REQUESTS, True, _of_served("goodput")),
    Objective("goodput_per_device", "goodput/device", _REQUESTS, True, _goodput_per_device),
    Objective("requests_per_s", "requests/s", _REQUESTS, True, _of_served("requests_per_s")),
    *(
        Objective(f"{q}_p{p}", f"{q.upper()} p{p}", _NS, False, _of_served(f"{q}_p{p}"))
        for q in SERVED
        for p in PERCENTILES
    ),
)
#: All objectives by name.
OBJECTIVES: Mapping[str, Objective] = {o.name: o for o in _ALL}


def objectives_of(names: Sequence[str]) -> tuple[Objective, ...]:
    """The objectives with these names; one text may have several, "time,memory".

    Raises FlintError FL869 for a name that there is not, and one that is there twice.
    """
    asked = [n.strip() for text in names for n in text.split(",")]
    for name in asked:
        if name not in OBJECTIVES:
            raise FlintError(
                "FL869",
                f"no objective is called '{name}'{nearest(name, list(OBJECTIVES))}",
                help=f"objectives are {', '.join(OBJECTIVES)}",
            )
        if asked.count(name) > 1:
            raise FlintError("FL869", f"the objective {name} is given twice", help="omit one")
    return tuple(OBJECTIVES[n] for n in asked)


def default_objective(results: Sequence[Result]) -> Objective:
    """Tokens per second where the results that were estimated differ in tokens and all know them.

    Else the step time: of points with equal tokens both give the same order.
    """
    if any(r.served for r in results):
        return OBJECTIVES["goodput"]
    tokens = {r.tokens for r in results if r.step_time_ns}
    return _TOKENS if len(tokens) > 1 and 0 not in tokens else _TIME


def rate(result: Result) -> float | None:
    """Tokens per second, or steps per second where tokens are not known.

    It orders as the default objective does before it is known which that is.
    """
    if result.served:
        return result.served["goodput"]
    found = _tokens_per_s(result)
    return (
        found if found is not None or not result.step_time_ns else _SECOND_NS / result.step_time_ns
    )


#: What a search goes for where nothing is asked for.
RATE = Objective("rate", "tokens/s or steps/s", QuantityUnit.PER_S, True, rate)


def names_of_result(result: Result) -> dict[str, Value]:
    """What the names of results in conditions stand for; those that are not known are omitted."""
    found: dict[str, Value] = {
        name: o.value(result) for name, o in OBJECTIVES.items() if name != "devices"
    }
    found |= {
        "step_time_ns": found["time"],
        "memory_bytes": found["memory"],
        "ttft_ns": found["ttft"],
        "tpot_ns": found["tpot"],
        "tokens": result.tokens or None,
    }
    return {name: value for name, value in found.items() if value is not None}
