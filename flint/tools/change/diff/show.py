"""A `Difference` in words: text for terminals and files, markdown for a pull request, HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from flint.text import Column, format_bytes, headings, plural, text_table
from flint.tools.change.diff.budgets import Broken
from flint.tools.change.diff.cause import Cause
from flint.tools.change.diff.difference_numbers import DifferenceNumbers
from flint.tools.change.diff.match import Change
from flint.tools.change.diff.metrics import Number, Unit, numbers
from flint.tools.change.diff.snapshot import Snapshot

#: Changes that text shows, and markdown.
SHOWN, SHOWN_IN_MARKDOWN = 12, 8
#: Causes that both show: budgets that broke come after them.
_CAUSES = 6
#: Said of changes if the kernels of before are not known.
_SHARES = "the earlier program is not available: what each line adds is its share of what all lines of its kind add"
#: Numbers and memory that markdown shows: a comment has to stay short.
_NUMBERS_IN_MARKDOWN = 14
#: Reasons of collectives that text shows.
_REASONS = 3
_NUMBERS = headings(" | >before | >after | >change")
_CHANGES = headings("what | over | phase | change | >difference | scope | source")


def verdict(difference: DifferenceNumbers) -> str:
    """One line: whether anything differs, and what that does to the step."""
    name = _named(difference)
    if difference.is_equal:
        return f"equal: {name}{_hidden(difference)}"
    return f"changed: {name}{_step(difference)}"


def _named(difference: DifferenceNumbers) -> str:
    a, b = difference.before, difference.after
    name = a.name if a.name == b.name else f"{a.name} -> {b.name}"
    meshes = [_mesh(s) for s in (a, b) if s.program is not None]
    if not meshes:
        return name
    return f"{name} on {' -> '.join(dict.fromkeys(meshes))}"


def _mesh(side: Snapshot) -> str:
    assert side.program is not None
    return " x ".join(f"{axis}={size}" for axis, size in side.program.mesh.items())


def _hidden(difference: DifferenceNumbers) -> str:
    """What is not said of equal captures, counted."""
    said = [plural(len(difference.renamed), "argument") + " renamed"] * bool(difference.renamed)
    if difference.moved:
        said.append(f"{plural(difference.moved, 'kernel')} at another line or scope")
    return f" ({', '.join(said)})" if said else ""


def _step(difference: DifferenceNumbers) -> str:
    """The first number that changed: step time, else FLOPs, kernels, ..."""
    changed = [n for n in all_numbers(difference) if n.change_text()]
    return f", {number_text(changed[0])}" if changed else ""


def number_text(number: Number) -> str:
    """`step time 1.20 ms -> 2.31 ms (+92.5 %)`."""
    unit = number.metric.unit
    assert number.before is not None
    assert number.after is not None
    said = f"{unit.text(number.before)} -> {unit.text(number.after)}"
    return f"{number.title} {said} ({number.change_text()})"


def all_numbers(difference: DifferenceNumbers) -> list[Number]:
    """Every number that a side knows."""
    return list(numbers(difference.before, difference.after, difference.estimated))


# text -------------------------------------------------------------------------------------------


def text(
    difference: DifferenceNumbers, broken: Sequence[Broken] = (), *, verbose: bool = False
) -> str:
    """The verdict, causes, budgets that broke, numbers that changed, and what costs most.

    `verbose` shows all causes, changes and numbers.
    """
    causes = [cause_text(difference, c) for c in difference.causes]
    if len(causes) > _CAUSES and not verbose:
        causes[_CAUSES:] = [f"and {plural(len(causes) - _CAUSES, 'cause')} more (-v shows all)"]
    parts = ["\n".join((verdict(difference), *causes, *map(_broken_text, broken)))]
    if difference.is_equal:
        return parts[0]
    parts.append(text_table(_NUMBERS, list(_number_rows(difference, everything=verbose))))
    memory = list(_memory_rows(difference))
    if memory:
        parts.append(text_table((Column("memory at the peak"), *_NUMBERS[1:]), memory))
    shown = difference.changes if verbose else difference.changes[:SHOWN]
    if shown:
        parts.append(text_table(_CHANGES, [_change_cells(difference, c) for c in shown]))
    reasons = list(_reasons(shown))[: None if verbose else _REASONS]
    if reasons:
        parts.append("\n".join(reasons))
    rest = len(difference.changes) - len(shown)
    if rest > 0:
        parts.append(f"{plural(rest, 'smaller change')} not shown (-v shows all)")
    if difference.has_kernels:
        parts.append(_unchanged(difference))
    elif shown:
        parts.append(_SHARES)
    return "\n\n".join(parts)


def cause_text(difference: DifferenceNumbers, cause: Cause) -> str:
    """`sharding: [{}] -> [{"model"}] of w (+1.20 ms)`."""
    return f"{cause.kind}: {cause.text}{_costs(difference, cause)}"


def _costs(difference: DifferenceNumbers, cause: Cause) -> str:
    """What all causes of a kind cost together, said with the first of them."""
    first = next(c for c in difference.causes if c.kind == cause.kind)
    cost = difference.costs.get(cause.kind)
    if cost is None or first is not cause:
        return ""
    if difference.estimated:
        return f" ({_signed(cost.path_ns, Unit.NS)} of the step)" if cost.path_ns else ""
    said = [
        f"{_signed(value, unit)}{what}"
        for value, unit, what in (
            (cost.flops, Unit.FLOPS, ""),
            (cost.comm_bytes, Unit.BYTES, " sent"),
        )
        if value
    ]
    return f" ({', '.join(said)})" if said else ""


def _signed(value: float, unit: Unit) -> str:
    sign = "-" if value < 0 else "+"
    return f"{sign}{unit.text(abs(value))}"


def _broken_text(broken: Broken) -> str:
    kind = f": {broken.kind.replace('_', ' ')}" if broken.kind else ""
    return f"over budget: {broken}{_where(broken.worst)}{kind}"


def _where(worst: Change | None) -> str:
    if worst is None:
        return ""
    place = worst.source or worst.source_before
    return f": {name_of(worst)}{f' at {place}' if place else ''}"


def name_of(c: Change) -> str:
    """`forward all_gather over data`."""
    what = " ".join(filter(None, (c.phase, c.kind)))
    return f"{what} over {c.over}" if c.over else what


def _number_rows(difference: DifferenceNumbers, *, everything: bool) -> Iterator[tuple[str, ...]]:
    for n in all_numbers(difference):
        if everything or n.change_text():
            unit = n.metric.unit
            cells = ("-" if v is None else unit.text(v) for v in (n.before, n.after))
            yield n.title, *cells, n.change_text() or "="


def _memory_rows(difference: DifferenceNumbers) -> Iterator[tuple[str, ...]]:
    """What memory holds at the peak, by kind, where that changed."""
    if difference.estimated is None:
        return
    a, b = (e.memory_bytes for e in difference.estimated)
    for kind in dict.fromkeys((*a, *b)):
        old, new = a.get(kind, 0), b.get(kind, 0)
        if old != new:
            change = f"{(new / old - 1) * 100:+.1f} %" if old else "new"
            change = f"x {new / old:,.0f}" if old and new / old >= 100 else change
            yield kind.replace("_", " "), format_bytes(old), format_bytes(new), change


def _change_cells(difference: DifferenceNumbers, c: Change) -> tuple[str, ...]:
    count = f"{c.kernels} x " if c.kernels > 1 else ""
    said = c.said if c.action == "changed" else f"{c.action}: {c.said}"
    return (
        f"{count}{c.kind}",
        c.over,
        c.phase,
        said,
        delta_text(difference, c),
        _scope(c),
        source(c),
    )


def _reasons(shown: Sequence[Change]) -> Iterator[str]:
    """Why the partitioner needs collectives that are new or larger, without the rule's text."""
    for c in shown:
        if c.reason and c.delta.comm_bytes > 0:
            place = f" at {c.source}" if c.source else ""
            yield f"why {name_of(c)}{place}: {c.reason.partition(' #sdy')[0]}"


def _scope(c: Change) -> str:
    parts = PurePosixPath(c.scope).parts[-2:]
    return "/".join(parts)


def source(c: Change) -> str:
    """The line of a change, with the one before where the file or line is another."""
    if not c.source or not c.source_before or c.source == c.source_before:
        return c.source or c.source_before
    return f"{c.source_before} -> {c.source}"


def delta_text(difference: DifferenceNumbers, c: Change) -> str:
    """`+131 us`: what a change adds to the step; of bytes or FLOPs without a cluster."""
    d = c.delta
    if difference.estimated:
        return _signed(d.path_ns or d.busy_ns, Unit.NS) + ("" if d.path_ns else " hidden")
    if d.comm_bytes:
        return f"{_signed(d.comm_bytes, Unit.BYTES)} sent"
    if d.flops:
        return _signed(d.flops, Unit.FLOPS)
    return _signed(d.bytes, Unit.BYTES)


def _unchanged(difference: DifferenceNumbers) -> str:
    """What is not in the table: how much is as it was, and what follows from no cause."""
    rows = sum(c.kernels for c in difference.changes)
    said = [
        f"{rows:,} of {rows + difference.same:,} kernels and collectives of the programs differ"
    ]
    if abs(difference.shifted_ns) >= 1:
        shifted = _signed(difference.shifted_ns, Unit.NS)
        said.append(
            f"{shifted} of the step comes from equal work that is hidden more or less than before"
        )
    rest = [c for c in difference.changes if c.cause is None]
    if rest:
        said.append(f"{plural(len(rest), 'change')} cannot be attributed to the causes above")
    return "; ".join(said)


# markdown ---------------------------------------------------------------------------------------


def markdown(
    difference: DifferenceNumbers, broken: Sequence[Broken] = (), *, title: str = ""
) -> str:
    """The same for a comment of a pull request: below 60 lines, largest first."""
    lines = [f"**{escape(title)}** {escape(verdict(difference))}".strip()]
    lines += ["", *(f"- :x: {escape(_broken_text(b))}" for b in broken[:8])] if broken else []
    if difference.is_equal:
        return "\n".join(lines) + "\n"
    causes = [f"- {escape(cause_text(difference, c))}" for c in difference.causes[:_CAUSES]]
    rest = len(difference.causes) - len(causes)
    lines += ["", *causes, *([f"- and {rest} more"] if rest > 0 else [])]
    rows = list(_number_rows(difference, everything=False))[:_NUMBERS_IN_MARKDOWN]
    lines += ["", *_markdown_table(_NUMBERS, rows)]
    shown = [_change_cells(difference, c) for c in difference.changes[:SHOWN_IN_MARKDOWN]]
    if shown:
        lines += ["", *_markdown_table(_CHANGES, shown)]
    left = len(difference.changes) - len(shown)
    if left > 0:
        lines += ["", f"{plural(left, 'smaller change')} not shown."]
    if shown and not difference.has_kernels:
        lines += ["", f"{_SHARES.capitalize()}."]
    return "\n".join(lines) + "\n"


def _markdown_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    head = "| " + " | ".join(c.title for c in columns) + " |"
    rule = "|" + "|".join("--:" if c.right else "---" for c in columns) + "|"
    return [head, rule, *("| " + " | ".join(map(escape, row)) + " |" for row in rows)]


def escape(cell: str) -> str:
    """Names of others as they are: nothing in them is markdown, HTML or a mention."""
    escaped = "".join(f"\\{c}" if c in "\\`*_[]|~#" else c for c in cell)
    return escaped.replace("<", "&lt;").replace("@", "@\u200b").replace("\n", " ")


# notebooks --------------------------------------------------------------------------------------


def html(difference: DifferenceNumbers) -> str:
    """The same as text, as HTML for a notebook."""
    from flint.tools.report.page.markup import tag
    from flint.tools.report.page.small import fragment, table_of

    causes = [tag("li", cause_text(difference, c)) for c in difference.causes]
    parts: list[object] = [tag("p", tag("b", verdict(difference)))]
    parts += [tag("ul", *causes)] * bool(causes)
    if not difference.is_equal:
        rows = list(_number_rows(difference, everything=False))
        parts.append(table_of(_NUMBERS, rows, "numbers that differ"))
        shown = [_change_cells(difference, c) for c in difference.changes[:SHOWN]]
        parts += [table_of(_CHANGES, shown, "what differs, most first")] * bool(shown)
    return fragment(*parts)
