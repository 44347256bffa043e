"""A study from its space to its end: what is known is taken from the file, the rest is evaluated."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from flint.errors import FlintError
from flint.io.inputs import ReadInput
from flint.io.locks import endings, locked
from flint.io.records import record
from flint.text import plural
from flint.tools.explore.answers.objectives import names_of_result
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result, Status
from flint.tools.explore.space.space import Space
from flint.tools.explore.study.fingerprint import (
    Fingerprints,
    files_of,
    identity_of,
    shared_by_points,
    versions,
)
from flint.tools.explore.study.generations import add_inputs, generation_of
from flint.tools.explore.study.search import Goal, SearchKind, search
from flint.tools.explore.study.stored import read_stored
from flint.tools.explore.study.study import Study, in_order
from flint.tools.explore.study.study_format import (
    POINT_COLUMNS,
    connect_new,
    connect_to_write,
    transaction,
)
from flint.tools.explore.subject import Subject
from flint.tools.explore.workers.local import LocalExecutor
from flint.tools.explore.workers.work import Executor, groups_of, work_of

# The file of a study while it runs: results go into it as they finish. One process writes to it.

_INSERT = (
    f"INSERT OR REPLACE INTO points ({', '.join(POINT_COLUMNS)}) "
    f"VALUES ({', '.join('?' * len(POINT_COLUMNS))})"
)


class StudyFile:
    """What is known of the points of a space, and what becomes known. Made by `open_study`.

    `notes` says what of before does not hold any more, and why.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None, space: Space) -> None:
        self.notes: tuple[str, ...] = ()
        self._connection, self._path = connection, path
        self._fingerprints = Fingerprints()
        self._apart: set[str] = set()
        self._begin(space)

    def found(self) -> dict[str, Result]:
        """Results that still hold, by the keys of their points.

        Points that FAILED are not among them: they are tried again.
        """
        rows = self._connection.execute(
            "SELECT key, result FROM points WHERE holds=1 AND status != ?", (Status.FAILED.value,)
        )
        return {key: Result.from_json(json.loads(text)) for key, text in rows}

    def expect(self, points: Iterable[Point]) -> None:
        """Look at the files that points name before they are evaluated: results are of those."""
        for point in points:
            with contextlib.suppress(FlintError):  # the point is refused for it
                self._fingerprints.of(point)

    def add(self, results: Iterable[Result], inputs: Iterable[ReadInput] = ()) -> None:
        """Write what became of points, and what was read for them: all of it or nothing.

        Raises FlintError FL502 where the file cannot be written, FL872 for an input that changed.
        """
        found = list(results)
        self._apart.update(path for r in found for path in files_of(r.point))
        with self._writing(), transaction(self._connection):
            read = [i for i in inputs if i.path not in self._apart]
            add_inputs(self._connection, self._generation, read)
            for result in found:
                self._connection.execute(_INSERT, self._row(result))

    def close(self) -> None:
        """Leave one plain file."""
        with contextlib.suppress(sqlite3.Error):  # a reader has it open: its log stays beside it
            if self._connection.in_transaction:  # the process is ended
                self._connection.execute("ROLLBACK")
            if self._path is not None:
                self._connection.execute("PRAGMA journal_mode=DELETE")
        self._connection.close()

    def _begin(self, space: Space) -> None:
        with self._writing(), transaction(self._connection):
            shared = shared_by_points(space.subject)
            self._generation, reasons = generation_of(self._connection, shared)
            self.notes = self._mark(reasons)
            self._finished = self._last()
            about = {
                "subject": json.dumps(asdict(space.subject)),
                "target": _target(space.subject.model),
                "space": json.dumps(space.to_json()),
                "versions": json.dumps(versions()),
                "notes": json.dumps(self.notes),
            }
            for item in about.items():
                self._connection.execute("INSERT OR REPLACE INTO study VALUES (?, ?)", item)

    def _mark(self, reasons: dict[int, str]) -> tuple[str, ...]:
        """Mark rows that hold, and say of the others why they do not."""
        lost: Counter[str] = Counter()
        rows = self._connection.execute("SELECT key, generation, fingerprint, point FROM points")
        holds: list[tuple[bool, str]] = []
        for key, generation, fingerprint, text in rows.fetchall():
            point = record(Point, text)
            reason = reasons.get(generation) or self._why_not(point, fingerprint)
            holds.append((not reason, key))
            lost[reason] += bool(reason)
        self._connection.executemany("UPDATE points SET holds=? WHERE key=?", holds)
        return tuple(
            f"{plural(count, 'point')} from before no longer hold{'s' * (count == 1)}: {reason}"
            for reason, count in sorted(lost.items())
            if count
        )

    def _why_not(self, point: Point, fingerprint: str) -> str:
        try:
            same = self._fingerprints.of(point) == fingerprint
        except FlintError as error:
            return error.message
        return "" if same else f"{point.cluster} or another file that they name changed"

    def _last(self) -> int:
        row = self._connection.execute("SELECT MAX(finished) FROM points").fetchone()
        return int(row[0] or 0)

    def _row(self, r: Result) -> tuple[object, ...]:
        self._finished += 1
        try:
            fingerprint = self._fingerprints.of(r.point)
        except FlintError:
            fingerprint = ""  # that of a point that is refused for it; it is asked again
        of_file = (r.point.key, self._generation, fingerprint, 1, self._finished)
        times = (r.step_time_ns, r.low_ns, r.high_ns, r.mfu)
        memory = (r.memory_bytes, r.capacity_bytes, r.is_bound)
        point = json.dumps(r.point.to_json(), sort_keys=True)
        whole = json.dumps(r.to_json(), sort_keys=True)
        return *of_file, point, r.status, r.code, r.devices, *times, r.tokens, *memory, whole

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _cannot_write(self._path, str(error)) from error


@contextlib.contextmanager
def open_study(path: Path | None, space: Space) -> Iterator[StudyFile]:
    """The study of a space in a file, which is made if it is not there; without a path in memory.

    Raises FlintError FL864 for a file that is not a study, FL865 for a study of something else, FL866
    for one that another process writes to, FL502 where it cannot be written.
    """
    with contextlib.ExitStack() as open_:
        if path is None:
            connection = connect_new()
        else:
            open_.enter_context(_alone(path))
            _require_same(path, space.subject)
            try:
                connection = connect_to_write(path)
            except sqlite3.Error as error:
                raise _cannot_write(path, str(error)) from error
        open_.callback(connection.close)
        study = StudyFile(connection, path, space)
        open_.enter_context(endings().undoing(study.close))
        yield study


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with contextlib.ExitStack() as open_:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            open_.enter_context(locked(path.with_name(f".{path.name}.flint-lock"), 0.0))
        except OSError as error:
            raise _cannot_write(path, error.strerror or str(error)) from error
        except FlintError as error:
            raise FlintError(
                "FL866",
                f"another process writes to {path}",
                help="wait until it ends, or choose another file for --study",
            ) from error
        yield


def _require_same(path: Path, subject: Subject) -> None:
    """Raise FlintError FL865 if a file is there and is a study of something else."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    about = read_stored(path).about
    if about is None:
        return  # its first process was killed before it said what it is of
    then, now = identity_of(about.subject), identity_of(subject)
    if about.target == _target(subject.model):
        now["model"] = then["model"]
    different = [name for name in now if then[name] != now[name]]
    if different:
        said = ", ".join(
            f"{name} {_said(then[name])} instead of {_said(now[name])}" for name in different
        )
        raise FlintError(
            "FL865",
            f"{path} is a study of something else: it has {said}",
            help="choose another file for --study, or the model and options of that study",
        )


def _said(value: object) -> str:
    if isinstance(value, list | tuple):
        pairs = ("=".join(v) if isinstance(v, list | tuple) else str(v) for v in value)
        return f"'{' '.join(pairs)}'"
    return f"'{value or ''}'"


def _target(model: str) -> str:
    """The model with the whole path of its file."""
    return os.path.abspath(model)


def _cannot_write(path: Path | None, why: str) -> FlintError:
    return FlintError(
        "FL502",
        f"cannot write {path}: {why}",
        help="free some space or choose another place; finished points are in the file",
    )


#: Programs whose first point is evaluated before the others.
_EARLY = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a study is: `done` points of `total`, `reused` of them from before."""

    done: int
    total: int
    reused: int
    latest: tuple[Result, ...]  #: what has just become known


Listener: TypeAlias = Callable[[Progress], None]


def explore_space(
    space: Space,
    *,
    study: Path | None = None,
    executor: Executor | None = None,
    budget: int | None = None,
    objectives: Sequence[Goal] = (),
    kind: SearchKind | None = None,
    seed: int = 0,
    jobs: int = 0,
    progress: Listener | None = None,
) -> Study:
    """Evaluate the points of a space; those that a study file has are not evaluated again.

    All points, or where there are more than `budget` those that a search for `objectives` finds
    (`kind`, `seed`: see `search`); what the limits of the space forbid is told as infeasible. Results are in `study`, if that is given, as soon as they are
    there. Without an `executor`, `jobs` processes of this machine evaluate.

    Raises FlintError as `open_study` does, FL862 for an empty space, one that is too large without a
    budget, and a search that finds nothing that conditions allow, FL867 without what a search
    or an executor needs, FL871, FL872.
    """
    space.require_points()
    if budget is None:
        space.require_few()
    with contextlib.ExitStack() as open_:
        file = open_.enter_context(open_study(study, space))
        if executor is None:
            executor = open_.enter_context(LocalExecutor(work_of(space.subject), jobs))
        total = space.count() if budget is not None else 0
        known = _Known(file, executor, progress)
        if budget is None or total <= budget:
            found = known.all_of(space.points())
        else:
            known.total = budget
            found = search(
                space, known.results, budget, objectives, kind=kind, seed=seed, holds=_within(space)
            )
    return Study(
        space.subject,
        space.to_json(),
        in_order(found),
        versions(),
        (*file.notes, *_ended_early(len(found), total, budget)),
        known.reused,
        max(0, total - len(found)),
    )


def _ended_early(found: int, total: int, budget: int | None) -> tuple[str, ...]:
    """What a search says that ended before its budget. Raises FlintError FL862 if it found nothing."""
    if budget is None or total <= budget or found >= budget:
        return ()
    if not found:
        raise FlintError(
            "FL862",
            f"the search found no allowed point among {total:,} combinations",
            help="give the wanted values in --mesh and --sweep instead of forbidding the others",
        )
    return (
        f"the search ended before its budget of {budget:,}, because it found no new point for long",
    )


def _within(space: Space) -> Callable[[Result], bool] | None:
    """Whether a result meets the space's limits; None where there are none."""
    if not space.limits:
        return None

    def holds(result: Result) -> bool:
        found = space.scope.results(names_of_result(result))
        names = {**space.names(result.point), **found}
        return all(n in names for c in space.limits for n in c.names) and all(
            c.holds(names) for c in space.limits
        )

    return holds


class _Known:
    """Results from the file, or else from the executor."""

    def __init__(self, file: StudyFile, executor: Executor, progress: Listener | None) -> None:
        self.total, self.reused = 0, 0
        self._file, self._executor, self._progress = file, executor, progress
        self._before = file.found()
        self._now: dict[str, Result] = {}

    def all_of(self, points: Iterable[Point]) -> list[Result]:
        asked = list(points)
        self.total = len(asked)
        return self.results(asked)

    def results(self, points: Sequence[Point]) -> list[Result]:
        keys = [p.key for p in points]
        again = [
            self._before[k] for k in dict.fromkeys(keys) if k in self._before and k not in self._now
        ]
        self.reused += len(again)
        self._take(again)
        missing = {k: p for k, p in zip(keys, points, strict=True) if k not in self._now}
        self._file.expect(missing.values())
        for done in self._executor.run(groups_of(missing.values(), _EARLY)):
            self._file.add(done.results, done.inputs)
            self._take(done.results)
        return [self._now[key] for key in keys]

    def _take(self, results: Sequence[Result]) -> None:
        self._now.update((r.point.key, r) for r in results)
        if self._progress is not None and results:
            self._progress(Progress(len(self._now), self.total, self.reused, tuple(results)))
