"""The process that runs a user's distributed program: `python -m ... JOB RESULT`."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from flint.errors import FlintError
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.recording import Recording
from flint.frontends.user_code import library_place, user_place
from flint.io.inputs import record_if_asked
from flint.io.processes import begin_child


@dataclass(frozen=True)
class Failure:
    """A FlintError on its way to the parent; `trace` is the program's own traceback."""

    code: str
    message: str
    place: str | None
    help: str | None
    trace: str = ""


@dataclass(frozen=True)
class Bug:
    """What should not have been raised, as text."""

    trace: str


Outcome = Recording | Failure | Bug


def outcome_of(job: Job) -> Outcome:
    """Run a job; errors of the program and of Flint become values."""
    try:
        from flint.frontends.torch_world.runtime.versions import check_version

        check_version()
        import gc

        gc.disable()  # objects of a recording all live to its end
        from flint.frontends.torch_world.packages.finder import packages_found
        from flint.frontends.torch_world.record.run import run
        from flint.frontends.torch_world.record.switches import switches_not_followed

        told: dict[str, None] = {}
        with packages_found(told.setdefault):
            recording = run(job)
        warnings = (*switches_not_followed(), *told, *recording.warnings)
        return replace(recording, warnings=warnings)
    except FlintError as error:
        return Failure(error.code, error.message, error.place or user_place(error), error.help)
    except SystemExit as error:
        return _raised(job, f"exited with {error.code}", error)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the user's program
        return _raised(job, f"raised {type(error).__name__}: {_first_line(error)}", error)


def _raised(job: Job, what: str, error: BaseException) -> Outcome:
    trace = "".join(traceback.format_exception(error))
    help_ = "it runs on tensors without data as one rank of the mesh; -v shows the whole traceback"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FlintError):
            return Failure(cause.code, cause.message, cause.place, cause.help, trace)
        cause = cause.__cause__ or cause.__context__
    place = _place(error, job)
    if place is None and not isinstance(error, SystemExit):
        return Bug(trace)
    library = library_place(error)
    where = f" (in {library})" if library else ""
    return Failure("FL230", f"{job.name} {what}{where}", place, help_, trace)


def _place(error: BaseException, job: Job) -> str | None:
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename).name}:{error.lineno}" if error.filename else job.name
    return user_place(error)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else "no message"


def main(job_file: str, result_file: str) -> None:
    """Run the job in one file and leave its outcome in the other."""
    begin_child()
    record_if_asked()
    os.dup2(2, 1)  # what the program prints is not Flint's output
    warnings.simplefilter("ignore")
    # It logs a traceback of its own for every error that Flint reports in two lines.
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True
    job = pickle.loads(Path(job_file).read_bytes())
    outcome = outcome_of(job)
    partial = Path(f"{result_file}.partial")
    partial.write_bytes(pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL))
    partial.rename(result_file)
    sys.stderr.flush()
    os._exit(0)  # no destructors of a PyTorch that was patched


if __name__ == "__main__":
    from flint.frontends.torch_world.record import child

    child.main(*sys.argv[1:])
