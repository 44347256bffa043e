"""Comparisons as JSON (what a test holds the captured side against) and as Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compilers.compare import CLASSES, Comparison
from flint.passes.compilers.sides import Side, Traffic

VERDICTS = ("equal", *CLASSES, "off")


def as_json(found: Sequence[Comparison], compiler: str, version: str) -> str:
    """Both sides of every program: one line for each, so that a change is a readable diff."""
    lines = [
        f"  {json.dumps(c.name)}: {json.dumps(_record(c))}" for c in sorted(found, key=_by_name)
    ]
    head = f'{{"compiler": "{compiler}", "jaxlib": "{version}", "programs": {{\n'
    return head + ",\n".join(lines) + "\n}}\n"


def _by_name(comparison: Comparison) -> str:
    return comparison.name


def _record(c: Comparison) -> dict[str, Any]:
    return {
        "mesh": c.mesh,
        "verdict": c.verdict,
        "compiled": _rows(c.compiled.collectives),
        "ring": round(c.compiled.ring_bytes),
        "flops": c.compiled.product_flops,
        "memory": c.compiled.memory_bytes,
    }


def _rows(traffic: Traffic) -> dict[str, list[int]]:
    return {f"{kind} {axes}": [count, size] for (kind, axes), (count, size) in traffic.items()}


def compiled_side(record: dict[str, Any]) -> Side:
    """The compiled side of a program of `as_json`."""
    rows = record["compiled"].items()
    collectives = {
        (kind, axes): (count, size)
        for (kind, _, axes), (count, size) in ((key.partition(" "), v) for key, v in rows)
    }
    return Side(collectives, record["ring"], record["flops"], memory_bytes=record["memory"])


def summary(found: Sequence[Comparison]) -> str:
    """How many programs are how far."""
    counts = Counter(c.verdict for c in found)
    return ", ".join(f"{v} {counts[v]}" for v in VERDICTS) + f" of {len(found)}"


def markdown(found: Sequence[Comparison], reasons: Mapping[str, str] | None = None) -> str:
    """A row for each program: what it communicates, or where the sides differ.

    With `reasons` by name only those that differ, each with its reason.
    """
    lines = [
        "| program | mesh | collectives, MB (captured / compiled where they differ) | ring, MB | distance |",
        "|---|---|---|---:|---:|",
    ]
    if reasons is not None:
        lines = [lines[0] + " reason |", lines[1] + "---|"]
        found = [c for c in found if not c.is_equal]
    for c in found:
        distance = "equal" if c.is_equal else f"{c.distance:.1%}"
        ring = _mb(c.compiled.ring_bytes)
        if not c.is_equal:
            ring = f"{_mb(c.captured.ring_bytes)} / {ring}"
        cells = [c.name, c.mesh, _traffic(c.captured, c.compiled), ring, distance]
        if reasons is not None:
            cells.append(reasons[c.name])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _traffic(captured: Side, compiled: Side) -> str:
    cells = []
    for key in sorted({*captured.collectives, *compiled.collectives}):
        mine, other = (s.collectives.get(key, (0, 0))[1] for s in (captured, compiled))
        kind, axes = key
        text = _mb(other) if mine == other else f"**{_shown(mine, other)} / {_shown(other, mine)}**"
        cells.append(f"{kind.replace('_', '-')} {axes} {text}")
    return "; ".join(cells) or "none"


def _shown(size: int, other: int) -> str:
    """A size in MB, to the byte where it would look like the other."""
    return _mb(size) if _mb(size) != _mb(other) else f"{size / 1e6:,.6f}"


def _mb(size: float) -> str:
    mb = size / 1e6
    return f"{mb:,.3f}" if mb >= 0.1 else f"{mb:.6f}".rstrip("0").rstrip(".") if mb else "0"


def equal_programs(found: Sequence[Comparison]) -> str:
    """Names of the programs that are equal, and their meshes."""
    return ", ".join(f"`{c.name}` ({c.mesh})" for c in found if c.is_equal)
