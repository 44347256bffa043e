"""What `torch.utils.benchmark` prints or holds: the table of `Compare`, and Measurements as JSON.

Sizes are read from a row's label: `m=4096 n=4096 k=1024 dtype=bf16`, with the columns' names of
tables (docs/calibrate.md). The kind of kernel is the label's `kind=`, or the name of the column.
Pickles of Measurements are programs, and are refused.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any

from flint.errors import Malformed
from flint.tools.measure.measurements import tables
from flint.tools.measure.measurements.rows import CollectedRows, Measurements, number_of, size_of

FORMAT = "torch.utils.benchmark"
_UNIT = re.compile(r"^Times are in (\w+) \((ns|us|ms|s)\)", re.MULTILINE)
_PAIR = re.compile(r"(\w+)\s*=\s*([\w.+-]+)")


def recognizes(text: str) -> bool:
    """Whether a text is the table of a Compare."""
    return _UNIT.search(text) is not None and "threads:" in text


def read(text: str, name: str) -> Measurements:
    """The tables of a text, whose units are below them. Raises FlintError FL844 and FL848 as `tables.read` does."""
    found = CollectedRows(name, FORMAT)
    columns: list[str] = []
    table: list[tuple[str, str, float]] = []
    for line in text.splitlines():
        cells = [c.strip() for c in line[:2000].split("|")]
        if unit := _UNIT.match(line):
            for label, column, number in table:
                _take(label, column, number * tables.IN_NS[unit[2]], found)
            table = []
        elif len(cells) > 1 and not cells[0]:
            columns = cells[1:]
        elif len(cells) > 1 and len(cells) == len(columns) + 1:
            rows = zip(columns, cells[1:], strict=True)
            table += [(f"{cells[0]} {name}", name, _number(cell)) for name, cell in rows if cell]
    if table:
        found.leave_out("of a table without its unit (Times are in ...)", len(table))
    return found.done()


def _number(cell: str) -> float:
    digits = re.match(r"[\d.]+(?:e[+-]?\d+)?", cell)
    return float(digits[0]) if digits and digits[0].count(".") < 2 else float("nan")


def _take(label: str, column: str, time_ns: float, found: CollectedRows) -> None:
    pairs = {k.lower(): v for k, v in _PAIR.findall(label)}
    if not pairs:
        found.leave_out("whose label has no sizes (m=4096 n=4096 k=1024 dtype=bf16)")
        return
    if "kind" not in pairs and column.lower() in tables.KINDS:
        pairs["kind"] = column.lower()
    tables.take(pairs, time_ns, found)


def recognizes_json(document: Any) -> bool:
    """Whether a JSON document is a list of Measurements."""
    return (
        isinstance(document, list)
        and bool(document)
        and all(isinstance(m, dict) and "task_spec" in m and "raw_times" in m for m in document)
    )


def read_json(document: list[Mapping[str, Any]], name: str) -> Measurements:
    """Measurements as their fields: `raw_times` in s for `number_per_run` runs, and `task_spec`."""
    found = CollectedRows(name, FORMAT)
    for one in document:
        try:
            raw = one["raw_times"] if isinstance(one["raw_times"], list) else []
            times = [number_of({"time": value}, "time") for value in raw]
            runs, spec = size_of(one, "number_per_run"), one["task_spec"]
            if runs < 1 or not times or not isinstance(spec, dict):
                raise Malformed("it has no times, or no task")
        except Malformed:
            found.leave_out("that are not a Measurement")
            continue
        label = " ".join(str(spec.get(k) or "") for k in ("label", "sub_label", "description"))
        seconds = statistics.median(times) / runs
        _take(label, str(spec.get("label") or ""), seconds * 1e9, found)
    return found.done()
