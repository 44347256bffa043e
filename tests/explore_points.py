"""Points whose evaluation costs nothing, for tests of studies: workers import this module."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from flint.io.scratch import scratch_folder
from flint.tools.explore.point import PointField, SpaceDimension
from flint.tools.explore.result import Result, Status
from flint.tools.explore.space.space import Space
from flint.tools.explore.study.run import explore_space
from flint.tools.explore.subject import Subject
from flint.tools.explore.workers.work import Done, EvaluationWork

MESHES = ("data=8,model=1", "data=4,model=2", "data=2,model=4", "data=1,model=8")


def space_of(folder, microbatches=range(1, 11), clusters=("h100-dgx", "b200-dgx"), name="model.py"):
    """A space of a model that need not be read: 4 meshes, some microbatches, some clusters."""
    return Space(
        Subject(str(folder / name)),
        (
            SpaceDimension("mesh", PointField.MESH, MESHES, "--devices"),
            SpaceDimension(
                "microbatches", PointField.PIPELINE, tuple(map(str, microbatches)), "--sweep"
            ),
            SpaceDimension("cluster", PointField.CLUSTER, tuple(map(str, clusters)), "-c"),
        ),
        (8,),
        ("data", "model"),
    )


def result_at(point):
    """What `Hashed` says of a point: its time is short for few microbatches on many model shards."""
    microbatches = int(dict(point.pipeline)["microbatches"])
    model = int(point.mesh.rpartition("=")[2])
    if microbatches > 8 * model:
        return Result(point, Status.TOO_LARGE, 8, "too large", memory_bytes=200, capacity_bytes=100)
    time_ns = 1e6 * microbatches / model + len(point.cluster) / 3
    return Result(
        point,
        Status.FITS,
        8,
        step_time_ns=time_ns,
        mfu=1 / time_ns,
        memory_bytes=10 * microbatches,
        capacity_bytes=100_000,
        exposed_ns={"model": time_ns / 7},
    )


@dataclass(frozen=True)
class Hashed:
    """Makes evaluators that take `seconds` for a point and append its key to `log`.

    They read `reads`; the process of one that meets `kills` in a point ends, once if `once`; one that
    meets `stalls` does not come back.
    """

    log: str
    seconds: float = 0.0
    reads: str = ""
    kills: str = ""
    once: bool = False
    stalls: str = ""

    def __call__(self):
        return _Evaluator(self)


@dataclass
class _Evaluator:
    how: Hashed

    def evaluate(self, points):
        if self.how.reads:
            Path(self.how.reads).read_bytes()
        return [self._one(point) for point in points]

    def _one(self, point):
        if self.how.kills and re.search(self.how.kills, repr(point)):
            self._kill()
        with scratch_folder():
            stalls = self.how.stalls and self.how.stalls in repr(point)
            time.sleep(600 if stalls else self.how.seconds)
        with open(self.how.log, "a") as log:
            log.write(f"{point.key} {os.getpid()}\n")
        return result_at(point)

    def _kill(self):
        mark = Path(f"{self.how.log}.killed")
        if not (self.how.once and mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def work(folder, limit_seconds=60.0, **how):
    """Work of such evaluators; what they read lies in `folder`."""
    return EvaluationWork(Hashed(str(folder / "log"), **how), str(folder), limit_seconds)


def rows(path):
    """What a study file says of its points, but for the order in which they finished."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        found = [dict(row) for row in db.execute("SELECT * FROM points ORDER BY key")]
    assert len({row.pop("finished") for row in found}) == len(found)
    return found


def evaluated(folder):
    """Keys of the points that were evaluated, in that order."""
    log = folder / "log"
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def workers(folder):
    """Process ids of those that evaluated."""
    return sorted({int(line.split()[1]) for line in (folder / "log").read_text().splitlines()})


class Here:
    """An executor without processes."""

    def run(self, groups):
        for group in groups:
            yield Done(tuple(map(result_at, group.points)))


def undisturbed_rows(folder):
    """Rows of a study that nothing happened to."""
    explore_space(space_of(folder), study=folder / "here.db", executor=Here())
    return rows(folder / "here.db")


def wait_until(true, seconds=30.0):
    """Wait for what becomes true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
