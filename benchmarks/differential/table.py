"""Outcomes as tables: by family, and by cause."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.compilers.compare import Comparison
from benchmarks.differential.outcomes import BARS, Outcome
from flint.passes.compilers.sides import Traffic

COLUMNS = ("equal", "within 10 %", "FLOPs", "memory", "kernels", "bytes", "step")


def rates(found: Sequence[Outcome]) -> dict[str, int]:
    """How many of the compared programs are equal in collectives, and within each bar."""
    compared = [o for o in found if not o.fault]
    counts = {
        "equal": sum(_comparison(o).is_equal for o in compared),
        "within 10 %": sum(_comparison(o).verdict != "off" for o in compared),
    }
    for name, (column, bar) in zip(COLUMNS[2:], BARS.items(), strict=True):
        counts[name] = sum(abs(o.off(column)) <= bar for o in compared)
    return counts


def by_family(found: Sequence[Outcome]) -> str:
    """A Markdown row for each family, and one for all: percent of the programs compared."""
    lines = ["| family | programs | " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * 8]
    groups = _grouped(found, lambda o: o.program.family)
    for family, some in [*sorted(groups.items()), ("all", list(found))]:
        compared = sum(not o.fault for o in some)
        cells = [f"{100 * n / compared:.0f}" if compared else "" for n in rates(some).values()]
        lines.append(f"| {family} | {compared} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def by_cause(numbered: Iterable[tuple[int, Outcome]]) -> str:
    """A line for each cause, the most frequent first: programs, the cause, seeds."""
    groups = defaultdict(list)
    for seed, outcome in numbered:
        if outcome.cause:
            groups[outcome.cause].append(seed)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return "\n".join(f"{len(seeds):4d}  {cause}  {seeds[:6]}" for cause, seeds in ordered)


def as_json(version: str, numbered: Sequence[tuple[int, Outcome]]) -> str:
    """What each program is, and what was found: a line each, so that a change is a readable diff."""
    lines = [f"  {json.dumps(_record(seed, outcome))}" for seed, outcome in numbered]
    return f'{{"compiler": "{version}", "programs": [\n' + ",\n".join(lines) + "\n]}\n"


def _record(seed: int, o: Outcome) -> dict[str, Any]:
    head = {"seed": seed, "family": o.program.family, "name": o.program.name, "cause": o.cause}
    if o.fault:
        return {**head, "fault": o.fault, "error": o.error}
    found = _comparison(o)
    return {
        **head,
        "verdict": found.verdict,
        "captured": traffic_text(found.captured.collectives),
        "compiled": traffic_text(found.compiled.collectives),
        "off": {column: round(o.off(column), 4) for column in BARS},
    }


def traffic_text(traffic: Traffic) -> dict[str, int]:
    """Bytes of each kind over each axis, by their names."""
    return {f"{kind} {axes}": size for (kind, axes), (_, size) in traffic.items()}


def shown(o: Outcome) -> str:
    """One program, what it is, and both sides."""
    if o.fault:
        return f"{o.program.name}\n    {o.fault}: {o.error}"
    found = _comparison(o)
    lines = [o.program.name, f"    {found.verdict} {o.cause}"]
    for key in sorted({*found.captured.collectives, *found.compiled.collectives}):
        mine, other = (s.collectives.get(key, (0, 0)) for s in (found.captured, found.compiled))
        sign = "" if mine[1] == other[1] else "  <<"
        lines.append(
            f"    {' '.join(key):<32} {mine[0]:4d}x {mine[1]:12,d} | {other[0]:4d}x {other[1]:12,d}{sign}"
        )
    assert o.captured is not None and o.compiled is not None, "compared"
    for column in BARS:
        mine, other = getattr(o.captured, column), getattr(o.compiled, column)
        lines.append(f"    {column:<32} {mine:18,.0f} | {other:18,.0f} {o.off(column):+.1%}")
    return "\n".join(lines)


def _comparison(o: Outcome) -> Comparison:
    assert o.collectives is not None, "compared"
    return o.collectives


def _grouped(found: Iterable[Outcome], key: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in found:
        groups[key(outcome)].append(outcome)
    return groups
