"""A calibration for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flint.text import Column, format_duration, plural, text_table

if TYPE_CHECKING:
    from flint.tools.measure.calibration.calibrate import Calibration
    from flint.tools.measure.calibration.data import Source
    from flint.tools.measure.calibration.fitted import Error, Fitted

_COLUMNS = (
    Column("what"),
    Column("rows", True),
    Column("fitted on", True),
    Column("held out", True),
    Column("time", True),
    Column("before", True),
    Column("after", True),
    Column("of the sum", True),
    Column("one constant", True),
    Column(""),
)
#: Errors above this say nothing more.
_MOST = 999.0


def as_text(found: Calibration, *, verbose: bool = False, checked: bool = False) -> str:
    """What was read, the error before and after on the rows held out, and each constant."""
    parts = ["\n".join(_read(s) for s in found.sources)]
    parts += [f"left out   {n:,} collectives {why}" for why, n in sorted(found.left_out.items())]
    results = _results(found)
    parts.append(text_table(_COLUMNS, [_row(f, checked=checked) for f in results]))
    if checked:
        parts.append("Errors in percent on all rows: the mean of each, and of the sum.")
        return "\n\n".join(parts)
    parts.append(
        "Errors in percent on rows held out: the mean of each row before and after, and of the sum of\n"
        "times with the constants that are kept; one constant: a roofline times one. Of fewer than 8\n"
        "rows each is held out in turn."
    )
    parts += ["\n".join(_constants(f, verbose=verbose)) for f in results if f.changes or verbose]
    if found.host_launch_ns is not None:
        parts.append(f"host_launch_ns: {found.host_launch_ns:g}, the mean of the traces' launches")
    return "\n\n".join(part for part in parts if part)


def _results(found: Calibration) -> list[Fitted]:
    return [*found.kernels, *(f for _, f in found.tiers)]


def _read(source: Source) -> str:
    rows = source.kernels + source.collectives
    line = f"read       {source.name}: {source.format}, {plural(rows, 'row')}"
    left = ", ".join(f"{n:,} {why}" for why, n in source.left_out.items())
    line += f"; left out: {left}" if left else ""
    if source.unknown_share >= 0.001:
        line += f"; of {source.unknown_share:.1%} of its kernels' time only the time is known"
    return line + "".join(f"\n           {note}" for note in source.notes)


def _row(f: Fitted, *, checked: bool) -> tuple[str, ...]:
    last = f.after if f.is_better else f.before
    return (
        f.name,
        f"{f.rows:,}",
        "-" if checked else f"{f.fitted_on:,}",
        "-" if checked else f"{f.held_out:,}",
        format_duration(f.measured_ns),
        _mean(f.before),
        _mean(f.after),
        f"{_capped(last.of_sum_percent):+.1f}" if last else "-",
        _mean(f.one_constant),
        "" if checked else _verdict(f),
    )


def _verdict(f: Fitted) -> str:
    if not f.is_better:
        return f"kept: {f.reason}"
    trivial = (
        f.after is not None
        and f.one_constant
        and f.one_constant.mean_percent < f.after.mean_percent
    )
    return "written, but a roofline times one constant is nearer" if trivial else "written"


def _mean(error: Error | None) -> str:
    return "-" if error is None else f"{_capped(error.mean_percent):.1f}"


def _capped(value: float) -> float:
    return max(-_MOST, min(_MOST, value))


def _constants(f: Fitted, *, verbose: bool) -> Iterator[str]:
    yield f"{f.name}: {'written' if f.is_better else 'not written, ' + f.reason}"
    for c in f.changes:
        edge = ", at its bound" if c.is_at_bound else ""
        yield f"  {c.name}: {c.before:.4g} -> {c.after:.4g}{edge}"
    if verbose:
        for name, why in f.kept.items():
            yield f"  {name}: kept, {why}"
