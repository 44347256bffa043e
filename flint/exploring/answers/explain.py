"""Why one point beats another: where the time of both goes, and their memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flint.exploring.choices import choices
from flint.exploring.result import Result
from flint.text import format_bytes, format_duration

#: Shares of the larger step, or memory, below which a difference is not told.
_LEAST = 0.005


@dataclass(frozen=True, slots=True)
class Delta:
    """One part of two steps, or of their memory: in ns or bytes."""

    name: str
    first: float
    second: float

    @property
    def change(self) -> float:
        """What the second has more."""
        return self.second - self.first


@dataclass(frozen=True)
class Explanation:
    """What two points choose otherwise, and where their time and memory differ, largest first.

    Times of the second are `scale` times its own: for as many tokens as the first has.
    """

    first: Result
    second: Result
    chosen: Mapping[str, tuple[str, str]]
    time: tuple[Delta, ...]
    memory: tuple[Delta, ...]
    scale: float

    def to_text(self) -> str:
        """Lines for people."""
        second_ns = self.second.step_time_ns * self.scale
        mine, theirs = format_duration(self.first.step_time_ns), format_duration(second_ns)
        lines = [f"step time {mine} against {theirs}{self._scaled()}"]
        lines += [
            f"  {name}: {a or '(not chosen)'} against {b or '(not chosen)'}"
            for name, (a, b) in self.chosen.items()
        ]
        lines += [f"  {_told(d, format_duration)}" for d in self.time]
        peak = Delta("memory", self.first.memory_bytes, self.second.memory_bytes)
        lines.append(_told(peak, _bytes))
        lines += [f"  {_told(d, _bytes)}" for d in self.memory]
        return "\n".join(lines)

    def _scaled(self) -> str:
        if self.scale == 1:
            return ""
        return (
            f" for as many tokens ({self.first.tokens:,}; its own step has {self.second.tokens:,})"
        )


def explained(first: Result, second: Result) -> Explanation:
    """Why `first` is as fast, or slow, as it is beside `second`."""
    scale = first.tokens / second.tokens if first.tokens and second.tokens else 1.0
    mine, theirs = choices(first.point), choices(second.point)
    names = dict.fromkeys((*mine, *theirs))
    chosen = {n: (mine.get(n, ""), theirs.get(n, "")) for n in names}
    return Explanation(
        first,
        second,
        {n: both for n, both in chosen.items() if both[0] != both[1]},
        _largest(_parts(first), _parts(second), scale),
        _largest(first.memory, second.memory, 1.0),
        scale,
    )


def _parts(r: Result) -> dict[str, float]:
    """Parts of a step, which add up to it: they are those of the class that ends last."""
    return dict(_named_parts(r))


def _named_parts(r: Result) -> Iterator[tuple[str, float]]:
    yield "computes", r.compute_ns
    for axes, ns in r.exposed_ns.items():
        yield f"exposed communication over {axes}", ns
    yield "waits for other ranks (pipeline bubble)", r.waiting_ns
    yield "waits for its host", r.host_ns


def _largest(
    first: Mapping[str, float], second: Mapping[str, float], scale: float
) -> tuple[Delta, ...]:
    names = dict.fromkeys((*first, *second))
    deltas = [Delta(n, first.get(n, 0.0), second.get(n, 0.0) * scale) for n in names]
    whole = max(sum(first.values()), sum(second.values()) * scale, 1.0)
    told = [d for d in deltas if abs(d.change) >= _LEAST * whole]
    return tuple(sorted(told, key=lambda d: (-abs(d.change), d.name)))


def _told(d: Delta, shown: object) -> str:
    assert callable(shown)
    sign = "+" if d.change >= 0 else "-"
    return f"{d.name}: {shown(d.first)} against {shown(d.second)} ({sign}{shown(abs(d.change))})"


def _bytes(count: float) -> str:
    return format_bytes(int(count))
