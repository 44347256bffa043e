"""Running a script in a process of its own: the caller's interpreter stays as it is."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import flint
from flint.errors import FlintError
from flint.frontends.jax_world.child import Failure, Outcome
from flint.frontends.jax_world.run import Job
from flint.io.processes import IDLE_SECONDS, TOTAL_SECONDS, Child, Patience, Watch, family
from flint.steps.captured import Captured


class ProgramError(Exception):
    """The traceback of the user's program, from the process that ran it."""


def captured_in_child(job: Job) -> Captured:
    """Run a job in a new process.

    Raises FlintError FL230 (the program raised, died, or made no progress) and what `run` raises.
    """
    outcome = _outcome(job)
    if isinstance(outcome, Captured):
        return outcome
    error = FlintError(outcome.code, outcome.message, place=outcome.place, help=outcome.help)
    raise error from (ProgramError(outcome.trace) if outcome.trace else None)


def _outcome(job: Job) -> Outcome:
    patience = Patience.from_environment()
    with family().scratch() as folder:
        job_file, result_file = folder / "job", folder / "result"
        job_file.write_bytes(pickle.dumps(job))
        module = "flint.frontends.jax_world.child"
        child = Child(
            [sys.executable, "-P", "-m", module, str(job_file), str(result_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=_environment(),
        )
        try:
            with child.watched(patience) as watch:
                code = child.process.wait()
        finally:
            child.end()
        if watch.reason:
            return _gave_up(job, watch)
        return _read(result_file) or _died(job, code)


def _environment() -> dict[str, str]:
    """Flint is found where this process found it; libraries find no real accelerator."""
    root = os.path.dirname(os.path.dirname(os.path.realpath(flint.__file__)))
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")}
    own = {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu", **quiet}
    return {**os.environ, **own}


def _read(result_file: Path) -> Outcome | None:
    if not result_file.exists():
        return None
    outcome: Outcome = pickle.loads(result_file.read_bytes())
    return outcome


def _gave_up(job: Job, watch: Watch) -> Failure:
    return Failure(
        "FL230",
        f"{job.name} {watch.reason} and was ended",
        None,
        f"-v shows where it stood; {TOTAL_SECONDS} and {IDLE_SECONDS} allow more time",
        watch.stacks,
    )


def _died(job: Job, code: int) -> Failure:
    how = f"was killed by signal {-code}" if code < 0 else f"ended its process with code {code}"
    hint = "the machine ran out of memory, or " if code == -signal.SIGKILL else ""
    return Failure(
        "FL230",
        f"{job.name} {how}",
        None,
        f"{hint}an extension crashed or called os._exit; see what it printed above",
    )
