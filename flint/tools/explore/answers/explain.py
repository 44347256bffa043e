"""Why one result is better than another: what its time and its memory are made of, largest difference first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flint.text import Column, headings, text_table
from flint.tools.change.diff.metrics import Unit
from flint.tools.explore.answers.objectives import Objective
from flint.tools.explore.point import choices
from flint.tools.explore.result import Result


@dataclass(frozen=True, slots=True)
class ExplainedPart:
    """A part of the step time or of the peak memory in both results."""

    title: str
    unit: Unit
    before: float
    after: float

    @property
    def delta(self) -> float:
        """What the second has more of it."""
        return self.after - self.before

    def change_text(self) -> str:
        """`+1.20 ms`, `-3.00 GiB`."""
        if not self.delta:
            return ""
        return f"{'+' if self.delta > 0 else '-'}{self.unit.text(abs(self.delta))}"


@dataclass(frozen=True, slots=True)
class RowExplanation:
    """How `second` differs from `first`. Parts of the time add up to its difference, those of memory, too."""

    first: Result
    second: Result
    choices: tuple[tuple[str, str, str], ...]  #: name, value of the first, of the second
    time: tuple[ExplainedPart, ...]
    memory: tuple[ExplainedPart, ...]
    #: What the times of the second are multiplied by: steps of other tokens are compared for as many.
    factor: float = 1.0

    @property
    def verdict(self) -> str:
        """One sentence: by how much the second is slower or faster, and what most of it is."""
        a, b = self.first.step_time_ns, self.second.step_time_ns * self.factor
        if not self.time:
            return f"both steps take {Unit.NS.text(a)}{self._for()}"
        word = "longer" if b >= a else "shorter"
        share = f"{abs(b / a - 1):.1%}" if a else "-"
        most = ", ".join(f"{p.title} {p.change_text()}" for p in self.time[:3])
        return f"the second takes {Unit.NS.text(abs(b - a))} ({share}) {word}{self._for()}: {most}"

    def _for(self) -> str:
        return " for the same number of tokens" if self.factor != 1 else ""


def explain(first: Result, second: Result) -> RowExplanation:
    """Compare two results that were estimated, part by part; the largest difference first.

    Times are of the rank class that ends last, memory of the class that holds most. Times of the second
    are for as many tokens as the first has, where both are known.
    """
    factor = first.tokens / second.tokens if first.tokens and second.tokens else 1.0
    scaled = {title: ns * factor for title, ns in _time(second).items()}
    return RowExplanation(
        first,
        second,
        tuple(_choices(first, second)),
        _parts(_time(first), scaled, Unit.NS),
        _parts(_memory(first), _memory(second), Unit.BYTES),
        factor,
    )


def explanation_text(found: RowExplanation, goals: Sequence[Objective] = ()) -> str:
    """Verdict, choices that differ, objectives, and tables of time and memory."""
    lines = [found.verdict]
    lines += [
        f"{o.title}: {o.text(found.first)} and {o.text(found.second)}"
        for o in goals
        if o.name not in ("time", "memory")
    ]
    rows = [(name, a or "-", b or "-") for name, a, b in found.choices]
    parts = ["\n".join(lines)]
    if rows:
        parts.append(text_table(headings("choice | first | second"), rows))
    for title, of in (("time of the step", found.time), ("memory at the peak", found.memory)):
        if of:
            cells = [(p.title, *map(p.unit.text, (p.before, p.after)), p.change_text()) for p in of]
            parts.append(text_table((Column(title), *_NUMBERS), cells))
    return "\n\n".join(parts)


_NUMBERS = headings(">first | >second | >difference")


def _choices(first: Result, second: Result) -> Iterator[tuple[str, str, str]]:
    a, b = choices(first.point), choices(second.point)
    for name in dict.fromkeys((*a, *b)):
        if a.get(name, "") != b.get(name, ""):
            yield name, a.get(name, ""), b.get(name, "")


def _time(result: Result) -> dict[str, float]:
    found = {"compute": result.compute_ns}
    for axes, ns in result.exposed_ns.items():
        found[f"exposed communication over {axes}"] = ns
    found["waiting for other ranks"] = result.waiting_ns
    found["waiting for the host"] = result.host_ns
    # What no part has: time in which communication runs beside nothing that is told apart.
    found["other"] = result.step_time_ns - sum(found.values())
    return found


def _memory(result: Result) -> dict[str, float]:
    found = {kind.replace("_", " "): float(count) for kind, count in result.memory.items()}
    found["other"] = result.memory_bytes - sum(found.values())
    return found


def _parts(
    first: dict[str, float], second: dict[str, float], unit: Unit
) -> tuple[ExplainedPart, ...]:
    names: Iterable[str] = dict.fromkeys((*first, *second))
    found = [ExplainedPart(n, unit, first.get(n, 0.0), second.get(n, 0.0)) for n in names]
    told = [p for p in found if abs(p.delta) > _LEAST[unit]]
    return tuple(sorted(told, key=lambda p: (-abs(p.delta), p.title)))


#: Differences that are rounding.
_LEAST = {Unit.NS: 0.5, Unit.BYTES: 0.5}
