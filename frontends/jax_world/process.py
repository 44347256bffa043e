"""Running a script in a process of its own: the caller's interpreter stays as it is."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

from flint.frontends.jax_world.child import Outcome
from flint.frontends.jax_world.job import Job
from flint.frontends.user_process import child_environment, died, gave_up, read_outcome
from flint.io.processes import Child, Patience
from flint.io.scratch import scratch_folder
from flint.steps.captured import Captured


def captured_in_child(job: Job) -> Captured:
    """Run a job in a new process.

    Raises FlintError FL230 (the program raised, died, or made no progress) and what `run` raises.
    """
    outcome = _outcome(job)
    if isinstance(outcome, Captured):
        return outcome
    raise outcome.error()


def _outcome(job: Job) -> Outcome:
    patience = Patience.from_environment()
    with scratch_folder() as folder:
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
            return gave_up(job.name, watch)
        outcome: Outcome | None = read_outcome(result_file)
        return outcome or died(job.name, code)


def _environment() -> dict[str, str]:
    """Libraries find no real accelerator."""
    logging = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    return child_environment(JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL=logging)
