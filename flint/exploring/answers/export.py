"""Results as a table: Arrow, pandas, polars, CSV, Parquet. One row a point, numbers with their unit."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.exploring.answers.objectives import values_of
from flint.exploring.choices import choices
from flint.exploring.result import Result

#: Columns with a unit in their name, for quantities without one.
_UNITS = {"time": "step_time_ns", "memory": "memory_bytes", "headroom": "headroom_bytes"}
_UNITS |= {"ttft": "ttft_ns", "tpot": "tpot_ns"}


def columns_of(results: Iterable[Result]) -> dict[str, list[Any]]:
    """Columns by name, a value for each result; None where there is none."""
    rows = [_row(r) for r in results]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _row(r: Result) -> dict[str, Any]:
    found: dict[str, Any] = {"status": r.status.value, "mesh": r.point.mesh, "devices": r.devices}
    found |= {name: value for name, value in choices(r.point).items() if name not in found}
    found |= {_UNITS.get(name, name): v for name, v in values_of(r).items() if name != "devices"}
    found |= {"low_ns": r.low_ns or None, "high_ns": r.high_ns or None, "tokens": r.tokens or None}
    found |= {"compute_ns": r.compute_ns, "waiting_ns": r.waiting_ns, "host_ns": r.host_ns}
    found |= {f"exposed_ns {axes}": ns for axes, ns in r.exposed_ns.items()}
    found |= {"capacity_bytes": r.capacity_bytes or None}
    found |= {f"taken {name}": value for name, value in r.taken.items()}
    return found | {"code": r.code, "reason": r.reason, "place": r.place}


def to_arrow(results: Iterable[Result]) -> Any:
    """A `pyarrow.Table`. Raises FlintError FL870 without pyarrow."""
    return _library("pyarrow").table(columns_of(results))


def to_pandas(results: Iterable[Result]) -> Any:
    """A `pandas.DataFrame`. Raises FlintError FL870 without pandas."""
    return _library("pandas").DataFrame(columns_of(results))


def to_polars(results: Iterable[Result]) -> Any:
    """A `polars.DataFrame`. Raises FlintError FL870 without polars."""
    return _library("polars").DataFrame(columns_of(results))


def export(results: Sequence[Result], path: Path) -> None:
    """Write `path`, whose ending says how: .csv or .parquet.

    Raises FlintError FL870 for another ending and for Parquet without pyarrow, FL502 for what cannot
    be written.
    """
    from flint.io.files import write_atomically

    require_ending(path)
    if path.suffix.lower() == ".csv":
        write_atomically(path, _csv(results).encode())
        return
    _library("pyarrow")
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(to_arrow(results), buffer)
    write_atomically(path, buffer.getvalue())


def require_ending(path: Path) -> None:
    """Raise FlintError FL870 for a file that is neither .csv nor .parquet."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise FlintError(
            "FL870",
            f"{path}: it is not known how to write '{path.suffix or path.name}'",
            help="name a file that ends in .csv or .parquet",
        )


def _csv(results: Iterable[Result]) -> str:
    columns = columns_of(results)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        wanted = "'flint-ir[explore]'" if name == "pyarrow" else name
        raise FlintError(
            "FL870", f"{name} is not installed", help=f"pip install {wanted}, or write .csv"
        ) from error
