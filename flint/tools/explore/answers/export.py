"""Results for other programs: Arrow, pandas, polars, CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.io.outputs import OutputKind, write_output
from flint.tools.explore.answers.columns import ColumnKind, ResultColumn, columns_of
from flint.tools.explore.result import Result

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


#: In a Parquet file, which knows by it that Flint wrote it.
SCHEMA = "flint.points/1"


def to_arrow(results: Sequence[Result]) -> pyarrow.Table:
    """A table with the columns of `columns_of`. Raises FlintError FL870 without pyarrow."""
    pa = _imported("pyarrow", "'flint-ir[explore]'")
    types = {
        ColumnKind.TEXT: pa.string(),
        ColumnKind.WHOLE: pa.int64(),
        ColumnKind.NUMBER: pa.float64(),
        ColumnKind.FLAG: pa.bool_(),
    }
    columns = columns_of(results)
    schema = pa.schema([(c.name, types[c.kind]) for c in columns])
    found: pyarrow.Table = pa.table({c.name: list(c.cells) for c in columns}, schema=schema)
    return found


def to_pandas(results: Sequence[Result]) -> pandas.DataFrame:
    """The same table; what is not known is missing there. Raises FlintError FL870 without pandas."""
    pd = _imported("pandas", "pandas")
    types = {
        ColumnKind.TEXT: "string",
        ColumnKind.WHOLE: "Int64",
        ColumnKind.NUMBER: "float64",
        ColumnKind.FLAG: "bool",
    }
    found: pandas.DataFrame = pd.DataFrame(
        {c.name: pd.array(list(c.cells), dtype=types[c.kind]) for c in columns_of(results)}
        if results
        else {c.name: [] for c in columns_of(results)}
    )
    return found


def to_polars(results: Sequence[Result]) -> polars.DataFrame:
    """The same table. Raises FlintError FL870 without polars."""
    pl = _imported("polars", "polars")
    types = {
        ColumnKind.TEXT: pl.String,
        ColumnKind.WHOLE: pl.Int64,
        ColumnKind.NUMBER: pl.Float64,
        ColumnKind.FLAG: pl.Boolean,
    }
    found: polars.DataFrame = pl.DataFrame(
        [pl.Series(c.name, list(c.cells), dtype=types[c.kind]) for c in columns_of(results)]
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
    if column.kind is ColumnKind.FLAG:
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
