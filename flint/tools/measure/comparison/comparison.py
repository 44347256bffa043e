"""What a measurement and a model of the same step differ in: `compare_measured`, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flint.backends.cost.estimate import Estimate, estimate
from flint.backends.cost.replay.attribution import Attribution
from flint.backends.cost.replay.facts import ClassFacts
from flint.backends.cost.replay.plan import cluster_for, recorded_cluster
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.tools.measure.comparison.pairing import Pairing, pair
from flint.tools.measure.comparison.parts import causes, modelled
from flint.tools.measure.comparison.result import Alone, CallTotals, KindRow, MeasuredComparison
from flint.tools.measure.comparison.units import ExecutedCall, total_ns, units_of

if TYPE_CHECKING:
    from pathlib import Path

    from flint.tracing import Trace


def compare_measured(
    measured: Workload, captured: Workload, request: EstimateRequest, *, rank: int | None = None
) -> MeasuredComparison:
    """Compare a workload made of profiles with a captured one, priced as `request` says.

    Its cluster of None is that of the measured device. `rank` is the profiled rank that is looked at,
    None for the first. Raises FlintError FL840 if nothing was measured, or the capture was,
    FL503 for a rank without a profile, and what `estimate` raises.
    """
    by = measured.measured_by
    if by is None or captured.measured_by is not None:
        which = "the first side was not measured" if by is None else "the second side was measured"
        raise FlintError(
            "FL840",
            f"{which}: a measurement is compared with a capture",
            help="flint compare MEASURED CAPTURED; flint diff compares two of a kind",
        )
    ranks = [c.rank for c in by.classes]
    number = _class_of(ranks, rank)
    cluster = cluster_for(measured, request.cluster)
    replayed = estimate(measured, EstimateRequest(_device_cluster(measured, cluster)))
    priced = estimate(captured, request.but(cluster=cluster))
    assert replayed.measured is not None
    facts = replayed.measured.classes[number]
    other = int(captured.class_of_ranks()[facts.rank]) if facts.rank < captured.mesh.size else 0
    return _compared(replayed, priced, number, other, facts, _notes(measured, captured, priced))


def _class_of(ranks: list[int], rank: int | None) -> int:
    if rank is None:
        return 0
    if rank not in ranks:
        raise FlintError(
            "FL503",
            f"rank {rank} has no profile",
            help="ranks with profiles: " + ", ".join(map(str, ranks[:20])),
        )
    return ranks.index(rank)


def _device_cluster(measured: Workload, cluster: Cluster) -> Cluster:
    """The cluster that was measured on, so that nothing is scaled; `cluster` where Flint has none."""
    assert measured.measured_by is not None
    try:
        return recorded_cluster(measured.measured_by)
    except FlintError:
        return cluster


def _notes(measured: Workload, captured: Workload, priced: Estimate) -> list[str]:
    found = list(measured.warnings)
    if measured.mesh.size != captured.mesh.size:
        found.append(
            f"measured on {measured.mesh.size:,} devices, but captured for {captured.mesh.size:,}"
        )
    if priced.is_lower_bound:
        found.append(
            f"operations without a price count as zero: {', '.join(sorted(priced.unpriced))}"
        )
    return found


def _compared(
    replayed: Estimate,
    priced: Estimate,
    number: int,
    other: int,
    facts: ClassFacts,
    notes: list[str],
) -> MeasuredComparison:
    tracks = replayed.timeline.classes[number], priced.timeline.classes[other]
    mine, theirs = (tuple(units_of(t)) for t in tracks)
    found = pair(mine, theirs)
    parts = _whole(facts), modelled(priced, other)
    step_ns = facts.measured_ns or tracks[0].total_ns, priced.step_time_ns
    assert replayed.measured is not None and replayed.measured.by is not None
    return MeasuredComparison(
        rank=facts.rank,
        device=replayed.measured.by.device,
        cluster=priced.cluster.name,
        step_ns=step_ns,
        replay_error=facts.error,
        parts=parts,
        kinds=_kinds(mine, theirs),
        pairing=found,
        units=(mine, theirs),
        resized=_resized(mine, theirs, found),
        only_measured=_alone([mine[n] for n in found.only_measured]),
        only_captured=_alone([theirs[n] for n in found.only_captured]),
        communication_ns=(_communication_ns(mine), _communication_ns(theirs)),
        peak_bytes=(facts.peak_bytes, priced.classes[other].memory.peak_bytes),
        causes=causes(parts, (mine, theirs), found),
        notes=tuple(notes),
    )


def _whole(facts: ClassFacts) -> Attribution:
    """All of the measured step: what the replay does not reach is unknown."""
    a = facts.attribution
    missing = max(0.0, facts.measured_ns - a.span_ns)
    return Attribution(a.compute_ns, a.wire_ns, a.waiting_ns, a.launch_ns, a.unknown_ns + missing)


def _communication_ns(units: Sequence[ExecutedCall]) -> float:
    return total_ns([u for u in units if u.communicates])


def _kinds(
    measured: Sequence[ExecutedCall], captured: Sequence[ExecutedCall]
) -> tuple[KindRow, ...]:
    names = {u.kind for u in (*measured, *captured)}
    rows = [
        KindRow.of(
            name,
            CallTotals.of([u for u in measured if u.kind == name]),
            CallTotals.of([u for u in captured if u.kind == name]),
        )
        for name in sorted(names)
    ]
    return tuple(sorted(rows, key=lambda r: -max(r.measured.time_ns, r.captured.time_ns)))


def _resized(
    measured: Sequence[ExecutedCall], captured: Sequence[ExecutedCall], pairing: Pairing
) -> tuple[tuple[Alone, Alone], ...]:
    """Calls in one place with other sizes, by what both sides call them; the longest first."""
    by_titles: dict[tuple[str, str], list[tuple[ExecutedCall, ExecutedCall]]] = {}
    for i, j in pairing.resized:
        both = measured[i], captured[j]
        by_titles.setdefault((both[0].title, both[1].title), []).append(both)
    found = [
        (_alone([m for m, _ in group])[0], _alone([c for _, c in group])[0])
        for group in by_titles.values()
    ]
    return tuple(sorted(found, key=lambda both: -both[0].totals.time_ns))


def _alone(units: Sequence[ExecutedCall]) -> tuple[Alone, ...]:
    by_title: dict[tuple[str, str], list[ExecutedCall]] = {}
    for unit in units:
        by_title.setdefault((unit.title, unit.kind), []).append(unit)
    found = [Alone(title, kind, CallTotals.of(group)) for (title, kind), group in by_title.items()]
    return tuple(sorted(found, key=lambda a: (-a.totals.time_ns, a.title)))


def of_traces(
    measured: Trace,
    captured: Trace,
    cluster: str | Path | Cluster | None = None,
    *,
    rank: int | None = None,
    **options: Any,
) -> MeasuredComparison:
    """`Trace.compare`: of two traces, on a cluster or that of the measured device."""
    request = EstimateRequest(cluster, **options)
    return compare_measured(measured.workload, captured.workload, request, rank=rank)
