"""Results for other programs: Arrow, pandas, polars, CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from flint.errors import FlintError
from flint.io.outputs import OutputKind, write_output
from flint.tools.explore.answers.objectives import OBJECTIVES, cache_bytes
from flint.tools.explore.point import choices
from flint.tools.explore.result import Result

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

# Results as a table: a column for each choice and quantity, typed, for Arrow, pandas, polars and CSV.

#: What a cell may hold; None: not known, or not chosen.
Cell: TypeAlias = str | int | float | bool | None


class ColumnKind(NamedTuple):
    """The type of a column, as Arrow, pandas and polars call it."""

    arrow: str
    pandas: str
    polars: str


TEXT = ColumnKind("string", "string", "String")
WHOLE = ColumnKind("int64", "Int64", "Int64")
NUMBER = ColumnKind("float64", "float64", "Float64")
FLAG = ColumnKind("bool_", "bool", "Boolean")


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a table of results."""

    name: str
    kind: ColumnKind
    cells: tuple[Cell, ...]


_Found: TypeAlias = Callable[[Result], Cell]
_RESULT: Mapping[str, tuple[ColumnKind, _Found]] = {
    "status": (TEXT, lambda r: r.status.value),
    "devices": (WHOLE, lambda r: r.devices),
    "mesh": (TEXT, lambda r: r.point.mesh),
}
_QUANTITIES: Mapping[str, tuple[ColumnKind, _Found]] = {
    "step_time_ns": (NUMBER, lambda r: r.step_time_ns or None),
    "low_ns": (NUMBER, lambda r: r.low_ns or None),
    "high_ns": (NUMBER, lambda r: r.high_ns or None),
    "mfu": (NUMBER, OBJECTIVES["mfu"].value),
    "tokens": (WHOLE, lambda r: r.tokens or None),
    "tokens_per_s": (NUMBER, OBJECTIVES["tokens_per_s"].value),
    "tokens_per_s_per_device": (NUMBER, OBJECTIVES["tokens_per_s_per_device"].value),
    "cost_per_mtoken_usd": (NUMBER, OBJECTIVES["cost_per_mtoken"].value),
    "cost_per_step_usd": (NUMBER, OBJECTIVES["cost_per_step"].value),
    "energy_per_mtoken_kwh": (NUMBER, OBJECTIVES["energy_per_mtoken"].value),
    "ttft_ns": (NUMBER, OBJECTIVES["ttft"].value),
    "tpot_ns": (NUMBER, OBJECTIVES["tpot"].value),
    "memory_bytes": (WHOLE, lambda r: r.memory_bytes or None),
    "memory_is_bound": (FLAG, lambda r: r.is_bound),
    "capacity_bytes": (WHOLE, lambda r: r.capacity_bytes or None),
    "cache_bytes": (WHOLE, lambda r: cache_bytes(r) or None),
    "compute_ns": (NUMBER, lambda r: r.compute_ns or None),
    "waiting_ns": (NUMBER, lambda r: _of_estimate(r, r.waiting_ns)),
    "host_ns": (NUMBER, lambda r: _of_estimate(r, r.host_ns)),
}
_LAST: Mapping[str, tuple[ColumnKind, _Found]] = {
    "code": (TEXT, lambda r: r.code or None),
    "reason": (TEXT, lambda r: r.reason or None),
    "place": (TEXT, lambda r: r.place or None),
    "key": (TEXT, lambda r: r.point.key),
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
        exposed = [_of_estimate(r, r.exposed_ns.get(axes, 0.0)) for r in results]
        found.append(ResultColumn(f"exposed_ns[{axes}]", NUMBER, tuple(exposed)))
    for kind in sorted({k for r in results for k in r.memory}):
        held = [r.memory.get(kind, 0) if r.memory else None for r in results]
        found.append(ResultColumn(f"memory_bytes[{kind}]", WHOLE, tuple(held)))
    found += [_column(n, kind, of, results) for n, (kind, of) in _LAST.items()]
    return tuple(found)


def _of_estimate(result: Result, value: float) -> float | None:
    return value if result.step_time_ns else None


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
        return ResultColumn(name, WHOLE, tuple(None if c is None else int(c) for c in cells))
    return ResultColumn(name, TEXT, tuple(cells))


#: In a Parquet file, which knows by it that Flint wrote it.
SCHEMA = "flint.points/1"


def to_arrow(results: Sequence[Result]) -> pyarrow.Table:
    """A table with the columns of `columns_of`. Raises FlintError FL870 without pyarrow."""
    pa = _imported("pyarrow", "'flint-ir[explore]'")
    columns = columns_of(results)
    schema = pa.schema([(c.name, getattr(pa, c.kind.arrow)()) for c in columns])
    found: pyarrow.Table = pa.table({c.name: list(c.cells) for c in columns}, schema=schema)
    return found


def to_pandas(results: Sequence[Result]) -> pandas.DataFrame:
    """The same table; what is not known is missing there. Raises FlintError FL870 without pandas."""
    pd = _imported("pandas", "pandas")
    found: pandas.DataFrame = pd.DataFrame(
        {c.name: pd.array(list(c.cells), dtype=c.kind.pandas) for c in columns_of(results)}
        if results
        else {c.name: [] for c in columns_of(results)}
    )
    return found


def to_polars(results: Sequence[Result]) -> polars.DataFrame:
    """The same table. Raises FlintError FL870 without polars."""
    pl = _imported("polars", "polars")
    found: polars.DataFrame = pl.DataFrame(
        [
            pl.Series(c.name, list(c.cells), dtype=getattr(pl, c.kind.polars))
            for c in columns_of(results)
        ]
    )
    return found


def require_format(path: Path) -> None:
    """Raise FlintError FL870 for a name of a file that no format has, or whose library is missing."""
    if path.suffix not in _WRITERS:
        raise FlintError(
            "FL870",
            f"{path} is neither .csv nor .parquet",
            help="the file's suffix decides the format: --export points.csv",
        )
    if path.suffix == ".parquet":
        _imported("pyarrow", "'flint-ir[explore]'")


def write_table(results: Sequence[Result], path: Path, *, force: bool = False) -> None:
    """Write results as CSV or Parquet, by the end of the file's name.

    Raises FlintError FL870 as `require_format` does, FL502 where it cannot be written, FL508 for a file
    that is no such table, without `force`.
    """
    require_format(path)
    write_output(path, _WRITERS[path.suffix](results), OutputKind.TABLE, force=force)


def _csv(results: Sequence[Result]) -> bytes:
    columns = columns_of(results)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([c.name for c in columns])
    rows.writerows(zip(*(_texts(c) for c in columns), strict=True))
    return text.getvalue().encode()


def _texts(column: ResultColumn) -> list[str]:
    if column.kind is FLAG:
        return ["true" if cell else "false" for cell in column.cells]
    return ["" if cell is None else str(cell) for cell in column.cells]


def _parquet(results: Sequence[Result]) -> bytes:
    import pyarrow.parquet

    data = io.BytesIO()
    marked = to_arrow(results).replace_schema_metadata({"schema": SCHEMA})
    pyarrow.parquet.write_table(marked, data)
    return data.getvalue()


_WRITERS: Mapping[str, Callable[[Sequence[Result]], bytes]] = {".csv": _csv, ".parquet": _parquet}


def _imported(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise FlintError(
            "FL870", f"{name} is not installed", help=f"pip install {package}"
        ) from error
