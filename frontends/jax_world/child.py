"""The process that runs a user's JAX script: `python -m ... JOB RESULT`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from flint.errors import FlintError
from flint.frontends.jax_world.run import Job, run
from flint.frontends.jax_world.values.places import raising_place
from flint.io.inputs import record_if_asked
from flint.io.processes import begin_child
from flint.steps.captured import Captured


@dataclass(frozen=True)
class Failure:
    """A FlintError on its way to the parent; `trace` is the program's own traceback."""

    code: str
    message: str
    place: str | None
    help: str | None
    trace: str = ""


Outcome = Captured | Failure


def outcome_of(job: Job) -> Outcome:
    """Run a job; errors of the program and of Flint become values."""
    try:
        return run(job)
    except SystemExit as error:
        return _raised(job, f"exited with {error.code}", error)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the user's program
        return _raised(job, f"raised {type(error).__name__}: {_first_line(error)}", error)


def _raised(job: Job, what: str, error: BaseException) -> Outcome:
    trace = "".join(traceback.format_exception(error))
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FlintError):
            place = cause.place or raising_place(error)
            return Failure(cause.code, cause.message, place, cause.help, trace)
        cause = cause.__cause__ or cause.__context__
    help_ = "it runs without data on devices that are not there; -v shows the whole traceback"
    return Failure("FL230", f"{job.name} {what}", _place(error, job), help_, trace)


def _place(error: BaseException, job: Job) -> str | None:
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename).name}:{error.lineno}" if error.filename else job.name
    return raising_place(error)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else "no message"


def main(job_file: str, result_file: str) -> None:
    """Run the job in one file and leave its outcome in the other."""
    begin_child()
    record_if_asked()
    os.dup2(2, 1)  # what the program prints is not Flint's output
    warnings.simplefilter("ignore")
    job = pickle.loads(Path(job_file).read_bytes())
    outcome = outcome_of(job)
    partial = Path(f"{result_file}.partial")
    partial.write_bytes(pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL))
    partial.rename(result_file)
    sys.stderr.flush()
    os._exit(0)  # no destructors and no exit handlers of a program that was ended in its step


if __name__ == "__main__":
    from flint.frontends.jax_world import child

    child.main(*sys.argv[1:])
