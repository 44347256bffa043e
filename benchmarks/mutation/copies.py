"""Copies of a checkout that mutants live in, and the processes that work there."""

from __future__ import annotations

import compileall
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Self

from benchmarks.mutation.worker import Outcome, Task

_LEFT_OUT = ("*.pyc", "build", "dist", "out", "*.egg-info")


def copy_checkout(root: Path, place: Path) -> None:
    """Copy what the tests may read: no hidden folders but `.ci`, links as links.

    Compiled code goes beside it, valid by what the source says and not by its time: a mutant is
    written and taken back within the resolution of a clock.
    """

    def left_out(folder: str, names: list[str]) -> set[str]:
        hidden = {
            name for name in names if name.startswith(".") and name not in (".ci", ".editable")
        }
        return hidden | shutil.ignore_patterns(*_LEFT_OUT)(folder, names)

    shutil.copytree(root, place, symlinks=True, ignore=left_out)
    compileall.compile_dir(
        place, quiet=2, workers=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH
    )


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
        """End it in the middle of its task, with what it started."""
        self._process.send_signal(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._process.wait()
