"""Tables of timings in CSV, by the names of their columns; docs/calibrate.md has the list.

The unit of a time is in the name of its column: `time_us`, `latency_ms`, `median_ns`, or `tflops` of
products. A table whose unit is not there is refused: milliseconds taken for microseconds make
constants that look possible.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flint.errors import FlintError
from flint.ir.op_class import Collective, OpClass
from flint.tools.measure.measurements import rows as make
from flint.tools.measure.measurements.nccl_tests import COLLECTIVES
from flint.tools.measure.measurements.rows import (
    CollectedRows,
    CollectiveTime,
    KernelTime,
    Measurements,
)

FORMAT = "table"
#: Other names of columns.
_ALIASES = {
    "batch_size": "batch", "b": "batch", "num_heads": "heads", "nheads": "heads",
    "num_key_value_heads": "kv_heads", "num_kv_heads": "kv_heads", "key_heads": "kv_heads",
    "seqlen_q": "queries", "query_len": "queries", "q_len": "queries", "seqlen_k": "keys",
    "kv_len": "keys", "key_len": "keys", "seq_len": "length", "seqlen": "length",
    "head_size": "head_dim", "headdim": "head_dim", "type": "dtype", "data_type": "dtype",
    "op": "kind", "operation": "kind", "kernel": "kind", "class": "kind", "cols": "columns",
    "hidden": "columns", "hidden_size": "columns", "inputs": "reads", "world_size": "ranks",
    "num_gpus": "ranks", "gpus": "ranks", "size_bytes": "bytes", "message_size": "bytes",
}  # fmt: skip
_TIME = re.compile(
    r"(?P<what>[a-z]*_?(?:time|latency|duration|elapsed|median|mean|avg|average|runtime))?"
    r"_?\(?(?P<unit>ns|us|ms|s|sec)\)?"
)
#: Nanoseconds of the units of times.
IN_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}
#: Of several columns with times, the first of these is taken.
_PREFERRED = ("median", "mean", "avg", "average", "latency", "time", "duration")
_BY_ROWS = {
    "softmax": OpClass.SOFTMAX,
    "norm": OpClass.NORM,
    "layer_norm": OpClass.NORM,
    "layernorm": OpClass.NORM,
    "rms_norm": OpClass.NORM,
    "rmsnorm": OpClass.NORM,
    "reduction": OpClass.REDUCE,
    "sum": OpClass.REDUCE,
}
_BY_ELEMENTS = {
    "elementwise": OpClass.ARITHMETIC,
    "element-wise": OpClass.ARITHMETIC,
    "add": OpClass.ADD,
    "mul": OpClass.MULTIPLY,
    "copy": OpClass.COPY,
}
#: Kinds of attention, and whether each is backward.
_ATTENTION = {
    "attention": False,
    "attention_fwd": False,
    "attention_forward": False,
    "attention_bwd": True,
    "attention_backward": True,
}
_MESSAGES = ("send", "sendrecv", "p2p")
#: Characters of a cell that a message shows.
_SHOWN = 30
#: Kinds of kernels that a table may name.
KINDS = (*_BY_ROWS, *_BY_ELEMENTS, "gemm", "matmul", "attention")
Row = Mapping[str, str]
TimeOf = Callable[[Row, KernelTime | None], float]


def recognizes(text: str) -> bool:
    """Whether the first line of a text names columns of such a table."""
    names = set(columns_of(text))
    products = {"m", "n", "k"} <= names
    return products or "kind" in names or "collective" in names or _is_attention(names)


def columns_of(text: str) -> list[str]:
    """Names of the columns, in lower case, without what stands around them; [] for no table."""
    first = next(iter(_body(text[:20_000]).splitlines()), "")
    try:
        cells = next(csv.reader([first], delimiter=_delimiter(first)), [])
    except csv.Error:  # a cell without an end
        return []
    names = [cell.strip().strip("\ufeff").lower().replace(" ", "_") for cell in cells]
    return [_ALIASES.get(name, name) for name in names] if len(names) > 1 else []


def _body(text: str) -> str:
    """A table without the comments and empty lines before it."""
    lines = text.splitlines(keepends=True)
    at = next((i for i, x in enumerate(lines) if x.strip() and not x.startswith("#")), len(lines))
    return "".join(lines[at:])


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def read(text: str, name: str) -> Measurements:
    """The rows of a table.

    Raises FlintError FL843 without a unit, FL844 without a column that its rows need, FL845 for several
    units, FL848 where no row can be used.
    """
    found = CollectedRows(name, FORMAT)
    names = columns_of(text)
    time_of = _time_of(names, name)
    body = _body(text)
    for row in _rows(body, names, found):
        _take(row, time_of, found)
    return found.done()


def take(row: Row, time_ns: float, found: CollectedRows) -> None:
    """Take a row whose time is known. Raises FlintError FL844 without a column that it needs."""
    _take(row, lambda *_: time_ns, found)


def _take(row: Row, time_of: TimeOf, found: CollectedRows) -> None:
    try:
        found.add(_taken(row, time_of, found.name))
    except _Unusable as error:
        found.leave_out(str(error))


class _Unusable(Exception):
    """A row that cannot be used, and why: "without a number for m"."""


def _rows(body: str, names: Sequence[str], found: CollectedRows) -> list[Row]:
    reader = csv.reader(io.StringIO(body), delimiter=_delimiter(body.partition("\n")[0]))
    rows: list[Row] = []
    try:
        for at, cells in enumerate(reader):
            if at and len(cells) == len(names):
                rows.append(dict(zip(names, (c.strip() for c in cells), strict=True)))
            elif at and any(cells) and not cells[0].startswith("#"):
                found.leave_out("with another number of cells than the header")
    except csv.Error as error:
        raise FlintError(
            "FL854", f"{found.name} is not a table: {error}", help="give comma-separated values"
        ) from error
    return rows


def _time_of(names: Sequence[str], name: str) -> TimeOf:
    """What gives the time of a row in ns. Raises FlintError FL843 or FL845."""
    columns = {c: m for c in names if (m := _TIME.fullmatch(c)) and (m["what"] or c in IN_NS)}
    if columns:
        column, unit = _one_of(columns, name)
        return lambda row, _: _float(row, column) * IN_NS[unit]
    if "tflops" in names:
        return lambda row, made: (made.flops if made else math.nan) / _float(row, "tflops") * 1e-3
    bare = [c for c in names if c in ("time", "latency", "duration", "median", "mean")]
    raise FlintError(
        "FL843",
        f"{name}: "
        + (f"column '{bare[0]}' has no unit" if bare else "no column is a time with its unit"),
        help="name the column time_us, latency_ms or time_ns; for products also tflops",
    )


def _one_of(columns: Mapping[str, re.Match[str]], name: str) -> tuple[str, str]:
    """The column of times that is taken, and its unit."""
    for word in _PREFERRED:
        plain = [c for c in columns if columns[c]["what"] == word]
        some = plain or [c for c in columns if word in c]
        units = {columns[c]["unit"] for c in some}
        if len(some) > 1:
            units_of = "several units" if len(units) > 1 else "several columns"
            raise FlintError(
                "FL845",
                f"{name} has times in {units_of}: {', '.join(some)}",
                help="keep one of these columns",
            )
        if some:
            return some[0], units.pop()
    first = next(iter(columns))
    return first, columns[first]["unit"]


def _taken(row: Row, time_of: TimeOf, name: str) -> KernelTime | CollectiveTime:
    names, kind = set(row), row.get("kind", "").lower()
    if row.get("collective") or kind in COLLECTIVES or kind in _MESSAGES:
        return _collective(row, kind, time_of(row, None), name)
    made = _kernel(row, names, kind, name)
    return replace(made, measured_ns=time_of(row, made))


def _kernel(row: Row, names: set[str], kind: str, name: str) -> KernelTime:
    dtype = _dtype(row, names, name)
    if kind in _BY_ROWS:
        _need(names, name, "rows", "columns")
        return make.by_rows(_BY_ROWS[kind], _int(row, "rows"), _int(row, "columns"), dtype, 1.0)
    if kind in _BY_ELEMENTS:
        _need(names, name, "elements")
        reads = _int(row, "reads", 1)
        return make.by_elements(_BY_ELEMENTS[kind], _int(row, "elements"), reads, dtype, 1.0)
    if kind in _ATTENTION or (not kind and _is_attention(names)):
        return _attention(row, names, kind, dtype, name)
    if kind in ("", "gemm", "matmul", "linear", "mm", "bmm"):
        _need(names, name, "m", "n", "k")
        m, n, k = (_int(row, c) for c in ("m", "n", "k"))
        return make.product(m, n, k, dtype, 1.0, _int(row, "batch", 1))
    raise _Unusable(f"of kind '{kind[:_SHOWN]}', which is not known")


def _is_attention(names: set[str]) -> bool:
    return {"heads", "head_dim"} <= names and bool({"queries", "keys", "length"} & names)


def _attention(row: Row, names: set[str], kind: str, dtype: str, name: str) -> KernelTime:
    _need(names, name, "heads", "head_dim")
    if not {"queries", "keys", "length"} & names:
        _need(names, name, "queries")
    length = _int(row, "length", 0)
    queries = _int(row, "queries", length)
    return make.attention(
        _int(row, "batch", 1),
        _int(row, "heads"),
        _int(row, "kv_heads", 0),
        queries,
        _int(row, "keys", length or queries),
        _int(row, "head_dim"),
        dtype,
        1.0,
        causal=_is_causal(row.get("causal", "")),
        backward=_ATTENTION.get(kind, False),
    )


def _is_causal(cell: str) -> bool:
    """Whether a cell says so. pandas writes 1.0 where a column of flags has had an empty cell."""
    said = cell.strip().lower()
    if said in ("1", "1.0", "true", "yes", "causal"):
        return True
    if said in ("", "0", "0.0", "false", "no", "none", "full"):
        return False
    raise _Unusable("without a yes or no for causal")


def _collective(row: Row, kind: str, time_ns: float, name: str) -> CollectiveTime:
    said = (row.get("collective") or kind).lower().removesuffix("_perf")
    _need(set(row), name, "bytes", "ranks")
    collective = Collective.NONE if said in _MESSAGES else COLLECTIVES.get(said)
    if collective is None:
        raise _Unusable(f"of collective '{said[:_SHOWN]}', which is not known")
    dtype = make.DTYPES.get(row.get("dtype", "").lower(), "bf16")
    return CollectiveTime(
        collective, _int(row, "bytes"), _int(row, "ranks"), _int(row, "nodes", 0), dtype, time_ns
    )


def _dtype(row: Row, names: set[str], name: str) -> str:
    _need(names, name, "dtype")
    said = row["dtype"].lower().removeprefix("torch.").removeprefix("jnp.")
    if said not in make.DTYPES:
        raise _Unusable(f"of type '{said[:_SHOWN]}', which is not known")
    return make.DTYPES[said]


def _need(names: set[str], name: str, *needed: str) -> None:
    missing = [c for c in needed if c not in names]
    if missing:
        raise FlintError(
            "FL844",
            f"{name}: column '{missing[0]}' is missing",
            help="docs/calibrate.md has the columns of each kind of kernel",
        )


def _int(row: Row, column: str, default: int | None = None) -> int:
    cell = row.get(column, "")
    if not cell and default is not None:
        return default
    try:
        value = float(cell)
    except ValueError:
        raise _Unusable(f"without a number for {column}") from None
    if not 0 <= value <= 2**53 or value != int(value):
        raise _Unusable(f"without a whole number for {column}")
    return int(value)


def _float(row: Row, column: str) -> float:
    try:
        value = float(row.get(column, ""))
    except ValueError:
        return math.nan
    return value if value or column != "tflops" else math.nan
