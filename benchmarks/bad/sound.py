"""Whether numbers of a JSON document can be: none negative or not finite, none against another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Fields that may be below 0: differences, offsets, and numbers that stand for none with -1.
_SIGNED = re.compile(
    r"error|percent|difference|shift|offset|^(parent|mask|choice|change|delta|moved|coordinate)$"
)
#: Shares of a whole.
_SHARES = ("mfu", "hfu", "derate")
#: By how much sums may miss a whole, as numbers are rounded.
_ROUNDED, _ONE = 1e-6, 1.0


def wrong_number(document: Any) -> str:
    """What of a document cannot be, "" where all can."""
    return next(_wrong(document, ""), "")


def _wrong(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from filter(None, (check(value) for check in _CHECKS))
        for key, inner in value.items():
            yield from _wrong(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _wrong(inner, name)
    elif isinstance(value, int | float) and _cannot_be(value, name):
        yield f"{name} is {value}"


def _cannot_be(value: float, name: str) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return True
    if name in ("rank", "node") and value == -1:
        return False  # a finding that is of none
    return value < 0 and not _SIGNED.search(name)


def _shares(found: Mapping[str, Any]) -> str:
    over = [n for n in _SHARES if _number(found.get(n)) > _ONE + _ROUNDED]
    return f"{over[0]} is {found[over[0]]}" if over else ""


def _parts(found: Mapping[str, Any]) -> str:
    """Parts of a step, and of a peak, are no longer or larger than the whole."""
    step = found.get("step_time_ns")
    if isinstance(step, int | float):
        most = step * (1 + _ROUNDED) + _ONE
        classes = found.get("classes")
        ends = [c.get("end_ns") for c in classes if isinstance(c, Mapping)] if isinstance(classes, list) else []  # fmt: skip
        exposed = found.get("exposed_ns")
        ends += list(exposed.values()) if isinstance(exposed, Mapping) else []
        late = [e for e in map(_number, ends) if e > most]
        if late:
            return f"a part takes {late[0]} of {step} ns"
    peak, kinds = found.get("peak_bytes"), found.get("breakdown", found.get("memory_bytes"))
    if not isinstance(peak, int) or not isinstance(kinds, Mapping):
        return ""
    most_kind = max(map(_number, kinds.values()), default=0)
    return f"a kind of memory is more than the peak of {peak}" if most_kind > peak else ""


def _interval(found: Mapping[str, Any]) -> str:
    low, high = _number(found.get("low_ns")), _number(found.get("high_ns"))
    return f"an interval from {low} to {high}" if "high_ns" in found and low > high else ""


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(min(value, 10**300)) if isinstance(value, int) else value


_CHECKS: tuple[Callable[[Mapping[str, Any]], str], ...] = (_shares, _parts, _interval)
