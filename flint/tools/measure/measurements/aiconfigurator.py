"""Tables of aiconfigurator's collectors, as CSV or Parquet: products, attention, NCCL. Times are in ms.

Of attention, "context" is causal, and each call also writes its new keys and values to a cache;
"generation" is one query a sequence behind `isl` + `step` keys.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flint.errors import FlintError, Malformed
from flint.ir.op_class import Collective
from flint.tools.measure.measurements import rows as make
from flint.tools.measure.measurements.nccl_tests import COLLECTIVES
from flint.tools.measure.measurements.rows import (
    CollectedRows,
    CollectiveTime,
    KernelTime,
    Measurements,
    number_of,
    size_of,
)

FORMAT = "aiconfigurator"
#: More rows than any table of timings has: each takes a kilobyte while it is read.
MOST_ROWS = 2_000_000
_SIGNS = ("kernel_source", "op_name", "framework")
Row = Mapping[str, Any]


def recognizes(columns: Sequence[str]) -> bool:
    """Whether columns are those of its tables."""
    names = set(columns)
    return "latency" in names and len(names & set(_SIGNS)) >= 2


def read_csv(text: str, name: str) -> Measurements:
    """Rows of a table in CSV. Raises FlintError FL848 where none can be used."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        return read(csv.DictReader(io.StringIO(plain)), name)
    except csv.Error as error:
        raise FlintError(
            "FL854", f"{name} is not a table: {error}", help="give comma-separated values"
        ) from error


def read_parquet(data: bytes, name: str) -> Measurements:
    """Rows of a table in Parquet.

    Raises FlintError FL847 without pyarrow, FL854 for a broken file or other columns, FL848 where no
    row can be used.
    """
    try:
        parquet, arrow = map(importlib.import_module, ("pyarrow.parquet", "pyarrow"))
    except ImportError as error:
        raise FlintError(
            "FL847",
            f"{name} is Parquet, and pyarrow, which reads it, is not installed",
            help="pip install 'flint-ir[calibrate]', or write the table as CSV",
        ) from error
    try:
        file = parquet.ParquetFile(arrow.BufferReader(data))
        count = int(file.metadata.num_rows)
        rows = file.read().to_pylist() if count <= MOST_ROWS else []
    except Exception as error:  # what it raises for broken files is of many kinds
        raise FlintError("FL854", f"{name} is not a Parquet file: {error}") from error
    if count > MOST_ROWS:
        raise FlintError(
            "FL854",
            f"{name} has {count:,} rows, but at most {MOST_ROWS:,} are read",
            help="split it",
        )
    if not rows or not recognizes(list(rows[0])):
        raise FlintError(
            "FL854",
            f"{name} has no columns of aiconfigurator's tables",
            help="other tables are read as CSV, with a unit in the name of the time",
        )
    return read(rows, name)


def read(rows: Iterable[Row], name: str) -> Measurements:
    """Rows as dictionaries."""
    found = CollectedRows(name, FORMAT)
    for row in rows:
        try:
            made = _taken(row)
        except Malformed:
            found.leave_out("without a number where one is needed")
            continue
        if made is None:
            found.leave_out(f"of {str(row.get('op_name'))[:40]}, which is not known")
        else:
            found.add(made)
    return found.done()


def _taken(row: Row) -> KernelTime | CollectiveTime | None:
    operation, time = str(row.get("op_name")).lower(), number_of(row, "latency") * 1e6
    if "gemm" in operation and "m" in row:
        dtype = make.DTYPES.get(str(row.get("gemm_dtype")).lower())
        m, n, k = (size_of(row, c) for c in "mnk")
        return make.product(m, n, k, dtype, time) if dtype else None
    if "attention" in operation and "num_heads" in row:
        window = row.get("window_size") and size_of(row, "window_size")
        return None if window else _attention(row, operation, time)
    if "num_gpus" in row:
        return _collective(row, operation, time)
    return None


def _attention(row: Row, operation: str, time: float) -> KernelTime | None:
    dtype = make.DTYPES.get(str(row.get("attn_dtype")).lower())
    if dtype is None:
        return None
    decodes = "generation" in operation
    length, step = size_of(row, "isl"), size_of(row, "step") if row.get("step") else 0
    return make.attention(
        size_of(row, "batch_size"),
        size_of(row, "num_heads"),
        size_of(row, "num_key_value_heads") if row.get("num_key_value_heads") else 0,
        1 if decodes else length,
        length + step,
        size_of(row, "head_dim"),
        dtype,
        time,
        causal=not decodes and "encoder" not in operation,
        writes_cache=True,
    )


def _collective(row: Row, operation: str, time: float) -> CollectiveTime | None:
    collective = COLLECTIVES.get(operation.removeprefix("nccl_"))
    if collective is None:
        return None
    size, ranks = size_of(row, "message_size"), size_of(row, "num_gpus")
    if ranks < 1:
        raise Malformed("there are no ranks")
    dtype = make.DTYPES.get(str(row.get("nccl_dtype")).lower(), "bf16")
    size = size * make.bytes_of(dtype)  # elements
    shard = size // ranks if collective is Collective.ALL_GATHER else size
    return CollectiveTime(collective, shard, ranks, 1, dtype, time)
