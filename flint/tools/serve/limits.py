"""Limits of goodput, `ttft<=2s,tpot<=50ms`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flint.errors import FlintError, nearest

_LIMIT = re.compile(r"\s*(\w+)\s*<=?\s*(\d+\.?\d*|\.\d+)\s*(us|ms|s)\s*")
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9}
LIMITED = ("ttft", "tpot", "latency", "queue")


@dataclass(frozen=True)
class Limit:
    """The most that a request may take of one quantity."""

    quantity: str
    most_ns: float


def limits_of(text: str) -> tuple[Limit, ...]:
    """Reads limits, with commas between them. Raises FlintError FL891 for what cannot be read or met."""
    found: dict[str, Limit] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part)
        if match is None or not float(match[2]):
            raise FlintError(
                "FL891", f"'{part.strip()}' is no limit", help="write ttft<=2s,tpot<=50ms"
            )
        name = match[1].lower()
        if name not in LIMITED or name in found:
            why = "stands twice" if name in found else f"is not limited{nearest(name, LIMITED)}"
            raise FlintError(
                "FL891", f"{name} {why} in '{text}'", help=f"limit {', '.join(LIMITED)}"
            )
        found[name] = Limit(name, float(match[2]) * _NS[match[3]])
    if "ttft" in found and "latency" in found and found["latency"].most_ns < found["ttft"].most_ns:
        raise FlintError("FL891", f"'{text}' contradicts itself: the first token comes before the last",
                         help="a limit of ttft above that of latency limits nothing: leave it out")  # fmt: skip
    return tuple(found.values())
