"""The process that runs a user's distributed program: `python -m ...child`, jobs on its input.

It imports PyTorch once, and forks for each rank. A request is one line of JSON: pairs of a file with
a job and one for its outcome. For each job a line `[number, exit status, seconds]` goes to the output.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import os
import pickle
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from flint.errors import FlintError
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.recording import Recording
from flint.frontends.torch_world.record.refusals import said_of_cuda
from flint.frontends.user_process import (
    Failure,
    StepMissing,
    flint_error_in,
    help_of,
    place_of,
    read_outcome,
    traceback_of,
    what_happened,
    write_outcome,
)
from flint.io.inputs import record_if_asked
from flint.io.processes import begin_child, end_with
from flint.io.user_places import library_place, user_place

if TYPE_CHECKING:
    from flint.frontends.torch_world.device.fakes import KnownResults

#: Where a process that has loaded PyTorch can be forked.
CAN_FORK = sys.platform == "linux"
#: Results of operators that are remembered from job to job: those of some dozens of programs.
_MOST_KNOWN = 50_000


@dataclass(frozen=True)
class Bug:
    """What should not have been raised, as text."""

    trace: str


Outcome = Recording | Failure | Bug


def outcome_of(job: Job, known: KnownResults | None = None) -> Outcome:
    """Run a job; errors of the program and of Flint become values. `known` shapes grow."""
    try:
        from flint.frontends.torch_world.runtime.versions import check_version

        check_version()
        gc.disable()  # objects of a recording all live to its end
        from flint.frontends.torch_world.packages.finder import packages_found
        from flint.frontends.torch_world.record.run import run

        told: dict[str, None] = {}
        with packages_found(told.setdefault):
            recording = run(job, known)
        warnings = (*switches_not_followed(), *told, *recording.warnings)
        return replace(recording, warnings=warnings)
    except StepMissing as error:
        return Failure(error.code, error.message, None, error.help, done_steps=error.done_steps)
    except FlintError as error:
        return Failure(error.code, error.message, error.place or user_place(error), error.help)
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - the user's program
        return _raised(job, error)


def _raised(job: Job, error: BaseException) -> Outcome:
    trace = traceback_of(error)
    cause = flint_error_in(error)
    if cause is not None:
        place = cause.place or user_place(cause)
        return Failure(cause.code, cause.message, place, cause.help, trace)
    place = place_of(error, job.name, user_place)
    if place is None and not isinstance(error, SystemExit):
        return Bug(trace)
    help_ = help_of(error, f"it ran as rank {job.rank} of the mesh; -v shows the whole traceback")
    library = library_place(error)
    where = f" (in {library})" if library else ""
    happened = said_of_cuda(what_happened(error))
    return Failure("FL230", f"{job.name} {happened}{where}", place, help_, trace)


def serve() -> None:
    """Run what is asked for until the input ends."""
    begin_child()
    record_if_asked()
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the program prints is not Flint's output
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (sys.stdout, sys.stderr):  # ranks that run at once write whole lines
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
    warnings.simplefilter("ignore")
    _preload()
    known: KnownResults = {}
    for line in requests:
        _run_all(json.loads(line), reports, known)
    sys.stderr.flush()
    os._exit(0)


def _preload() -> None:
    """Import what every rank needs. Where that fails, each job says so."""
    try:
        from flint.frontends.torch_world.runtime.versions import check_version

        check_version()
        import flint.frontends.torch_world.record.child
        import flint.frontends.torch_world.record.run  # noqa: F401 - all are for the forks
        from flint.frontends.torch_ops.table import load_table
        from flint.frontends.torch_private import FakeTensorMode
        from flint.frontends.torch_world.device.chips import DEFAULT_CHIP, chip_properties
        from flint.frontends.torch_world.packages.finder import packages_found
        from flint.frontends.torch_world.record.rank_questions import user_modules
        from flint.io.kept_files import look_through_modules

        FakeTensorMode()  # the first imports as much again
        with packages_found(lambda _: None):  # so does this
            pass
        load_table()
        look_through_modules()
        chip_properties(DEFAULT_CHIP)  # for a name that is an alias all presets are read
        user_modules()  # which folders are libraries' is found out once
    except (FlintError, ImportError):
        return
    # It logs a traceback of its own for every error that Flint reports in two lines.
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True
    gc.freeze()


def _run_all(jobs: Sequence[tuple[str, str]], reports: TextIO, known: KnownResults) -> None:
    """Run jobs, as many at once as there are cores, and report the end of each. `known` grows."""
    running: dict[int, tuple[int, float]] = {}
    waiting = list(enumerate(jobs))[::-1]
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            number, (job, result) = waiting.pop()
            running[_start(job, result, known)] = number, time.perf_counter()
        pid, status = os.wait()
        if pid in running:
            number, began = running.pop(pid)
            code, seconds = os.waitstatus_to_exitcode(status), time.perf_counter() - began
            _learn(Path(jobs[number][0]), known)
            print(json.dumps([number, code, seconds]), file=reports)


def _learn(told: Path, known: KnownResults) -> None:
    """Take in the shapes that a fork left in place of its job."""
    if len(known) < _MOST_KNOWN and (found := read_outcome(told)):
        from flint.frontends.torch_world.device.fakes import learn

        learn(known, found)
    told.unlink(missing_ok=True)


def _start(job: str, result: str, known: KnownResults) -> int:
    """The number of the process that runs a job: a fork of this one, or this one for good."""
    server = os.getpid()
    pid = os.fork() if CAN_FORK else 0
    if pid:
        return pid
    code = 1
    try:
        if CAN_FORK:
            end_with(server)
        found, before = pickle.loads(Path(job).read_bytes()), len(known)
        os.unlink(job)
        write_outcome(outcome_of(found, known), Path(result))
        if len(known) > before:
            from flint.frontends.torch_world.device.fakes import told

            write_outcome(told(known, before), Path(job))
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may run on in the fork
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def switches_not_followed() -> tuple[str, ...]:
    """A sentence for the user on each that the program that ran in this process left on."""
    config = sys.modules.get("torch._inductor.config")
    if not getattr(config, "_micro_pipeline_tp", False):
        return ()
    sentence = (
        "async tensor parallelism was not followed: its all-gathers and reduce-scatters are "
        "recorded whole, before and after their products, which hide them in a real run"
    )
    return (sentence,)


if __name__ == "__main__":
    # By the name that pickles know.
    from flint.frontends.torch_world.record import child

    child.serve()
