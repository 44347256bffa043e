"""What an estimate says of measured times: spans beside each other, attribution, what times rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from flint.backends.cost.price import Priced
from flint.backends.cost.replay.attribution import Attribution, attribution
from flint.backends.cost.row_prices import Basis
from flint.backends.cost.simulate.timeline import ClassTimeline, Timeline
from flint.cluster.devices import cluster_of_device
from flint.cluster.models import Cluster
from flint.io.documents import Millionths, Thousandths, Unpublished
from flint.ir.made_by import MeasuredBy
from flint.ir.op_class import OpClass
from flint.ir.workload import Workload
from flint.text import format_duration, headings, plural, text_table

#: Times of a step that differ by no more than this part are one.
_SAME = 0.005
#: What each basis is to people.
_WORDS = {Basis.MEASURED: "measured", Basis.SCALED: "scaled", Basis.MODEL: "by models"}
#: Of a table of recorded ranks.
COLUMNS = headings(
    "rank | >measured | >estimated | > | >compute | >wire | >waiting | >launch | >unknown"
)


@dataclass(frozen=True, slots=True)
class Rest:
    """Executed kernels and communication whose times rest on one thing."""

    basis: str  #: measured, scaled (measured times a ratio of the models), or by models.
    count: int  #: How many a step of the rank class that ends last has.
    time_ns: Thousandths  #: Their times, added up.


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """A rank class that was recorded."""

    name: str  #: Its name.
    rank: int  #: The rank that was recorded.
    measured_ns: float
    """How long the step took that was taken of its profile, in ns; 0: not known."""
    step_ns: float
    """The time of a step as flint import shows it: of several the median period between their ends, in ns."""
    estimated_ns: Thousandths  #: How long the estimate takes, in ns.
    error: Millionths
    """By how much that is longer, as a share of what was measured; 0 where that is not known."""
    peak_bytes: int  #: The most memory that the framework's allocator held; 0: not recorded.
    attribution: Attribution  #: To what `estimated_ns` belong.


@dataclass(frozen=True)
class MeasuredFacts:
    """What an estimate with measured times rests on.

    Without `by` nobody measured the program itself. `rests` are of the rank class that ends last.
    """

    format: str  #: What recorded the program ("kineto", ...); "" where it was not recorded itself.
    device: str  #: The device that it ran on, as its driver calls it.
    recorded_on: str  #: The cluster that stands for that.
    changes: tuple[str, ...]  #: What --scale and --replace changed.
    rests: tuple[Rest, ...]  #: What times rest on.
    classes: tuple[ClassFacts, ...]  #: Rank classes that were recorded.
    by: Unpublished[MeasuredBy | None]

    def rests_text(self) -> str:
        """How much of the time of kernels and communication has which basis."""
        whole = sum(r.time_ns for r in self.rests) or 1.0
        parts = [
            f"{r.basis} {r.count:,} ({r.time_ns / whole:.1%} of their time)" for r in self.rests
        ]
        return "times of kernels and communication: " + (", ".join(parts) or "none")

    def table(self) -> str:
        """Spans, and to what the nanoseconds of each recorded rank belong."""
        return text_table(COLUMNS, [attribution_cells(c) for c in self.classes])

    def notes(self) -> list[str]:
        """Sentences on what was measured, and what was made of it."""
        by = self.by
        notes = []
        if by:
            ranks = plural(len(by.classes), "rank")
            on = f" ({self.recorded_on})" if self.recorded_on else ""
            notes.append(
                f"{by.format} profiles of {ranks} on {by.device}{on}; the host is as recorded"
            )
            notes += _periods(self)
            attributions = [c.attribution for c in self.classes]
            if len(by.classes) == 1 and any(a.wire_ns or a.waiting_ns for a in attributions):
                notes.append(
                    "only one rank was recorded: its communication includes the wait for "
                    "others, and takes as long on the wire as the model says"
                )
        elif self.recorded_on:
            notes.append(
                f"predicted from measured workloads on {self.recorded_on}: times of equal "
                "kernels and communication are measured; other times are the models', scaled "
                "as similar kernels were"
            )
        if self.changes:
            notes.append(f"changed: {', '.join(self.changes)}")
        return [*notes, self.rests_text()]


def attribution_cells(c: ClassFacts) -> tuple[str, ...]:
    """A row of COLUMNS."""
    span = c.attribution.span_ns or 1.0
    parts = [f"{ns / span:.1%}" for ns in asdict(c.attribution).values()]
    if not c.measured_ns:
        return c.name, "-", format_duration(c.estimated_ns), "", *parts
    spans = format_duration(c.measured_ns), format_duration(c.estimated_ns)
    return c.name, *spans, f"{c.error:+.1%}", *parts


def measured_facts(
    workload: Workload,
    priced: Priced,
    timeline: Timeline,
    cluster: Cluster,
    changes: Sequence[str],
    table_of: str = "",
) -> MeasuredFacts:
    """Facts of an estimate that rests on measured times. A device that Flint does not know is `cluster`'s.

    `table_of` is the cluster that the times of other workloads were measured on, "" for none.
    """
    by = workload.measured_by
    recorded_on = (cluster_of_device(by.device) or cluster).name if by else table_of
    found = []
    for number, track in enumerate(timeline.classes if by else ()):
        assert by is not None
        about = by.classes[number]
        wire = priced.prices[workload.classes[number].program].wire_ns
        found.append(
            ClassFacts(
                workload.classes[number].name,
                about.rank,
                about.span_ns,
                about.step_ns,
                track.total_ns,
                track.total_ns / about.span_ns - 1 if about.span_ns else 0.0,
                about.peak_bytes,
                attribution(track, wire),
            )
        )
    slowest = int(np.argmax([c.total_ns for c in timeline.classes]))
    basis = priced.prices[workload.classes[slowest].program].basis
    return MeasuredFacts(
        format=by.format if by else "",
        device=by.device if by else "",
        recorded_on=recorded_on,
        changes=tuple(changes),
        rests=_rests(timeline.classes[slowest], basis),
        classes=tuple(found),
        by=by,
    )


def _rests(
    track: ClassTimeline, basis: np.ndarray[tuple[int], np.dtype[np.uint8]]
) -> tuple[Rest, ...]:
    work = track.work
    rows = work.nodes.row
    works = (work.program.op != OpClass.HOST)[rows]
    of_node, ns = basis[rows], work.duration_ns[rows]
    found = []
    for kind, word in _WORDS.items():
        mine = works & (of_node == kind)
        if mine.any():
            found.append(Rest(word, int(mine.sum()), float(ns[mine].sum())))
    return tuple(found)


def _periods(facts: MeasuredFacts) -> list[str]:
    """The two times of a step, where they are not one: of the step that was taken, and of all."""
    assert facts.by is not None
    apart = [
        (about, c)
        for about, c in zip(facts.by.classes, facts.classes, strict=True)
        if abs(c.step_ns - c.measured_ns) > _SAME * c.step_ns
    ]
    if not apart:
        return []
    about, c = max(apart, key=lambda each: each[1].step_ns)
    return [
        (
            f"the measured time is that of the chosen step, {format_duration(c.measured_ns)} on "
            f"rank {c.rank}; the median period between the ends of "
            f"{plural(about.steps, 'step')} is {format_duration(c.step_ns)}, which flint import "
            "shows"
        )
    ]
