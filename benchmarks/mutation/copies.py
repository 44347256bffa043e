"""Copies of a checkout that mutants live in, and the processes that work there."""

from __future__ import annotations

import compileall
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Self, TypeVar

from benchmarks.mutation.worker import Outcome, Task

_T = TypeVar("_T")
_LEFT_OUT = ("*.pyc", "build", "dist", "out", "*.egg-info")


def copy_checkout(root: Path, place: Path) -> None:
    """Copy what the tests may read: no hidden folders but `.ci`, links as links."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        hidden = {
            name for name in names if name.startswith(".") and name not in (".ci", ".editable")
        }
        return hidden | shutil.ignore_patterns(*_LEFT_OUT)(folder, names)

    shutil.copytree(root, place, symlinks=True, ignore=left_out)


def compile_with_hashes(folder: Path) -> None:
    """Compile modules so that Python asks for what a source says, and not for its time.

    A mutant is written and taken back within the resolution of a clock.
    """
    mode = PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(folder, quiet=2, invalidation_mode=mode)


class Process:
    """A worker in a copy of its own. RuntimeError when it dies."""

    def __init__(self, copy: Path, folder: Path) -> None:
        folder.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.mutation.worker", str(folder)],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the one that prints the report
        )

    def run(self, task: Task) -> Outcome:
        """Hand a task over and wait."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(dataclasses.asdict(task)), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a worker ended with status {self._process.wait()}")
        return Outcome(**json.loads(answer))

    def stop(self) -> None:
        """End it in the middle of its task, with what it started.

        The end of its input is for one that is about to wait for a task: a signal would come after
        Python looked for signals, and before it waits.
        """
        self._process.send_signal(signal.SIGTERM)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._process.wait()


def share_out(
    items: Iterable[_T],
    processes: Sequence[Process],
    work: Callable[[Process, _T], None],
    end: float,
) -> bool:
    """Call `work` for each item, in a thread for each process. False: the time was over before.

    `end` is of `time.monotonic`. Ctrl-C ends it as the time does; other exceptions are raised.
    """
    waiting, lock = iter(items), threading.Lock()
    errors: list[Exception] = []

    def take(process: Process) -> None:
        try:
            while not errors:
                with lock:
                    item = next(waiting, None)
                if item is None:
                    return
                work(process, item)
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=take, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join(min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX))
    except KeyboardInterrupt:
        print("interrupted: what was found so far", file=sys.stderr)
    stopped = any(thread.is_alive() for thread in threads)
    if stopped:
        for process in processes:
            process.stop()  # in the middle of their work, which ends with an error
    for thread in threads:
        thread.join()
    if errors and not stopped:
        raise errors[0]
    return not stopped
