"""The process that runs a user's JAX script: `python -m ... JOB RESULT`."""

from __future__ import annotations

import sys

from flint.frontends.jax_world.job import Job
from flint.frontends.jax_world.run import run
from flint.frontends.jax_world.values.places import raising_place
from flint.frontends.user_code import axis_error
from flint.frontends.user_process import (
    Failure,
    chain_of,
    flint_error_in,
    help_of,
    place_of,
    run_child,
    traceback_of,
    what_happened,
)
from flint.steps.captured import Captured

Outcome = Captured | Failure


def outcome_of(job: Job) -> Outcome:
    """Run a job; errors of the program and of Flint become values."""
    try:
        return run(job)
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - the user's program
        return _raised(job, error)


def _raised(job: Job, error: BaseException) -> Outcome:
    trace = traceback_of(error)
    cause = flint_error_in(error)
    if cause is not None:
        place = cause.place or raising_place(error)
        return Failure(cause.code, cause.message, place, cause.help, trace)
    place = place_of(error, job.name, raising_place)
    if found := axis_error(chain_of(error)[0], place):
        return Failure(found.code, found.message, place, found.help, trace)
    message = f"{job.name} {what_happened(error)}"
    return Failure("FL230", message, place, help_of(error, "-v shows the whole traceback"), trace)


if __name__ == "__main__":
    from flint.frontends.jax_world import child
    from flint.frontends.plugin_libraries import load_plugin_libraries

    load_plugin_libraries()

    run_child(child.outcome_of, *sys.argv[1:])
