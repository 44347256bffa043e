"""Recording in processes of their own: the caller's interpreter stays as it is.

One process imports PyTorch and forks for each rank; each fork is told what those before it found out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Self

from flint.errors import FlintError
from flint.frontends.torch_world.packages.package import packages
from flint.frontends.torch_world.record.child import CAN_FORK, Outcome, outcome_of
from flint.frontends.torch_world.record.handover import wrong_assumptions
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.recording import Recording
from flint.frontends.torch_world.runtime.versions import check_version
from flint.frontends.user_process import (
    Failure,
    child_environment,
    died,
    gave_up,
    read_outcome,
    write_outcome,
)
from flint.io.processes import Child, Patience, Watch, family, kill_group
from flint.io.scratch import scratch_folder

_log = logging.getLogger(__name__)


def record(jobs: Sequence[Job]) -> list[Recording]:
    """Run jobs, as many at once as there are cores, and return their recordings in order.

    Raises FlintError: FL224, FL234 (PyTorch), FL230 (the program raised or died), FL231 (it never
    stepped), FL232 (its mesh is another), FL233 (a value that depends on data), FL235, FL236.
    """
    with RankProcesses() as processes:
        return processes.record(jobs)


class RankProcesses:
    """A process that has imported PyTorch, once it is needed, and forks for each rank.

    It lasts as long as environment and working directory stay the same. What cannot be imported by
    another process runs in forks of this one.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._folder = Path()
        self._child: Child | None = None
        self._surroundings: object = None
        self._asked = 0

    def __enter__(self) -> Self:
        _refuse_inside()
        self._folder = self._stack.enter_context(scratch_folder())
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._stack.close()

    def record(self, jobs: Sequence[Job]) -> list[Recording]:
        """See the function `record`."""
        if not jobs:
            return []
        check_version()
        if any(job.call is not None for job in jobs):
            outcomes = [_forked(job) for job in jobs]
        elif CAN_FORK:
            outcomes = self._run(jobs)
        else:
            outcomes = [self._run([job])[0] for job in jobs]
        return [_recording(job, found) for job, found in zip(jobs, outcomes, strict=True)]

    def _run(self, jobs: Sequence[Job]) -> list[Outcome]:
        files = [self._written(job) for job in jobs]
        cores = os.cpu_count() or 1
        patience = Patience.from_environment()
        total = patience.total_seconds * -(-len(jobs) // cores)
        child = self._ready()
        with child.watched(replace(patience, total_seconds=total)) as watch:
            codes = _codes(child, files, jobs)
        if len(codes) < len(jobs):
            codes = {**dict.fromkeys(range(len(jobs)), self._end()), **codes}
        outcomes: list[Outcome] = []
        for number, (job, (_, result)) in enumerate(zip(jobs, files, strict=True)):
            found: Outcome | None = read_outcome(Path(result))
            Path(result).unlink(missing_ok=True)  # a study makes many
            missing = gave_up(job.name, watch) if watch.reason else died(job.name, codes[number])
            outcomes.append(found or missing)
        return outcomes

    def _written(self, job: Job) -> tuple[str, str]:
        self._asked += 1
        file = self._folder / f"job{self._asked}"
        file.write_bytes(pickle.dumps(job))
        return str(file), f"{file}.result"

    def _ready(self) -> Child:
        """The process, a new one where another was started elsewhere or has ended."""
        packages()  # a warning of one that is omitted comes from here, and not from the child
        surroundings = environment, _ = {**_environment(), **_caches_in(self._folder)}, os.getcwd()
        child = self._child
        if child and (surroundings != self._surroundings or child.process.poll() is not None):
            self._end()
        if self._child is None:
            self._surroundings = surroundings
            self._child = Child(
                [sys.executable, "-m", "flint.frontends.torch_world.record.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        return self._child

    def _end(self) -> int:
        child, self._child = self._child, None
        return child.end() if child is not None else 0


#: Those of whoever captures many times.
_SHARED: ContextVar[RankProcesses | None] = ContextVar("rank processes", default=None)


@contextlib.contextmanager
def shared(processes: RankProcesses) -> Iterator[None]:
    """Captures in this context run in `processes`, which stay open after them."""
    before = _SHARED.set(processes)
    try:
        yield
    finally:
        _SHARED.reset(before)


@contextlib.contextmanager
def rank_processes() -> Iterator[RankProcesses]:
    """The processes of a capture: shared ones, else its own."""
    found = _SHARED.get()
    with RankProcesses() if found is None else contextlib.nullcontext(found) as processes:
        yield processes


def _codes(child: Child, files: Sequence[tuple[str, str]], jobs: Sequence[Job]) -> dict[int, int]:
    """Exit status by number of the job; those are missing that had not ended with the process."""
    requests, reports = child.process.stdin, child.process.stdout
    assert requests is not None and reports is not None, "both are pipes"
    codes: dict[int, int] = {}
    with contextlib.suppress(BrokenPipeError):  # the process has ended, and says why in its status
        requests.write(f"{json.dumps(files)}\n".encode())
        requests.flush()
    while len(codes) < len(jobs):
        line = reports.readline()
        if not line:
            child.process.wait()
            break
        number, code, seconds = json.loads(line)
        codes[number] = code
        rank, world = jobs[number].rank, jobs[number].world_size
        _log.info("rank %d of %d was recorded in %.3f s", rank, world, seconds)
    return codes


def _recording(job: Job, outcome: Outcome) -> Recording:
    if isinstance(outcome, Recording):
        return outcome
    if isinstance(outcome, Failure):
        raise outcome.error()
    raise RuntimeError(f"recording {job.name} failed\n{outcome.trace}")


def _environment() -> dict[str, str]:
    """One thread: nothing is computed."""
    return child_environment(**{"OMP_NUM_THREADS": "1", _INSIDE: "1"})


def _caches_in(folder: Path) -> dict[str, str]:
    """Where PyTorch's compiler keeps what it made: in a folder that goes, unless the user says."""
    chosen = os.environ.get(_CACHES, str(folder / "inductor"))
    return {_CACHES: chosen}


#: PyTorch's environment variable for torchinductor_<user> in the temporary directory.
_CACHES = "TORCHINDUCTOR_CACHE_DIR"
#: Set in the environment of a process that captures.
_INSIDE = "FLINT_CAPTURING"


def _refuse_inside() -> None:
    """A module that captures its own function when it is imported would start processes forever."""
    if _INSIDE in os.environ:
        raise FlintError(
            "FL236",
            "importing the module of the captured function starts a capture",
            help='put the call of flint.trace_distributed under if __name__ == "__main__":',
        )


def _forked(job: Job) -> Outcome:
    """For functions that cannot be imported by another process."""
    if not hasattr(os, "fork"):
        raise _cannot_import(job, "this system cannot fork")
    patience = Patience.from_environment()
    with scratch_folder() as folder:
        result_file = folder / "result"
        pid = os.fork()
        if pid == 0:
            _run_in_fork(job, result_file)
        code, watch = _wait_for_fork(pid, patience)
        if watch.reason:
            return gave_up(job.name, watch)
        outcome: Outcome = read_outcome(result_file) or died(job.name, code)
    if isinstance(outcome, Failure) and "fork" in outcome.message and "autograd" in outcome.trace:
        raise _cannot_import(job, "this process has used autograd, which does not survive a fork")
    return outcome


def _wait_for_fork(pid: int, patience: Patience) -> tuple[int, Watch]:
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # as the fork does itself: whoever comes first
    family().add(pid)
    try:
        with Watch(pid, patience) as watch:
            _, status = os.waitpid(pid, 0)
    except BaseException:
        kill_group(pid)
        os.waitpid(pid, 0)
        raise
    finally:
        family().forget(pid)
    return os.waitstatus_to_exitcode(status), watch


def _run_in_fork(job: Job, result_file: Path) -> None:
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(2, 1)
        os.environ.update(_caches_in(result_file.parent))
        outcome = outcome_of(job)
        write_outcome(outcome, result_file)
        code = 0
    finally:
        os._exit(code)


def _cannot_import(job: Job, why: str) -> FlintError:
    return FlintError(
        "FL236",
        f"{job.name} cannot be imported by the process that captures it, and {why}",
        help="define it at the top level of a .py file, with arguments that can be pickled",
    )


class Relay:
    """Records ranks of a job with `record`, which runs several jobs at once.

    What processes find out is passed to later ones. A rank whose process assumed something that
    turned out to be wrong is recorded again.
    """

    def __init__(self, job: Job, record: Callable[[Sequence[Job]], list[Recording]]) -> None:
        self._job = job
        self._record = record
        self._known: dict[str, bytes] = {}

    def __call__(self, ranks: Sequence[int]) -> list[Recording]:
        """Recordings of `ranks`, in their order. Raises what `record` raises."""
        recordings = dict(zip(ranks, self._together(ranks), strict=True))
        for _ in ranks:
            wrong = [
                rank
                for rank, recording in recordings.items()
                if wrong_assumptions(recording.assumed, self._known)
            ]
            if not wrong:
                break
            recordings.update(zip(wrong, self._run(wrong), strict=True))
        return [recordings[rank] for rank in ranks]

    def _together(self, ranks: Sequence[int]) -> list[Recording]:
        """All at once; where one needs what another finds out (FL235), one by one, upwards."""
        try:
            return self._run(ranks)
        except FlintError as error:
            if error.code != "FL235" or len(ranks) == 1:
                raise
        recordings = {rank: self._run([rank])[0] for rank in sorted(ranks)}
        return [recordings[rank] for rank in ranks]

    def _run(self, ranks: Sequence[int]) -> list[Recording]:
        known = dict(self._known)
        recordings = self._record([replace(self._job, rank=rank, known=known) for rank in ranks])
        for recording in recordings:
            for name, fact in recording.found.items():
                self._known.setdefault(name, fact)
        return recordings
