"""The process that runs a user's distributed program: `python -m ... JOB RESULT`."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace

from flint.errors import FlintError
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.recording import Recording
from flint.frontends.user_code import library_place, user_place
from flint.frontends.user_process import (
    Failure,
    flint_error_in,
    place_of,
    run_child,
    traceback_of,
    what_happened,
)


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
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - the user's program
        return _raised(job, error)


def _raised(job: Job, error: BaseException) -> Outcome:
    trace = traceback_of(error)
    cause = flint_error_in(error)
    if cause is not None:
        return Failure(cause.code, cause.message, cause.place, cause.help, trace)
    place = place_of(error, job.name, user_place)
    if place is None and not isinstance(error, SystemExit):
        return Bug(trace)
    help_ = "it runs on tensors without data as one rank of the mesh; -v shows the whole traceback"
    library = library_place(error)
    where = f" (in {library})" if library else ""
    return Failure("FL230", f"{job.name} {what_happened(error)}{where}", place, help_, trace)


if __name__ == "__main__":
    from flint.frontends.torch_world.record import child

    # It logs a traceback of its own for every error that Flint reports in two lines.
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True
    run_child(child.outcome_of, *sys.argv[1:])
