"""A project against its lock file: what changed of each capture, and which budgets do not hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flint.compare.budgets import Broken, broken
from flint.compare.causes import causes
from flint.compare.difference import Difference, Side, compare, rows_of
from flint.compare.grown import grown
from flint.compare.snapshot import Snapshot
from flint.compare.structure import structure_of
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.project.cache import FOLDER
from flint.project.captures import Captured
from flint.project.config import Capture, Project
from flint.project.lock import Lock
from flint.tracing import Trace


@dataclass(frozen=True, eq=False)
class Verdict:
    """One capture on one of its clusters ("" without any), against what was accepted.

    It fails with a budget that does not hold; without budgets, with any difference.
    """

    name: str
    cluster: str
    difference: Difference
    broken: tuple[Broken, ...]
    has_budgets: bool

    @property
    def fails(self) -> bool:
        """Whether CI should."""
        return bool(self.broken) or not (self.has_budgets or self.difference.is_equal)

    @property
    def title(self) -> str:
        """The capture, and its cluster."""
        return f"{self.name} on {self.cluster}" if self.cluster else self.name


def verify(
    project: Project,
    lock: Lock,
    captured: Mapping[str, Captured],
    captures: Mapping[str, Capture],
) -> list[Verdict]:
    """Compare captures with the lock. Raises FlintError FL723 for one that is not in it, FL721."""
    missing = [name for name in captured if name not in lock.captures]
    if missing:
        raise FlintError(
            "FL723",
            f"{project.lock_path.name} has no capture '{missing[0]}'",
            place=str(project.lock_path),
            help="flint run adds it",
        )
    return [
        verdict
        for name, found in captured.items()
        for verdict in _verdicts(project, lock.captures[name], found, captures[name])
    ]


def _verdicts(
    project: Project, accepted: Snapshot, found: Captured, capture: Capture
) -> Iterator[Verdict]:
    budgets = capture.parsed_budgets()
    for cluster in capture.clusters or ("",):
        before, after = (_on(s, cluster) for s in (accepted, found.entry.snapshot))
        if causes(before, after).found:
            difference = _difference(project, before, after, found, capture, cluster)
        else:
            difference = compare(Side(before), Side(after))
        told = broken(difference, budgets)
        yield Verdict(found.name, cluster, difference, tuple(told), bool(budgets))


def _on(snapshot: Snapshot, cluster: str) -> Snapshot:
    """A snapshot with the estimate on one cluster alone."""
    kept = {name: e for name, e in snapshot.estimates.items() if name == cluster}
    return replace(snapshot, estimates=kept)


def _difference(
    project: Project,
    before: Snapshot,
    after: Snapshot,
    found: Captured,
    capture: Capture,
    cluster: str,
) -> Difference:
    """With the kernels that changed if the accepted workload is at hand, else with lines that grew."""
    now = _side(after, Workload.load(found.entry.workload), capture, cluster)
    old = accepted_workload(project, found.name, before)
    if old is not None:
        return compare(_side(before, old, capture, cluster), now)
    plain = compare(Side(before), Side(after))
    if before.program is None or after.program is None:
        return plain
    lines = grown(before.program, after.program, list(rows_of(now)))
    return replace(plain, changes=tuple(lines))


def _side(snapshot: Snapshot, workload: Workload, capture: Capture, cluster: str) -> Side:
    if not cluster:
        return Side(snapshot, workload)
    estimate = Trace(workload).estimate(
        cluster,
        policy=capture.overlap,
        mapping=capture.map,
        unpriced_is_zero=capture.unpriced_is_zero,
    )
    return Side(snapshot, workload, estimate)


# the accepted workloads, which are kept beside the cache ----------------------------------------


def accepted_path(project: Project, name: str) -> Path:
    """Where the workload of an accepted capture is kept."""
    return project.root / FOLDER / "accepted" / f"{name}.flint"


def accepted_workload(project: Project, name: str, accepted: Snapshot) -> Workload | None:
    """The workload that the lock was made of, if it is still here."""
    path = accepted_path(project, name)
    if not path.is_file() or accepted.program is None:
        return None
    try:
        found = Workload.load(path)
    except FlintError:
        return None  # another version wrote it: the lock itself is what counts
    return found if structure_of(found) == accepted.program.structure else None


def accept(project: Project, lock: Lock, captured: Iterable[Captured]) -> bool:
    """Write captures into the lock. Returns whether the file changed. Raises FlintError FL502."""
    from flint.io.files import write_atomically

    found = dict(lock.captures)
    for one in captured:
        found[one.name] = one.entry.snapshot
        path = accepted_path(project, one.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, one.entry.workload.read_bytes())
    return Lock(found).save(project.lock_path)
