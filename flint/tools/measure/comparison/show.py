"""A measured comparison for people."""

from __future__ import annotations

from dataclasses import asdict

from flint.text import Column, format_bytes, format_count, format_duration, format_flops, plural
from flint.text import text_table as table
from flint.tools.measure.comparison.comparison import Alone, KindRow, MeasuredComparison

_KINDS = (
    Column("kind"),
    Column("calls", right=True),
    Column("captured", right=True),
    Column("FLOPs", right=True),
    Column("captured", right=True),
    Column("bytes", right=True),
    Column("captured", right=True),
    Column("measured", right=True),
    Column("estimated", right=True),
    Column("ratio", right=True),
)
_PARTS = (
    Column(""),
    *(Column(t, right=True) for t in ("step", "compute", "wire", "waiting", "launch", "unknown")),
)
_MOST_ALONE = 6
_MOST_CAUSES = 3


def text(found: MeasuredComparison, *, verbose: bool = False) -> str:
    """What `flint compare` prints."""
    blocks = [
        _heading(found),
        table(_KINDS, [_kind(row) for row in found.kinds]),
        _matched(found),
        *_resized(found.resized, verbose),
        *_alone("only measured", found.only_measured, verbose),
        *_alone("only captured", found.only_captured, verbose),
        table(_PARTS, _parts(found)),
        _beside(found),
        _causes(found),
        *(f"note: {note}" for note in found.notes if verbose),
    ]
    return "\n\n".join(b for b in blocks if b)


def _heading(found: MeasuredComparison) -> str:
    measured, estimated = found.step_ns
    kernels = [sum(u.kernels for u in side) for side in found.units]
    return (
        f"rank {found.rank}, measured on {found.device or 'an unknown device'}, modelled on "
        f"{found.cluster}\n"
        f"step      {format_duration(measured)} measured, {format_duration(estimated)} estimated "
        f"({_share(measured, estimated)})\n"
        f"calls     {format_count(len(found.units[0]))} measured of {plural(kernels[0], 'kernel')}, "
        f"{format_count(len(found.units[1]))} captured"
    )


def _share(measured: float, estimated: float) -> str:
    return f"{estimated / measured - 1:+.1%}" if measured else "-"


def _kind(row: KindRow) -> tuple[str, ...]:
    m, c = row.measured, row.captured
    return (
        row.kind,
        format_count(m.calls),
        format_count(c.calls),
        format_flops(m.flops),
        format_flops(c.flops),
        format_bytes(m.bytes),
        format_bytes(c.bytes),
        format_duration(m.time_ns) if m.calls else "-",
        format_duration(c.time_ns) if c.calls else "-",
        f"{row.ratio:.2f}" if row.ratio else "-",
    )


def _matched(found: MeasuredComparison) -> str:
    forms = f", {found.in_forms:.1%} of it in another form" if found.pairing.forms else ""
    return (
        f"matched   {found.matched_time:.1%} of the measured time{forms}, {found.matched_calls:.1%} "
        f"of the measured calls; {found.captured_time:.1%} of the estimated time"
    )


def _resized(resized: tuple[tuple[Alone, Alone], ...], verbose: bool) -> list[str]:
    if not resized:
        return []
    shown = resized if verbose else resized[:_MOST_ALONE]
    lines = [
        f"  {format_count(m.totals.calls)} x {m.title}, captured as {c.title}: "
        f"{format_duration(m.totals.time_ns)} against {format_duration(c.totals.time_ns)}"
        for m, c in shown
    ]
    if len(shown) < len(resized):
        rest = sum(m.totals.time_ns for m, _ in resized[len(shown) :])
        lines.append(f"  and {len(resized) - len(shown)} more: {format_duration(rest)}")
    return ["in the same place with another size:\n" + "\n".join(lines)]


def _alone(title: str, alone: tuple[Alone, ...], verbose: bool) -> list[str]:
    if not alone:
        return []
    shown = alone if verbose else alone[:_MOST_ALONE]
    lines = [
        f"  {format_count(a.totals.calls)} x {a.title} ({a.kind}): "
        f"{format_duration(a.totals.time_ns)}"
        for a in shown
    ]
    if len(shown) < len(alone):
        rest = sum(a.totals.time_ns for a in alone[len(shown) :])
        lines.append(f"  and {len(alone) - len(shown)} more: {format_duration(rest)}")
    return [f"{title}:\n" + "\n".join(lines)]


def _parts(found: MeasuredComparison) -> list[tuple[str, ...]]:
    rows = []
    for name, parts in zip(("measured", "estimated"), found.parts, strict=True):
        span = parts.span_ns or 1.0
        cells = [f"{format_duration(ns)} {ns / span:.1%}" for ns in asdict(parts).values()]
        rows.append((name, format_duration(parts.span_ns), *cells))
    return rows


def _beside(found: MeasuredComparison) -> str:
    lines = []
    busy = found.communication_ns
    if any(busy):
        exposed = found.exposed
        lines.append(
            f"overlap   communication takes {format_duration(busy[0])}, of which {exposed[0]:.0%} "
            f"nothing hides; in the model {format_duration(busy[1])}, {exposed[1]:.0%}"
        )
    measured, estimated = found.peak_bytes
    said = format_bytes(measured) if measured else "not recorded (profile_memory=True)"
    lines.append(f"memory    {said}; in the model {format_bytes(estimated)}")
    lines.append(f"replay    {found.replay_error:+.2%} of the measured step")
    return "\n".join(lines)


def _causes(found: MeasuredComparison) -> str:
    measured, estimated = found.step_ns
    if not found.causes:
        return "no difference"
    lines = [f"  {_signed(c.delta_ns)}  {c.sentence}" for c in found.causes[:_MOST_CAUSES]]
    title = f"largest causes of {_signed(measured - estimated)}:"
    return "\n".join([title, *lines])


def _signed(ns: float) -> str:
    return f"{'+' if ns >= 0 else '-'}{format_duration(abs(ns))}"
