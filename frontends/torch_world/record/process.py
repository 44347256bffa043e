"""Recording in processes of their own: the caller's interpreter stays as it is.

Ranks are recorded one after the other, each process told what those before it found out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from flint.errors import FlintError
from flint.frontends.torch_world.record.child import Bug, Outcome, outcome_of
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
from flint.io.processes import (
    Child,
    Patience,
    Watch,
    family,
    kill_group,
)
from flint.io.scratch import scratch_folder

_log = logging.getLogger(__name__)


def record(jobs: Sequence[Job]) -> list[Recording]:
    """Run jobs, as many at once as there are cores, and return their recordings in order.

    Raises FlintError: FL224, FL234 (PyTorch), FL230 (the program raised or died), FL231 (it never
    stepped), FL232 (its mesh is another), FL233 (a value that depends on data), FL235, FL236.
    """
    _refuse_inside()
    check_version()
    started: list[int] = []
    pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
    try:
        if len(jobs) == 1:
            return [_recorded(jobs[0], started)]
        return list(pool.map(partial(_recorded, started=started), jobs))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for pid in started:
            kill_group(pid)
        raise
    finally:
        pool.shutdown(wait=True)


def _recorded(job: Job, started: list[int]) -> Recording:
    began = time.perf_counter()
    outcome = _forked(job) if job.call is not None else _spawned(job, started)
    seconds = time.perf_counter() - began
    _log.info("rank %d of %d was recorded in %.3f s", job.rank, job.world_size, seconds)
    if isinstance(outcome, Recording):
        return outcome
    raise _error(job, outcome)


def _error(job: Job, outcome: Failure | Bug) -> Exception:
    if isinstance(outcome, Bug):
        return RuntimeError(f"recording {job.name} failed\n{outcome.trace}")
    return outcome.error()


def _spawned(job: Job, started: list[int]) -> Outcome:
    patience = Patience.from_environment()
    with scratch_folder() as folder:
        job_file, result_file = folder / "job", folder / "result"
        job_file.write_bytes(pickle.dumps(job))
        child = Child(
            [
                sys.executable,
                "-m",
                "flint.frontends.torch_world.record.child",
                str(job_file),
                str(result_file),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**_environment(), **_caches_in(folder)},
        )
        started.append(child.process.pid)
        try:
            with child.watched(patience) as watch:
                code = child.process.wait()
        finally:
            started.remove(child.process.pid)
            child.end()
        if watch.reason:
            return gave_up(job.name, watch)
        found: Outcome | None = read_outcome(result_file)
        return found or died(job.name, code)


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
    """A module that captures its own function when it is imported would start processes for ever."""
    if _INSIDE in os.environ:
        raise FlintError(
            "FL236",
            "the module of the captured function captures when it is imported",
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
