"""A process with the heavy imports done, that forks for every mutant. Linux only.

Started in a copy of the checkout as `python -m benchmarks.mutation.worker FOLDER`; temporary files
go below FOLDER. A task is a line of JSON on standard input, its outcome a line on standard output.
The forks import flint from the copy, mutated, and run pytest in process, each in a session of its
own, which is killed afterwards with everything it started. Nothing of flint is imported before the
fork.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy: threads do not survive a fork

import contextlib
import ctypes
import dataclasses
import gc
import importlib
import json
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.sources import PRODUCT, read_sources

#: Most memory a fork may use, and address space it may have beyond that of the process that forks:
#: tests make arrays of 10 GB that nothing touches.
MEMORY_BYTES, ADDRESS_BYTES = 6 << 30, 24 << 30
#: A test that took s seconds before is given up after GRACE_SECONDS + GRACE_TIMES * s.
GRACE_SECONDS, GRACE_TIMES = 20.0, 10.0
_SUBREAPER = (
    36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>: orphans become children of this process
)
_OPTIONS = (
    "-q",
    "--no-header",
    "--tb=line",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",  # hypothesis was imported before the fork
)


@dataclass(frozen=True)
class Task:
    """Test files to run in this order, with another text in one file."""

    path: str
    text: str
    tests: Sequence[str]
    deselected: Sequence[str]
    limit_seconds: float  #: for a test whose time is not known, and for collecting
    exhaustive: bool = False  #: run all of them, whatever fails; `left` is what they wrote there


@dataclass
class Outcome:
    """`verdict` is survived, killed or timeout; `test` the one that noticed, or "" for none."""

    verdict: str = "survived"
    test: str = ""
    passed: dict[str, float] = field(default_factory=dict)  #: seconds of each test
    seconds: float = 0.0
    cpu_seconds: float = 0.0  #: of the fork and of what it waited for
    left: str = ""


class Reporter:
    """A plugin of pytest that writes what happens into a pipe, as lines of JSON."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seconds, self._failed = 0.0, False  # of the test that runs

    def say(self, what: str, test: str = "", seconds: float = 0.0) -> None:
        os.write(self._descriptor, (json.dumps([what, test, seconds]) + "\n").encode())

    def pytest_configure(self) -> None:
        """The examples of the profile that conftest.py chose; no smaller ones after a failure."""
        from hypothesis import Phase, settings

        chosen = settings(phases=[Phase.explicit, Phase.generate])
        settings.register_profile("mutants", chosen)
        settings.load_profile("mutants")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.say("failed", report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._seconds, self._failed = 0.0, False
        self.say("started", nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds += report.duration
        if report.failed:
            self._failed = True
            self.say("failed", report.nodeid)
        elif report.when == "teardown" and not self._failed:
            self.say("passed", report.nodeid, self._seconds)


class Worker:
    """Runs tasks one after another, and remembers how long tests take."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: dict[str, float] = {}

    def run(self, task: Task) -> Outcome:
        """What the tests say; the file is afterwards as it was."""
        path = Path(task.path)
        kept = path.read_bytes()
        started, used = time.monotonic(), _cpu_seconds()
        with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as place:
            try:
                path.write_text(task.text, encoding="utf-8")
                outcome = self._forked(task, Path(place))
                outcome.left = path.read_text(encoding="utf-8") if task.exhaustive else ""
            finally:
                path.write_bytes(kept)
        outcome.seconds = time.monotonic() - started
        outcome.cpu_seconds = _cpu_seconds() - used
        for test, seconds in outcome.passed.items():
            self._seconds[test] = max(seconds, self._seconds.get(test, 0.0))
        return outcome

    def _forked(self, task: Task, place: Path) -> Outcome:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            _in_child(task, place, writing)
        os.close(writing)
        try:
            return self._watch(pid, reading, task)
        finally:
            os.close(reading)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            _end_children()

    def _watch(self, pid: int, pipe: int, task: Task) -> Outcome:
        """Follow what the child says until it says the end, dies, or is silent for too long."""
        outcome, test, rest = Outcome(), "", b""
        deadline = time.monotonic() + task.limit_seconds
        while time.monotonic() < deadline:
            if not select.select([pipe], [], [], 0.2)[0]:
                if _has_ended(pid) or _used_bytes(pid, 1) > MEMORY_BYTES:
                    break
                continue
            data = os.read(pipe, 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for what, name, seconds in map(json.loads, lines):
                if what == "end":
                    return outcome
                if what == "failed" and not task.exhaustive:
                    outcome.verdict, outcome.test = "killed", name
                    return outcome
                if what == "passed":
                    outcome.passed[name] = seconds
                test = name
                deadline = time.monotonic() + self._limit(what, name, task.limit_seconds)
        else:
            outcome.verdict, outcome.test = "timeout", test or task.tests[0]
            return outcome
        outcome.verdict, outcome.test = "killed", test or task.tests[0]
        return outcome

    def _limit(self, what: str, test: str, default: float) -> float:
        known = self._seconds.get(test)
        if what != "started" or known is None:
            return default
        return min(default, GRACE_SECONDS + GRACE_TIMES * known)


def _in_child(task: Task, place: Path, pipe: int) -> None:
    """Run the tests, and end the process."""
    reporter = Reporter(pipe)
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ["TMPDIR"] = str(place)
        tempfile.tempdir = None
        _redirect(place / "output")
        resource.setrlimit(resource.RLIMIT_AS, (_used_bytes("self", 0) + ADDRESS_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _run_tests(task, reporter)
    except BaseException:  # noqa: BLE001 - a mutant may raise anything, at any import
        traceback.print_exc()
        reporter.say("failed", task.tests[0])
    finally:
        os._exit(0)


def _redirect(output: Path) -> None:
    """Standard output and error into a file; nothing to read."""
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(handle, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _run_tests(task: Task, reporter: Reporter) -> None:
    """Few files first: most mutants are noticed there, before other files are even collected."""
    import pytest

    options = [*_OPTIONS, f"--maxfail={0 if task.exhaustive else 1}"]
    options += [f"--deselect={test}" for test in task.deselected]
    for files in _chunks(task.tests):
        code = pytest.main([*options, *files], plugins=[reporter])
        fine = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if not fine and not task.exhaustive:
            reporter.say("failed", files[0])  # said before, unless pytest itself failed
            return
    reporter.say("end")


def _chunks(files: Sequence[str]) -> Iterator[Sequence[str]]:
    start, length = 0, 2
    while start < len(files):
        yield files[start : start + length]
        start, length = start + length, 2 * length


def _cpu_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _used_bytes(pid: int | str, column: int) -> int:
    """Bytes of address space (column 0) or of memory (column 1) that a process has."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[column]
    return int(pages) * resource.getpagesize()


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_children() -> None:
    """Kill whatever is left below this process, orphans in sessions of their own included."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    while children := listed.read_text().split():
        for child in map(int, children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def import_heavy() -> None:
    """Import what flint's modules import from elsewhere: a fork finds out what that is."""
    import hypothesis  # noqa: F401
    import jax  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    for name in _imports_of_flint():
        with contextlib.suppress(Exception):  # what cannot be imported alone is imported later
            importlib.import_module(name)


def _imports_of_flint() -> list[str]:
    """Names of the modules that come with flint's and are not flint's, in their order."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        before = set(sys.modules)
        for source in read_sources(Path(), PRODUCT):
            if not source.module.endswith("__main__"):
                with contextlib.suppress(Exception):  # a package that is not installed here
                    importlib.import_module(source.module)
        new = [name for name in sys.modules if name not in before]
        foreign = [name for name in new if name.split(".")[0] != "flint"]
        with os.fdopen(writing, "w") as pipe:
            json.dump(foreign, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        names: list[str] = json.load(pipe)
    os.waitpid(pid, 0)
    return names


def main() -> None:
    """Answer tasks until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imports print is no answer
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what it started ends with it
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    import_heavy()
    gc.freeze()  # forks then leave the pages of these objects shared
    worker = Worker(folder)
    for line in sys.stdin:
        outcome = worker.run(Task(**json.loads(line)))
        print(json.dumps(dataclasses.asdict(outcome)), file=answers, flush=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
