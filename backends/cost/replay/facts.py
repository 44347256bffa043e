"""What an estimate says of measured times: spans beside each other, attribution, what times rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.price import Priced
from flint.backends.cost.replay.attribution import Attribution, attribution
from flint.backends.cost.row_prices import Basis
from flint.backends.cost.simulate.timeline import ClassTimeline, Timeline
from flint.cluster.devices import cluster_of_device
from flint.cluster.models import Cluster
from flint.ir.measured_by import MeasuredBy
from flint.ir.op_class import OpClass
from flint.ir.workload import Workload
from flint.text import Column, format_duration, plural, text_table

if TYPE_CHECKING:
    from flint.schemas.documents.estimate import MeasuredDocument

#: What each basis is to people.
_WORDS = {Basis.MEASURED: "measured", Basis.SCALED: "scaled", Basis.MODEL: "by models"}
#: Of a table of recorded ranks.
COLUMNS = (
    Column("rank"),
    Column("measured", right=True),
    Column("estimated", right=True),
    Column("", right=True),
    Column("compute", right=True),
    Column("wire", right=True),
    Column("waiting", right=True),
    Column("launch", right=True),
    Column("unknown", right=True),
)


@dataclass(frozen=True, slots=True)
class Rest:
    """Executed kernels and communication whose times have one basis, in a step of a rank class."""

    basis: str
    count: int
    time_ns: float


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """One rank class. `measured_ns` is the span of its profile, 0 where none is known."""

    name: str
    rank: int
    measured_ns: float
    estimated_ns: float
    peak_bytes: int
    attribution: Attribution

    @property
    def error(self) -> float:
        """How much longer the estimate is than what was measured, as a share of that; 0: not known."""
        return self.estimated_ns / self.measured_ns - 1 if self.measured_ns else 0.0


@dataclass(frozen=True)
class MeasuredFacts:
    """What times of an estimate rest on. Without `by` nobody measured the program itself.

    `recorded_on` is the cluster that stands for the device of the profiles, "" for none; `changes`
    are what a user changed. `rests` are of the rank class that ends last.
    """

    by: MeasuredBy | None
    recorded_on: str
    changes: tuple[str, ...]
    classes: tuple[ClassFacts, ...]
    rests: tuple[Rest, ...]

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

    def to_json(self) -> MeasuredDocument:
        """Exact numbers, JSON-able."""
        return {
            "format": self.by.format if self.by else "",
            "device": self.by.device if self.by else "",
            "recorded_on": self.recorded_on,
            "changes": list(self.changes),
            "rests": [
                {"basis": r.basis, "count": r.count, "time_ns": round(r.time_ns, 3)}
                for r in self.rests
            ],
            "classes": [
                {
                    "name": c.name,
                    "rank": c.rank,
                    "measured_ns": c.measured_ns,
                    "estimated_ns": round(c.estimated_ns, 3),
                    "error": round(c.error, 6),
                    "peak_bytes": c.peak_bytes,
                    "attribution": {
                        "compute_ns": round(c.attribution.compute_ns, 3),
                        "wire_ns": round(c.attribution.wire_ns, 3),
                        "waiting_ns": round(c.attribution.waiting_ns, 3),
                        "launch_ns": round(c.attribution.launch_ns, 3),
                        "unknown_ns": round(c.attribution.unknown_ns, 3),
                    },
                }
                for c in self.classes
            ],
        }


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
                track.total_ns,
                about.peak_bytes,
                attribution(track, wire),
            )
        )
    slowest = int(np.argmax([c.total_ns for c in timeline.classes]))
    return MeasuredFacts(by, recorded_on, tuple(changes), tuple(found), _rests(
        timeline.classes[slowest], priced.prices[workload.classes[slowest].program].basis
    ))  # fmt: skip


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


def recorded_notes(facts: MeasuredFacts) -> list[str]:
    """Sentences on what was measured, and what was made of it."""
    by = facts.by
    notes = []
    if by:
        ranks = plural(len(by.classes), "rank")
        on = f" ({facts.recorded_on})" if facts.recorded_on else ""
        notes.append(f"{by.format} profiles of {ranks} on {by.device}{on}; the host is as recorded")
        attributions = [c.attribution for c in facts.classes]
        if len(by.classes) == 1 and any(a.wire_ns or a.waiting_ns for a in attributions):
            notes.append(
                "one rank was recorded: its communication holds the wait for others, and goes over the "
                "wire as long as the model says"
            )
    elif facts.recorded_on:
        notes.append(
            f"predicted from measured workloads on {facts.recorded_on}: times of the same kernels and "
            "communication are measured, others the models' times as near ones were measured over them"
        )
    if facts.changes:
        notes.append(f"changed: {', '.join(facts.changes)}")
    return [*notes, facts.rests_text()]
