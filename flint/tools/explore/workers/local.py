"""Points evaluated by processes of this machine.

Processes are started anew (`spawn`), in groups of their own, and end when their parent has ended,
however it ended: see docs/decisions/0027-ends-of-processes.md.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Self

from flint.errors import FlintError
from flint.io.processes import end_with, family, kill_group, processors
from flint.io.scratch import remove_leftovers, scratch_folder
from flint.tools.explore.workers.work import (
    KILLED_TWICE,
    Done,
    EvaluationWork,
    PointGroup,
    evaluate_group,
    failed,
    late_file,
    limit_of,
)

#: How often a group is tried alone before it is given up: what killed it may have been meant for others.
_TRIES_ALONE = 2


class LocalExecutor:
    """Evaluates groups in processes of this machine: as many as it has processors, or `jobs`.

    Used in a `with` block, whose end ends the processes. What the model prints is not shown unless
    it is `verbose`.
    """

    def __init__(self, work: EvaluationWork, jobs: int = 0, verbose: bool = False) -> None:
        self.jobs = jobs or processors()
        self._work, self._verbose = work, verbose
        self._open = contextlib.ExitStack()
        self._pool: ProcessPoolExecutor | None = None
        self._pids: set[int] = set()

    def __enter__(self) -> Self:
        folder = self._open.enter_context(scratch_folder())
        self._work = replace(self._work, folder=str(folder))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(kill=kind is not None)
        self._open.close()

    def run(self, groups: Iterable[PointGroup]) -> Iterator[Done]:
        """What became of each group, as they finish.

        After a process was killed, the groups under way are tried again, one at a time. Raises
        FlintError FL871 where no process can start.
        """
        waiting = iter(groups)
        running: dict[Future[Done], PointGroup] = {}
        try:
            while True:
                for group in islice(waiting, 2 * self.jobs - len(running)):
                    running[self._submit(group)] = group
                if not running:
                    return
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                yield from self._ended(
                    {future: running.pop(future) for future in finished}, running
                )
        finally:
            if running:  # nobody wants the rest
                self._end(kill=True)

    def _ended(
        self, finished: dict[Future[Done], PointGroup], running: dict[Future[Done], PointGroup]
    ) -> Iterator[Done]:
        suspects: list[PointGroup] = []
        for future, group in finished.items():
            try:
                yield future.result()
            except BrokenProcessPool:
                suspects.append(group)
        if suspects:
            suspects += running.values()
            running.clear()
            self._end(kill=True)
            for group in suspects:
                yield self._alone(group)

    def _alone(self, group: PointGroup) -> Done:
        late = late_file(self._work.folder, group)
        for _ in range(_TRIES_ALONE):
            if late.exists() and late.stat().st_size:
                return failed(
                    group, f"it did not finish in {limit_of(self._work, group):g} seconds"
                )
            try:
                return self._submit(group).result()
            except BrokenProcessPool:
                self._end(kill=True)
        if not (Path(self._work.folder) / _BEGAN).exists():
            raise _cannot_start()
        return failed(group, KILLED_TWICE)

    def _submit(self, group: PointGroup) -> Future[Done]:
        self._pool = self._pool or self._started()
        try:
            future = self._pool.submit(evaluate_group, self._work, group)
        except BrokenProcessPool as error:
            future = Future()
            future.set_exception(error)
        for child in multiprocessing.active_children():
            if child.pid is not None and child.pid not in self._others:
                self._pids.add(child.pid)
                family().add(child.pid)
        return future

    def _started(self) -> ProcessPoolExecutor:
        self._others = {child.pid for child in multiprocessing.active_children()}
        return ProcessPoolExecutor(
            self.jobs,
            multiprocessing.get_context("spawn"),
            _begin,
            (os.getpid(), self._work.folder, self._verbose),
        )

    def _end(self, kill: bool) -> None:
        """End the processes: at once, or after what they do now."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if kill:
            for pid in self._pids:
                kill_group(pid)
        pool.shutdown(wait=True, cancel_futures=True)
        if kill:
            remove_leftovers()  # scratch folders of theirs
        for pid in self._pids:
            family().forget(pid)
        self._pids.clear()


_BEGAN = "began"


def _begin(parent: int, folder: str, verbose: bool) -> None:
    """First thing in a process of the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    end_with(parent)
    if not verbose:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)
    (Path(folder) / _BEGAN).touch()


def _cannot_start() -> FlintError:
    return FlintError(
        "FL871",
        "processes that evaluate points end before they begin",
        help="put the call that explores below `if __name__ == '__main__':`, because each "
        "process imports the script; otherwise give more memory, or use fewer processes "
        "with -j",
    )
