"""What a worker does, whoever has sent it: evaluate the points of a group and say what it has read."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import Protocol, TextIO

from flint.io.inputs import RECORD, ROOT, ReadInput, record_if_asked, recorded
from flint.io.scratch import scratch_folder
from flint.ir.mesh import Mesh
from flint.tools.explore.evaluation.evaluate import Evaluator
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result, Status
from flint.tools.explore.subject import Subject

#: What a point after the first of a group may take: its program is captured then.
SECONDS_OF_A_POINT = 60.0


class PointEvaluator(Protocol):
    """Makes results of points."""

    def evaluate(self, points: Sequence[Point]) -> list[Result]:
        """A result for each point of one program, in their order."""
        ...


class EvaluatorFactory(Protocol):
    """Makes an evaluator in a worker. It is sent there: picklable, hashable, equal to its copies."""

    def __call__(self) -> PointEvaluator: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class EvaluatorOf:
    """Makes the evaluator of a subject."""

    subject: Subject

    def __call__(self) -> PointEvaluator:
        """A new evaluator, which captures and estimates."""
        if self.subject.serves:
            from flint.tools.explore.evaluation.served import ServedEvaluator

            return ServedEvaluator(self.subject)
        return Evaluator(self.subject)


@dataclass(frozen=True, slots=True)
class PointGroup:
    """Points of one program, evaluated one after the other in one process."""

    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a group; `inputs` is what its process has read since it said so last."""

    results: tuple[Result, ...]
    inputs: tuple[ReadInput, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluationWork:
    """How groups are evaluated: the same for all of a study. It is sent to workers."""

    factory: EvaluatorFactory
    root: str = ""  #: a folder whose files are inputs wherever it lies; "": the current one
    limit_seconds: float = 600.0  #: of a group, beside `SECONDS_OF_A_POINT` for each point
    folder: str = ""  #: for what workers write down; "": one of their own
    #: Tells runs apart whose workers are the same: each imports the model anew.
    run: str = ""


def work_of(subject: Subject) -> EvaluationWork:
    """The work of evaluating points of a subject."""
    model = Path(os.path.abspath(subject.model)).parent
    root = next((p for p in (model, *model.parents) if (p / ".git").exists()), model)
    return EvaluationWork(EvaluatorOf(subject), str(root), subject.limit_seconds)


def limit_of(work: EvaluationWork, group: PointGroup) -> float:
    """Seconds after which a group is given up."""
    return work.limit_seconds + SECONDS_OF_A_POINT * (len(group.points) - 1)


def evaluate_group(work: EvaluationWork, group: PointGroup) -> Done:
    """Evaluate a group in this process, which keeps the evaluator for the next one.

    A group that takes longer than its limit ends the process, and leaves a file `late_file` in the
    folder of the work; without one the stacks are in the process's own log.
    """
    with _turn():  # captures change what belongs to the process: one at a time
        record = _record(work.folder, work.root, work.run)
        with _limited(work, group):
            results = _evaluator(work.factory, work.run).evaluate(group.points)
        return Done(tuple(results), record.news())


def late_file(folder: str, group: PointGroup) -> Path:
    """Where a process that gave a group up has left its stacks."""
    return Path(folder) / f"late-{group.points[0].key}"


@contextlib.contextmanager
def _limited(work: EvaluationWork, group: PointGroup) -> Iterator[None]:
    """A watch that Python's own lock cannot keep waiting."""
    if not work.folder:  # of a scheduler's worker: its own log has the stacks
        with _stacks_to_stderr() as file, _ends_late(work, group, file):
            yield
        return
    path = late_file(work.folder, group)
    with path.open("w") as file, _ends_late(work, group, file):
        yield
    path.unlink()


@contextlib.contextmanager
def _ends_late(work: EvaluationWork, group: PointGroup, file: TextIO) -> Iterator[None]:
    faulthandler.dump_traceback_later(limit_of(work, group), exit=True, file=file)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _stacks_to_stderr() -> Iterator[TextIO]:
    """A file of the process's own stderr, or of nothing if that is closed."""
    try:
        own = os.dup(2)
    except OSError:
        own = os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(own, "w") as file:
        yield file


@cache
def _turn() -> threading.RLock:
    return threading.RLock()


@lru_cache(maxsize=1)
def _evaluator(factory: EvaluatorFactory, run: str) -> PointEvaluator:
    return factory()


class _Record:
    """What this process and its children read, written down in a file."""

    def __init__(self, folder: str, root: str) -> None:
        self._kept = contextlib.ExitStack()  # as long as the process lives
        parent = Path(folder) if folder else self._kept.enter_context(scratch_folder())
        self._file, self._size = parent / f"reads-{os.getpid()}", 0
        os.environ[RECORD], os.environ[ROOT] = str(self._file), root or os.getcwd()
        record_if_asked()

    def news(self) -> tuple[ReadInput, ...]:
        """All that was read, if that is more than last time; else nothing."""
        size = self._file.stat().st_size
        if size == self._size:
            return ()
        self._size = size
        return recorded(self._file)


@lru_cache(maxsize=1)
def _record(folder: str, root: str, run: str) -> _Record:
    return _Record(folder, root)


# In which pieces, and by whom, points are evaluated.

#: Points of a group: what a process that is killed loses.
MOST_POINTS = 100


class Executor(Protocol):
    """Evaluates groups somewhere, several at a time."""

    def run(self, groups: Iterable[PointGroup]) -> Iterator[Done]:
        """What became of each group, as they finish. Groups are asked for when there is room.

        A group whose process ends twice becomes results that FAILED.
        """
        ...


def groups_of(points: Iterable[Point], first: int = 0) -> Iterator[PointGroup]:
    """Points of one program that stand together, at most `MOST_POINTS` each.

    The first point of each of the `first` programs at the beginning is a group of its own: something
    can be shown before all points of a program are done.
    """
    programs = groupby(points, key=lambda p: p.program)
    early: list[list[Point]] = []
    for _, of_program in islice(programs, first):
        head, *rest = of_program
        yield PointGroup((head,))
        early.append(rest)
    for rest in early:
        yield from _pieces(rest)
    for _, of_program in programs:
        yield from _pieces(of_program)


def _pieces(points: Iterable[Point]) -> Iterator[PointGroup]:
    waiting = iter(points)
    while piece := tuple(islice(waiting, MOST_POINTS)):
        yield PointGroup(piece)


def failed(group: PointGroup, reason: str) -> Done:
    """Results of a group that no process has finished."""
    return Done(tuple(Result(p, Status.FAILED, devices_of(p), reason) for p in group.points))


def devices_of(point: Point) -> int:
    """Devices of the mesh; 0 where the program's own is taken."""
    return Mesh.parse(point.mesh).size if point.mesh else 0


KILLED_TWICE = "the process that evaluated it was killed, twice"
