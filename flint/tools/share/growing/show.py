"""What `flint grow` prints: variables, or what changed, and what was taken for granted."""

from __future__ import annotations

from flint.ir.workload import Workload
from flint.text import Column, format_bytes, format_count, format_flops, text_table
from flint.tools.share.growing.grow import Grown
from flint.tools.share.growing.known import Entry
from flint.tools.share.totals import Change


def listing_text(grown: Grown) -> str:
    """The variables of a workload."""
    columns = (
        Column("variable"),
        Column("whole", right=True),
        Column("one device", right=True),
        Column("role"),
        Column("split over"),
        Column("rows", right=True),
        Column("FLOPs", right=True),
    )
    rows = [
        (
            v.name,
            format_count(v.whole),
            format_count(v.value),
            _role(v),
            "+".join(v.axes),
            format_count(v.rows) if v.rows else "",
            f"{v.share:.0%}",
        )
        for v in grown.variables
    ]
    return _head(grown.original) + "\n" + text_table(columns, rows) + "\n"


def grown_text(grown: Grown) -> str:
    """Variables that changed, totals before and after, and what was taken for granted."""
    moved = [v for v in grown.variables if (v.value, v.whole) != (v.new_value, v.new_whole)]
    sizes = [
        (v.name, _role(v), _arrow(v.whole, v.new_whole), _arrow(v.value, v.new_value))
        for v in moved
    ]
    before, after = grown.original.mesh, grown.workload.mesh
    columns = (Column("variable"), Column("role"), Column("whole"), Column("one device"))
    mesh = f"mesh    {before}" + (f" -> {after}" if before != after else "")
    tables = [text_table(columns, sizes)] if sizes else []
    assumed = [f"assumed {text}" for text in grown.assumed]
    parts = [mesh, *tables, _changes(grown.changes), "\n".join(assumed)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(workload: Workload) -> str:
    rows = ", ".join(f"{len(p):,}" for p in workload.programs)
    return f"mesh    {workload.mesh}\nrows    {rows}\n"


def _role(entry: Entry) -> str:
    return entry.role if entry.is_certain else f"{entry.role} (not certain)"


def _arrow(before: int, after: int) -> str:
    return format_count(before) if before == after else f"{before:,} -> {after:,}"


def _changes(changes: tuple[Change, ...]) -> str:
    columns = (
        Column("on one device"),
        Column("before", right=True),
        Column("after", right=True),
        Column("change", right=True),
    )
    rows = [
        (
            c.name.removesuffix("bytes").rstrip(", "),
            _number(c, c.before),
            _number(c, c.after),
            _share(c),
        )
        for c in changes
    ]
    return text_table(columns, rows)


def _number(change: Change, value: float) -> str:
    if change.name == "FLOPs":
        return format_flops(int(value))
    return format_bytes(int(value)) if change.name.endswith("bytes") else format_count(int(value))


def _share(change: Change) -> str:
    if change.before == change.after:
        return ""
    return "new" if not change.before else f"x {change.after / change.before:.3g}"
