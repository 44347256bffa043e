"""A project against its lock file: what changed of each capture, and which budgets do not hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from flint.backends.cost.estimate import estimate
from flint.errors import FlintError
from flint.io.bounded import is_file
from flint.io.files import write_atomically
from flint.io.locks import locked
from flint.ir.op_class import OpClass
from flint.ir.program import Kind
from flint.ir.workload import Workload
from flint.tools.change.diff.budgets import Broken, broken
from flint.tools.change.diff.causes import causes
from flint.tools.change.diff.difference import Difference, Side, compare, rows_of
from flint.tools.change.diff.match import Action, Change, weight
from flint.tools.change.diff.rows import ClassRows, Cost
from flint.tools.change.diff.snapshot import ProgramFacts, Snapshot, family, phase_name
from flint.tools.change.diff.structure import structure_of
from flint.tools.change.project.cache import FOLDER
from flint.tools.change.project.captures import Captured
from flint.tools.change.project.config import Capture, Project
from flint.tools.change.project.lock import Lock, load_lock

# Where in the source something grew, if only totals of before are known (a lock file).
#
# Kernels cannot be matched then. What is known: of a kind of collective over some axes, or a class of
# operations in a phase, there is more than before; and these are the lines that have it now.

#: Kind, axes and phase of what is counted.
_Key = tuple[str, str, str]


def grown(before: ProgramFacts, after: ProgramFacts, classes: list[ClassRows]) -> list[Change]:
    """The lines of kinds that grew, largest first. `before` of each is its part of the old total."""
    old, new = _totals(before), _totals(after)
    found: dict[tuple[object, ...], Change] = {}
    for side in classes:
        for key, change in _of(side):
            if new.get(key, 0.0) > old.get(key, 0.0):
                known = found.get((*key, change.scope, change.source))
                found[*key, change.scope, change.source] = _sum(known, change)
    scaled = [_scaled(c, old.get((c.kind, c.over, c.phase), 0.0), new) for c in found.values()]
    return sorted(scaled, key=weight)


def _sum(known: Change | None, one: Change) -> Change:
    if known is None:
        return one
    return replace(known, kernels=known.kernels + one.kernels, after=known.after + one.after)


def _scaled(c: Change, old: float, new: dict[_Key, float]) -> Change:
    """The same with its share of what there was before."""
    share = old / new[c.kind, c.over, c.phase]
    cost = c.after
    was = Cost(*(getattr(cost, name) * share for name in Cost.__dataclass_fields__))
    return replace(c, action=Action.CHANGED if old else Action.ADDED, before=was)


def _totals(facts: ProgramFacts) -> dict[_Key, float]:
    """Bytes of collectives and FLOPs (with bytes, which break ties) of operations."""
    found: dict[_Key, float] = {}
    for c in facts.collectives:
        if c.kind == "recv":
            continue  # the same bytes as the sends
        key = ("message" if c.kind == "send" else c.kind, c.over, c.phase)
        found[key] = found.get(key, 0.0) + c.executions * c.comm_bytes
    for o in facts.operations:
        key = (o.op, "", o.phase)
        found[key] = found.get(key, 0.0) + (o.flops or o.bytes)
    return found


def _of(side: ClassRows) -> Iterator[tuple[_Key, Change]]:
    p = side.program
    for row in side.rows:
        if p.kind[row] == Kind.RECV:
            continue
        communicates = p.kind[row] > Kind.COMPUTE
        op, phase = OpClass(int(p.op[row])).name.lower(), phase_name(int(p.phase[row]))
        kind, over = side.labels[row][:2] if communicates else (op, "")
        scope, source = p.strings[p.scope[row]], p.strings[p.location[row]]
        reason = p.strings[p.cause[row]] if communicates else ""
        change = Change(
            None,
            Action.CHANGED,
            kind,
            over,
            phase,
            family(scope),
            source,
            source,
            reason,
            "",
            1,
            Cost(),
            side.cost(row),
        )
        yield (kind, over, phase), change


@dataclass(frozen=True, eq=False)
class Verdict:
    """One capture on one of its clusters ("" without any), against what was accepted.

    It fails with a budget that does not hold; without budgets, with any difference. `versions` are
    those (before, now) of what both were made with, where they are not the same.
    """

    name: str
    cluster: str
    difference: Difference
    broken: tuple[Broken, ...]
    has_budgets: bool
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def fails(self) -> bool:
        """Whether CI should."""
        return bool(self.broken) or not (self.has_budgets or self.difference.is_equal)

    @property
    def note(self) -> str:
        """What has to be said beside the difference; "" for nothing."""
        if self.difference.is_equal:
            return ""
        said = ["it has no budgets: any change fails"] * (self.fails and not self.broken)
        moved = ", ".join(f"{n} {old} -> {new}" for n, (old, new) in self.versions.items())
        said += [f"flint.lock was made with other versions: {moved}"] * bool(moved)
        return "; ".join(said)

    @property
    def title(self) -> str:
        """The capture, and its cluster."""
        return f"{self.name} on {self.cluster}" if self.cluster else self.name


def verify(
    project: Project, lock: Lock, captured: Mapping[str, Captured], captures: Mapping[str, Capture]
) -> list[Verdict]:
    """Compare captures with the lock.

    Raises FlintError FL723 for a capture that is not in it, or not on one of its clusters, FL721.
    """
    for name in captured:
        require_accepted(project, lock, name, captures[name].clusters)
    return [
        verdict
        for name, found in captured.items()
        for verdict in _verdicts(project, lock, found, captures[name])
    ]


def require_accepted(project: Project, lock: Lock, name: str, clusters: Iterable[str]) -> None:
    """Raise FlintError FL723 for what the lock says nothing about."""
    accepted = lock.captures.get(name)
    what, help_ = f"capture '{name}'", "flint run adds it"
    if accepted is not None:
        lacks = [c for c in clusters if c not in accepted.estimates]
        if not lacks:
            return
        what, help_ = f"estimate of '{name}' on {lacks[0]}", f"flint run --update {name} adds it"
    path = project.lock_path
    raise FlintError("FL723", f"{path.name} has no {what}", place=str(path), help=help_)


def _verdicts(project: Project, lock: Lock, found: Captured, capture: Capture) -> Iterator[Verdict]:
    accepted, budgets = lock.captures[found.name], capture.parsed_budgets()
    old, new = lock.made_with.get(found.name, {}), found.entry.made_with
    versions = {n: (old[n], new[n]) for n in new if old.get(n, new[n]) != new[n]}
    if not causes(accepted, found.entry.snapshot).found:
        keep_accepted(project, found)
    for cluster in capture.clusters or ("",):
        before, after = (_on(s, cluster) for s in (accepted, found.entry.snapshot))
        if causes(before, after).found:
            difference = _difference(project, before, after, found, capture, cluster)
        else:
            difference = compare(Side(before), Side(after))
        told = broken(difference, budgets)
        yield Verdict(found.name, cluster, difference, tuple(told), bool(budgets), versions)


def _on(snapshot: Snapshot, cluster: str) -> Snapshot:
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
    now = _side(project, after, Workload.load(found.entry.workload), capture, cluster)
    old = accepted_workload(project, found.name, before)
    if old is not None:
        return compare(_side(project, before, old, capture, cluster), now)
    plain = compare(Side(before), Side(after))
    if before.program is None or after.program is None:
        return plain
    lines = grown(before.program, after.program, list(rows_of(now)))
    return replace(plain, changes=tuple(lines))


def _side(
    project: Project, snapshot: Snapshot, workload: Workload, capture: Capture, cluster: str
) -> Side:
    if not cluster:
        return Side(snapshot, workload)
    return Side(snapshot, workload, estimate(workload, project.estimate_request(capture, cluster)))


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


def keep_accepted(project: Project, captured: Captured) -> None:
    """Keep the workload of a capture that is as the lock says, for later comparisons."""
    path, data = accepted_path(project, captured.name), captured.entry.workload.read_bytes()
    if not is_file(path) or path.read_bytes() != data:
        write_atomically(path, data)


def accept(
    project: Project, lock: Lock, captured: Iterable[Captured], *, drop: Iterable[str] = ()
) -> bool:
    """Write captures into the lock, and leave out those of `drop`. Returns whether it changed.

    An entry that is equal keeps the versions that it was made with. Entries that another process
    wrote since `lock` was read stay. Raises FlintError FL502.
    """
    gone = set(drop)
    (project.root / FOLDER).mkdir(exist_ok=True)
    with locked(project.root / FOLDER / "lock"):
        with contextlib.suppress(FlintError):  # of one that cannot be read, `lock` is what is known
            lock = load_lock(project.lock_path) or lock
        found = {n: s for n, s in lock.captures.items() if n not in gone}
        made_with = {n: v for n, v in lock.made_with.items() if n not in gone}
        for one in captured:
            if found.get(one.name) != one.entry.snapshot:
                found[one.name] = one.entry.snapshot
                made_with[one.name] = one.entry.made_with
            keep_accepted(project, one)
        return Lock(found, made_with).save(project.lock_path)
