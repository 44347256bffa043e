"""Results as a table: a column for each choice and quantity, typed, for Arrow, pandas, polars and CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from flint.tools.explore.answers.objectives import OBJECTIVES
from flint.tools.explore.choices import choices
from flint.tools.explore.evaluation.serving import cache_bytes
from flint.tools.explore.result import Result

#: What a cell may hold; None: not known, or not chosen.
Cell: TypeAlias = str | int | float | bool | None


class ColumnKind(StrEnum):
    """The type of a column."""

    TEXT = "text"
    WHOLE = "whole number"
    NUMBER = "number"
    FLAG = "true or false"


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a table of results."""

    name: str
    kind: ColumnKind
    cells: tuple[Cell, ...]


_Found: TypeAlias = Callable[[Result], Cell]
_RESULT: Mapping[str, tuple[ColumnKind, _Found]] = {
    "status": (ColumnKind.TEXT, lambda r: r.status.value),
    "devices": (ColumnKind.WHOLE, lambda r: r.devices),
    "mesh": (ColumnKind.TEXT, lambda r: r.point.mesh),
}
_QUANTITIES: Mapping[str, tuple[ColumnKind, _Found]] = {
    "step_time_ns": (ColumnKind.NUMBER, lambda r: r.step_time_ns or None),
    "low_ns": (ColumnKind.NUMBER, lambda r: r.low_ns or None),
    "high_ns": (ColumnKind.NUMBER, lambda r: r.high_ns or None),
    "mfu": (ColumnKind.NUMBER, OBJECTIVES["mfu"].value),
    "tokens": (ColumnKind.WHOLE, lambda r: r.tokens or None),
    "tokens_per_s": (ColumnKind.NUMBER, OBJECTIVES["tokens_per_s"].value),
    "tokens_per_s_per_device": (ColumnKind.NUMBER, OBJECTIVES["tokens_per_s_per_device"].value),
    "cost_per_mtoken_usd": (ColumnKind.NUMBER, OBJECTIVES["cost_per_mtoken"].value),
    "cost_per_step_usd": (ColumnKind.NUMBER, OBJECTIVES["cost_per_step"].value),
    "energy_per_mtoken_kwh": (ColumnKind.NUMBER, OBJECTIVES["energy_per_mtoken"].value),
    "ttft_ns": (ColumnKind.NUMBER, OBJECTIVES["ttft"].value),
    "tpot_ns": (ColumnKind.NUMBER, OBJECTIVES["tpot"].value),
    "memory_bytes": (ColumnKind.WHOLE, lambda r: r.memory_bytes or None),
    "memory_is_bound": (ColumnKind.FLAG, lambda r: r.is_bound),
    "capacity_bytes": (ColumnKind.WHOLE, lambda r: r.capacity_bytes or None),
    "cache_bytes": (ColumnKind.WHOLE, lambda r: cache_bytes(r) or None),
    "compute_ns": (ColumnKind.NUMBER, lambda r: r.compute_ns or None),
    "waiting_ns": (ColumnKind.NUMBER, lambda r: _of_estimate(r, r.waiting_ns)),
    "host_ns": (ColumnKind.NUMBER, lambda r: _of_estimate(r, r.host_ns)),
}
_LAST: Mapping[str, tuple[ColumnKind, _Found]] = {
    "code": (ColumnKind.TEXT, lambda r: r.code or None),
    "reason": (ColumnKind.TEXT, lambda r: r.reason or None),
    "place": (ColumnKind.TEXT, lambda r: r.place or None),
    "key": (ColumnKind.TEXT, lambda r: r.point.key),
}


def columns_of(results: Sequence[Result]) -> tuple[ResultColumn, ...]:
    """The table of results, in their order: choices by name, quantities with their units, reasons.

    Choices that are whole numbers at every point are numbers. An option that is called as a column of
    a result is `set.NAME`; exposed communication has a column for each of its axes, and memory for each kind.
    """
    choice = _choices(results)
    found = [_column(n, kind, of, results) for n, (kind, of) in _RESULT.items()]
    found += [_choice_column(name, cells) for name, cells in choice.items()]
    found += [_column(n, kind, of, results) for n, (kind, of) in _QUANTITIES.items()]
    for axes in sorted({a for r in results for a in r.exposed_ns}):
        found.append(_column(f"exposed_ns[{axes}]", ColumnKind.NUMBER, _exposed(axes), results))
    for kind in sorted({k for r in results for k in r.memory}):
        found.append(_column(f"memory_bytes[{kind}]", ColumnKind.WHOLE, _memory(kind), results))
    found += [_column(n, kind, of, results) for n, (kind, of) in _LAST.items()]
    return tuple(found)


def _of_estimate(result: Result, value: float) -> float | None:
    return value if result.step_time_ns else None


def _exposed(axes: str) -> _Found:
    return lambda r: _of_estimate(r, r.exposed_ns.get(axes, 0.0))


def _memory(kind: str) -> _Found:
    return lambda r: r.memory.get(kind, 0) if r.memory else None


def _column(name: str, kind: ColumnKind, of: _Found, results: Sequence[Result]) -> ResultColumn:
    return ResultColumn(name, kind, tuple(map(of, results)))


def _choices(results: Sequence[Result]) -> dict[str, list[str | None]]:
    """What each point chose, by the name of a column that no quantity has."""
    chosen = [choices(r.point) for r in results]
    names = dict.fromkeys(n for c in chosen for n in c)
    taken = {*_RESULT, *_QUANTITIES, *_LAST}
    found: dict[str, list[str | None]] = {}
    for name in names:
        plain = name.removeprefix("--set ")
        column = f"set.{plain}" if plain != name or name in taken else name
        if name == "mesh":
            continue  # of a program that has its own
        found[column] = [c.get(name) or None for c in chosen]
    return found


def _choice_column(name: str, cells: Sequence[str | None]) -> ResultColumn:
    said = [c for c in cells if c is not None]
    if said and all(c.isascii() and c.isdigit() and str(int(c)) == c for c in said):
        return ResultColumn(
            name, ColumnKind.WHOLE, tuple(None if c is None else int(c) for c in cells)
        )
    return ResultColumn(name, ColumnKind.TEXT, tuple(cells))
