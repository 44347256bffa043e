"""What differs between two workloads or estimates: `compare`, and the result that backends show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.io.documents import as_object
from flint.ir.workload import Workload
from flint.passes.profiles import nodes_of
from flint.tools.change.diff.cause import GIVEN, CauseKind, Causes
from flint.tools.change.diff.causes import causes
from flint.tools.change.diff.difference_numbers import DifferenceNumbers
from flint.tools.change.diff.match import Matched, match
from flint.tools.change.diff.rows import ClassRows
from flint.tools.change.diff.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from flint.backends.cost.estimate import Estimate
    from flint.cluster.models import Cluster
    from flint.tools.change.diff.budgets import Broken
    from flint.tracing import Trace


@dataclass(frozen=True, eq=False)
class Side:
    """One of two captures: what is kept of it and, if it was read whole, its programs and estimate."""

    snapshot: Snapshot
    workload: Workload | None = None
    estimate: Estimate | None = None

    @classmethod
    def of(cls, workload: Workload, estimate: Estimate | None = None) -> Side:
        """A workload, estimated on one cluster or on none."""
        estimates = {} if estimate is None else {estimate.cluster.name: estimate}
        return cls(snapshot(workload, estimates), workload, estimate)


class Difference(DifferenceNumbers):
    """What differs, and how to show it."""

    def broken(self, budgets: str) -> list[Broken]:
        """Budgets that do not hold, of `step-time=+2%,memory=+1GiB`: see `flint diff --fail-over`.

        Raises FlintError FL720 for what is not a budget, FL721 for one that cannot be told.
        """
        from flint.tools.change.diff.budgets import broken, parse_budgets

        return broken(self, parse_budgets(budgets))

    def to_text(self, *, verbose: bool = False) -> str:
        """As `flint diff` prints it; `verbose` shows all changes and numbers."""
        from flint.tools.change.diff.show import text

        return text(self, verbose=verbose)

    def to_markdown(self) -> str:
        """A comment for a pull request, below 60 lines."""
        from flint.tools.change.diff.show import markdown

        return markdown(self)

    def to_json(self) -> dict[str, Any]:
        """As `flint diff --json`: exact numbers."""
        from flint.tools.change.diff.document import document

        return as_object(document(self))

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        from flint.tools.change.diff.show import html

        return html(self)


def compare(before: Side, after: Side) -> Difference:
    """Compare two captures. Causes that users set come first, then others by what they cost."""
    found = causes(before.snapshot, after.snapshot)
    matched = _matched(before, after, found)
    difference = Difference(before.snapshot, after.snapshot, found.found, found.renamed)
    if matched is not None:
        difference = replace(
            difference,
            changes=matched.changes,
            same=matched.same,
            moved=matched.moved,
            shifted_ns=matched.shifted_ns,
            has_kernels=True,
        )
    ordered = sorted(
        found.found, key=lambda c: (c.kind not in GIVEN, -_cost_of(difference, c.kind))
    )
    return replace(difference, causes=tuple(ordered))


def _cost_of(difference: Difference, kind: CauseKind) -> float:
    """How much a cause matters: its part of the step time, or the largest part of any total."""
    cost = difference.costs.get(kind)
    if cost is None:
        return 0.0
    estimated = difference.estimated
    if estimated is not None and estimated[0].step_time_ns:
        return abs(cost.path_ns) / estimated[0].step_time_ns
    a = difference.before.program
    assert a is not None  # it has kernels
    parts = ((cost.flops, a.flops), (cost.bytes, a.bytes), (cost.comm_bytes, a.comm_bytes))
    return max(abs(part) / max(float(whole), 1.0) for part, whole in parts)


def _matched(before: Side, after: Side, found: Causes) -> Matched | None:
    """The kernels of both sides, matched; None if one was not read whole."""
    if before.workload is None or after.workload is None:
        return None
    kinds = [c.kind for c in found.found]
    return match(_in_pairs(before, after), kinds, dict(found.renamed))


def _in_pairs(before: Side, after: Side) -> Iterator[tuple[ClassRows | None, ClassRows | None]]:
    """The rank classes of both sides: by name where all have one, else by place."""
    a, b = list(_classes(before)), list(_classes(after))
    if {name for name, _ in a} == {name for name, _ in b}:
        a, b = sorted(a, key=lambda c: c[0]), sorted(b, key=lambda c: c[0])
    return zip_longest((rows for _, rows in a), (rows for _, rows in b))


def rows_of(side: Side) -> Iterator[ClassRows]:
    """The rank classes of a side that was read whole."""
    return (rows for _, rows in _classes(side))


def _classes(side: Side) -> Iterator[tuple[str, ClassRows]]:
    """Each rank class by name, with its times if there is an estimate."""
    workload = side.workload
    assert workload is not None
    sizes = np.bincount(workload.class_of_ranks(), minlength=len(workload.classes)).tolist()
    kernels = nodes_of(workload, "kernel") if side.estimate is None else None
    paths = {} if side.estimate is None else _path_ns(side.estimate)
    for number, (c, ranks) in enumerate(zip(workload.classes, sizes, strict=True)):
        share = ranks / workload.mesh.size
        if side.estimate is None:
            assert kernels is not None
            program = kernels.programs[c.program]
            nothing = np.zeros(len(program))
            yield c.name, ClassRows(program, share, nothing, nothing)
            continue
        track = side.estimate.timeline.classes[number]
        program = track.work.program
        took = track.end_ns - track.start_ns
        busy = np.bincount(track.work.nodes.row, took, minlength=len(program)).astype(np.float64)
        path = np.zeros(len(program))
        for row, ns in paths.get(number, {}).items():
            path[row] += ns
        yield c.name, ClassRows(program, share, busy, path)


def _path_ns(estimate: Estimate) -> dict[int, dict[int, float]]:
    """How much of the step time each row of each class is, by the critical path."""
    from flint.backends.cost.simulate.critical_path import path

    found: dict[int, dict[int, float]] = {}
    for piece in path(estimate.timeline, estimate.policy):
        row = int(estimate.timeline.classes[piece.rank_class].work.nodes.row[piece.node])
        rows = found.setdefault(piece.rank_class, {})
        rows[row] = rows.get(row, 0.0) + piece.end_ns - piece.start_ns
    return found


def of_traces(
    before: Trace, after: Trace, cluster: str | Path | Cluster | None = None, **options: Any
) -> Difference:
    """`Trace.diff`: of two traces, on a cluster where one is given; `options` are of `estimate`."""
    estimates = (
        None if cluster is None else t.estimate(cluster, **options) for t in (before, after)
    )
    sides = (Side.of(t.workload, e) for t, e in zip((before, after), estimates, strict=True))
    return compare(*sides)
