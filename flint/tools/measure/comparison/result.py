"""What a measurement and a model of the same step differ in: MeasuredComparison, its text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from typing_extensions import TypedDict

from flint.backends.cost.replay.attribution import Attribution
from flint.io.documents import Millionths, Thousandths, as_object
from flint.text import format_bytes, format_count, format_duration, format_flops, headings, plural
from flint.text import text_table as table
from flint.tools.measure.comparison.pairing import Pairing
from flint.tools.measure.comparison.parts import DifferencePart
from flint.tools.measure.comparison.units import ExecutedCall, total_ns

SCHEMA: Final = "flint.compare/1"


@dataclass(frozen=True, slots=True)
class CallTotals:
    """Calls of one kind on one side, in one step of a device."""

    calls: int  #: Calls of operators, or collectives and messages.
    kernels: int  #: Kernels and copies that they launch.
    flops: int  #: Floating point operations.
    bytes: int  #: What they read and write; of communication, what the rank puts in.
    time_ns: Thousandths  #: How long they run, in all.

    @classmethod
    def of(cls, units: Sequence[ExecutedCall]) -> CallTotals:
        """Of units."""
        return cls(
            len(units),
            sum(u.kernels for u in units),
            sum(u.flops for u in units),
            sum(u.bytes for u in units),
            total_ns(units),
        )


@dataclass(frozen=True, slots=True)
class KindRow:
    """One kind of kernel (gemm, elementwise, ...) or communication on both sides."""

    kind: str  #: Its name.
    measured: CallTotals  #: What was measured.
    captured: CallTotals  #: What was captured, with its time on the cluster.

    ratio: Millionths  #: Measured over estimated time; 0 where the capture has none.

    @classmethod
    def of(cls, kind: str, measured: CallTotals, captured: CallTotals) -> KindRow:
        """Of what both sides do."""
        ratio = measured.time_ns / captured.time_ns if captured.time_ns else 0.0
        return cls(kind, measured, captured, ratio)


@dataclass(frozen=True, slots=True)
class Alone:
    """Calls with one name that only one side has."""

    title: str  #: Operation, element type and shape.
    kind: str  #: Kind of kernel.
    totals: CallTotals  #: What they do.


@dataclass(frozen=True, eq=False)
class MeasuredComparison:
    """A measured step beside a captured one, priced on a cluster.

    `step_ns` are measured and estimated, and so are all pairs here. `parts` of both steps say to what
    each nanosecond belongs. `matched_time` and `matched_calls` are shares of what was measured that a
    call of the same class and size was found for in the capture; `in_forms` is the part of that time in
    which one operation has another form. `resized` are calls in the same place whose size is another. `exposed` is how much of the communication's time nothing is computed meanwhile.
    """

    rank: int
    device: str
    cluster: str
    step_ns: tuple[float, float]
    replay_error: float
    parts: tuple[Attribution, Attribution]
    kinds: tuple[KindRow, ...]
    pairing: Pairing
    units: tuple[tuple[ExecutedCall, ...], tuple[ExecutedCall, ...]]
    resized: tuple[tuple[Alone, Alone], ...]
    only_measured: tuple[Alone, ...]
    only_captured: tuple[Alone, ...]
    communication_ns: tuple[float, float]
    peak_bytes: tuple[int, int]
    causes: tuple[DifferencePart, ...]
    notes: tuple[str, ...]

    @property
    def matched_time(self) -> float:
        """Share of measured time of kernels and communication with a counterpart, 0 to 1."""
        pairing = self.pairing
        without = [*pairing.only_measured, *(i for i, _ in pairing.resized)]
        return _share_with(self.units[0], without)

    @property
    def matched_calls(self) -> float:
        """Share of measured calls with a counterpart, 0 to 1."""
        without = len(self.pairing.only_measured) + len(self.pairing.resized)
        return 1 - without / (len(self.units[0]) or 1)

    @property
    def captured_time(self) -> float:
        """Share of estimated time with a counterpart, 0 to 1."""
        pairing = self.pairing
        without = [*pairing.only_captured, *(j for _, j in pairing.resized)]
        return _share_with(self.units[1], without)

    @property
    def in_forms(self) -> float:
        """Share of measured time in operations that the capture writes in another way."""
        mine = [self.units[0][n] for f in self.pairing.forms for n in f.measured]
        return total_ns(mine) / (total_ns(self.units[0]) or 1.0)

    @property
    def exposed(self) -> tuple[float, float]:
        """Share of the communication's time in which nothing is computed, 0 to 1."""
        first, second = (
            min(1.0, (p.wire_ns + p.waiting_ns) / busy) if busy else 0.0
            for p, busy in zip(self.parts, self.communication_ns, strict=True)
        )
        return first, second

    def to_text(self, *, verbose: bool = False) -> str:
        """As `flint compare` prints it; `verbose` lists all that one side alone has."""
        return text(self, verbose=verbose)

    def to_json(self) -> dict[str, Any]:
        """As `flint compare --json`: exact numbers."""
        return as_object(document(self))

    def __str__(self) -> str:
        return self.to_text()


def _share_with(units: Sequence[ExecutedCall], without: Sequence[int]) -> float:
    return 1 - total_ns([units[n] for n in without]) / (total_ns(units) or 1.0)


class ComparedSizeDocument(TypedDict):
    """Calls of one class in the same place of both steps, with other sizes."""

    measured: Alone  #: As they were measured.
    captured: Alone  #: As they were captured.


class CompareDocument(TypedDict):
    """A measured step beside a captured one that is priced on a cluster."""

    schema: Literal["flint.compare/1"]  #: Kind and version of this document.
    rank: int  #: The profiled rank.
    device: str  #: Its device, as the profiler names it.
    cluster: str  #: The cluster on which the capture is priced.
    measured_step_ns: float  #: The recorded step.
    estimated_step_ns: float  #: The step of the capture.
    replay_error: float
    """How much longer the replay of the measurement is than what was measured, as a share."""
    matched_time: float
    """Share of the measured time of kernels and communication that the capture has in the same size."""
    matched_calls: float  #: Share of the measured calls that the capture has in the same size.
    matched_estimated_time: float
    """Share of the estimated time that was measured in the same size."""
    in_other_forms: float
    """Share of the measured time in operations that the capture writes in another way."""
    measured_parts: Attribution  #: Of the measured step.
    estimated_parts: Attribution  #: Of the estimated step.
    kinds: tuple[KindRow, ...]  #: Kinds of kernels and communication, longest first.
    other_sizes: list[ComparedSizeDocument]
    """What both have in the same place with another size, longest first."""
    only_measured: tuple[Alone, ...]  #: What the capture does not have, longest first.
    only_captured: tuple[Alone, ...]  #: What was not measured, longest first.
    measured_communication_ns: float  #: How long communication runs.
    estimated_communication_ns: float  #: The same in the model.
    measured_exposed: float  #: Share of it in which nothing is computed.
    estimated_exposed: float  #: The same in the model.
    measured_peak_bytes: int
    """Most memory of the framework's allocator; 0 where it was not recorded."""
    estimated_peak_bytes: int  #: Peak memory in the model.
    causes: tuple[DifferencePart, ...]
    """They add up to the difference of the step times; the largest first."""
    notes: list[str]  #: What to know of the two sides.


_KINDS = headings(
    "kind | >calls | >captured | >FLOPs | >captured | >bytes | >captured | >measured | >estimated | >ratio"
)
_PARTS = headings(" | >step | >compute | >wire | >waiting | >launch | >unknown")
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
    share = f"{estimated / measured - 1:+.1%}" if measured else "-"
    kernels = [sum(u.kernels for u in side) for side in found.units]
    return (
        f"rank {found.rank}, measured on {found.device or 'an unknown device'}, modeled on "
        f"{found.cluster}\n"
        f"step      {format_duration(measured)} measured, {format_duration(estimated)} "
        f"estimated ({share})\n"
        f"calls     {format_count(len(found.units[0]))} measured of "
        f"{plural(kernels[0], 'kernel')}, {format_count(len(found.units[1]))} captured"
    )


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
            f"overlap   communication takes {format_duration(busy[0])}, {exposed[0]:.0%} of it "
            f"exposed; in the model {format_duration(busy[1])}, {exposed[1]:.0%}"
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


def document(found: MeasuredComparison) -> CompareDocument:
    """Exact numbers."""
    return {
        "schema": SCHEMA,
        "rank": found.rank,
        "device": found.device,
        "cluster": found.cluster,
        "measured_step_ns": found.step_ns[0],
        "estimated_step_ns": round(found.step_ns[1], 3),
        "replay_error": round(found.replay_error, 6),
        "matched_time": round(found.matched_time, 6),
        "matched_calls": round(found.matched_calls, 6),
        "matched_estimated_time": round(found.captured_time, 6),
        "in_other_forms": round(found.in_forms, 6),
        "measured_parts": found.parts[0],
        "estimated_parts": found.parts[1],
        "kinds": found.kinds,
        "other_sizes": [{"measured": m, "captured": c} for m, c in found.resized],
        "only_measured": found.only_measured,
        "only_captured": found.only_captured,
        "measured_communication_ns": round(found.communication_ns[0], 3),
        "estimated_communication_ns": round(found.communication_ns[1], 3),
        "measured_exposed": round(found.exposed[0], 6),
        "estimated_exposed": round(found.exposed[1], 6),
        "measured_peak_bytes": found.peak_bytes[0],
        "estimated_peak_bytes": found.peak_bytes[1],
        "causes": found.causes,
        "notes": list(found.notes),
    }
