"""A user's program in a process of its own: what comes back from it, and how its end is told."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flint
from flint.errors import FlintError
from flint.io.inputs import record_if_asked
from flint.io.processes import IDLE_SECONDS, TOTAL_SECONDS, Watch, begin_child
from flint.io.user_places import user_place


@dataclass(frozen=True)
class Failure:
    """A FlintError on its way to the parent; `trace` is the program's own traceback."""

    code: str
    message: str
    place: str | None
    help: str | None
    trace: str = ""
    done_steps: int | None = None  #: of a `StepMissing`

    def error(self) -> FlintError:
        """The error to raise in the parent, with the program's traceback behind it."""
        made = FlintError(self.code, self.message, place=self.place, help=self.help)
        if self.done_steps is not None:
            made = StepMissing(self.message, self.help or "", self.done_steps)
        made.__cause__ = ProgramError(self.trace) if self.trace else None
        return made


class StepMissing(FlintError):
    """FL231: a program ended after `done_steps` optimizer steps, before the one to be recorded."""

    def __init__(self, message: str, help_: str, done_steps: int) -> None:
        super().__init__("FL231", message, help=help_)
        self.done_steps = done_steps


class ProgramError(Exception):
    """The traceback of the user's program, from the process that ran it."""


# --- in the child ---------------------------------------------------------------------------------


def run_child(outcome_of: Callable[[Any], object], job_file: str, result_file: str) -> None:
    """Run the job in one file, leave its outcome in the other, and end the process.

    No destructors and no exit handlers of the program run: it was ended in its step.
    """
    begin_child()
    record_if_asked()
    os.dup2(2, 1)  # what the program prints is not Flint's output
    warnings.simplefilter("ignore")
    job = pickle.loads(Path(job_file).read_bytes())
    write_outcome(outcome_of(job), Path(result_file))
    sys.stderr.flush()
    os._exit(0)


def write_outcome(outcome: object, result_file: Path) -> None:
    """Leave an outcome in a file that is there whole or not at all."""
    partial = Path(f"{result_file}.partial")
    partial.write_bytes(pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL))
    partial.rename(result_file)


def flint_error_in(error: BaseException) -> FlintError | None:
    """The FlintError that an error is, or was raised from."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, FlintError):
        cause = cause.__cause__ or cause.__context__
    return cause


def chain_of(error: BaseException) -> list[BaseException]:
    """An exception and those that it was raised from or while handling, the first one first."""
    found = [error]
    while True:
        last = found[-1]
        earlier = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if earlier is None or earlier in found:
            return [one for one in found[::-1] if one is error or not _only_traces(one)]
        found.append(earlier)


def _only_traces(error: BaseException) -> bool:
    """Whether JAX put an exception into the chain to hold a traceback."""
    kind = type(error)
    return kind.__module__.startswith("jax.") and "StackTrace" in kind.__name__


def what_happened(error: BaseException) -> str:
    """`raised ValueError: its first line`, or `exited with 3`; of a chain the first and the last."""
    chain = chain_of(error)
    told = [_told(chain[0])] if len(chain) == 1 else [_told(chain[0]), _told(error)]
    return ", then ".join(told)


def _told(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"exited with {error.code}"
    text = str(error).strip()
    first = f": {text.splitlines()[0]}" if text else ""
    return f"raised {type(error).__name__}{first}"


def help_of(error: BaseException, usual: str) -> str:
    """What to do: a program whose parser of arguments ends it wants others."""
    ended = isinstance(error, SystemExit) and error.code == 2
    return f"give its arguments after --; {usual}" if ended else usual


def place_of(
    error: BaseException, name: str, place: Callable[[BaseException], str | None]
) -> str | None:
    """The line of the program that the first exception of a chain comes from, else a later one: of
    a SyntaxError, what it names. `place` finds other lines where none of them has the user's."""
    chain = chain_of(error)
    found = (_place(one, name, find) for find in (user_place, place) for one in chain)
    return next((p for p in found if p), None)


def _place(
    error: BaseException, name: str, place: Callable[[BaseException], str | None]
) -> str | None:
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename).name}:{error.lineno}" if error.filename else name
    return place(error)


def traceback_of(error: BaseException) -> str:
    """The whole traceback, as Python prints it."""
    return "".join(traceback.format_exception(error))


# --- in the parent --------------------------------------------------------------------------------


def child_environment(**own: str) -> dict[str, str]:
    """This process's environment with `own`; Flint is found where this process found it."""
    root = os.path.dirname(os.path.dirname(os.path.realpath(flint.__file__)))
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **own}


@contextmanager
def variables_set(given: Mapping[str, object]) -> Iterator[None]:
    """This process's environment has these variables, and is as before afterwards."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update({name: str(value) for name, value in given.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def read_outcome(result_file: Path) -> Any:
    """What the child left, None if it left nothing."""
    return pickle.loads(result_file.read_bytes()) if result_file.exists() else None


def gave_up(name: str, watch: Watch) -> Failure:
    """FL230: the program made no progress, or took too long, and was ended."""
    return Failure(
        "FL230",
        f"{name} {watch.reason} and was ended",
        None,
        f"-v shows where it was; {TOTAL_SECONDS} and {IDLE_SECONDS} allow more time",
        watch.stacks,
    )


def died(name: str, code: int) -> Failure:
    """FL230: the process ended without an outcome."""
    how = f"was killed by {_signal(-code)}" if code < 0 else f"ended its process with code {code}"
    hint = "the machine ran out of memory, or " if code == -signal.SIGKILL else ""
    return Failure(
        "FL230",
        f"{name} {how}",
        None,
        f"{hint}an extension crashed or called os._exit; see what it printed above",
    )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
