"""ASTRA-sim's analytical backend, built by the user: its command line, what it prints, how it ends.

It prints a line when a rank finishes, and nothing of those that never do; then its exit status is 0.
So a run succeeded if every rank has its line. Versions: its master of 2025 and 2026 (518bd51).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flint.backends.chakra.manifest import ranks_text
from flint.errors import FlintError
from flint.io.bounded import is_directory, is_file
from flint.io.scratch import scratch_folder
from flint.text import format_bytes, plural
from flint.tools.simulators.backends import Backend
from flint.tools.simulators.inputs import Case, Inputs, lay_out
from flint.tools.simulators.outcome import SimulatedRun
from flint.tools.simulators.process import Ended, Limits, run_program
from flint.tools.simulators.rank_end import RankEnd

#: The environment variable that names the binary.
BINARY: Final = "FLINT_ASTRA_SIM"
#: Called with the ranks that have finished, and all.
Progress = Callable[[int, int], None]

_FINISHED = re.compile(
    r"sys\[(?P<rank>\d{1,9})\] finished, (?P<end>\d{1,18}) cycles"
    r"(?:, exposed communication (?P<exposed>-?\d{1,18}) cycles)?"
)
_SPENT = re.compile(r"sys\[(?P<rank>\d{1,9})\], (?P<what>GPU|Comm) time: (?P<ns>\d{1,18})(?!\d)")
#: A line of its log, of its parsers, or of a failed assertion in its sources.
_OWN = re.compile(r"\[(?:info|critical|error|warning|debug|[ICEWD])\]|\[Error\]|AstraSim|sys\[\d")
_BAD = re.compile(r"\[(?:critical|error|[CE])\]|\[Error\]")
_HELP = f"build ASTRA-sim's analytical backend and name it: --binary PATH, or {BINARY}=PATH"


def find_binary(given: str | None, backend: Backend | None = None) -> Path:
    """The simulator: as given, else of `FLINT_ASTRA_SIM`, else the first of its names in PATH.

    Its names are those of the analytical builds, or that of `backend`.

    Raises FlintError FL710 for what is missing, or is not a file that can be executed.
    """
    named = given or os.environ.get(BINARY)
    names = [b.binary for b in ((backend,) if backend else (Backend.UNAWARE, Backend.AWARE))]
    found = named or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise FlintError("FL710", "no ASTRA-sim is named, and there is none in PATH", help=_HELP)
    path = Path(found)
    if not path.exists() and named and os.sep not in named:
        path = Path(shutil.which(named) or named)
    if is_directory(path):
        raise FlintError("FL710", f"{path} is a directory, not a program", help=_HELP)
    if not is_file(path):
        raise FlintError("FL710", f"there is no {path}", help=_HELP)
    if not os.access(path, os.X_OK):
        raise FlintError(
            "FL710", f"{path} is not executable", help=f"chmod +x {path}, if it is the simulator"
        )
    return path.resolve()


@dataclass(frozen=True)
class AstraSim:
    """A binary of ASTRA-sim and how long it may take."""

    binary: Path
    limits: Limits

    @property
    def name(self) -> str:
        """That of the file."""
        return self.binary.name

    @property
    def backend(self) -> Backend | None:
        """Which network it was built with, if its name says so."""
        return next((b for b in Backend if b.binary in self.binary.name), None)

    def run(self, inputs: Inputs, case: Case, progress: Progress | None = None) -> SimulatedRun:
        """Simulate on one network. Raises FlintError FL710 where the binary cannot be run at all.

        What goes wrong later is the `failure` of the run: FL712 to FL716.
        """
        heard = Listener(case.fabric.world, progress)
        with scratch_folder() as scratch:
            folder = scratch / "run"
            folder.mkdir()
            options = lay_out(inputs, case, folder)
            after = case.packets.after if case.packets else ()
            said = (f"--{key}={value}" for key, value in options.items())
            command = [str(self.binary), *said, *after]
            ended = run_program(command, folder, self.limits, heard)
        if ended.refused:
            raise _cannot_run(self.binary, ended.refused)
        failure = self._failure(ended, heard, case)
        notes = () if failure or not ended.status else (_late(ended),)
        return SimulatedRun(
            network=case.network.name,
            system=case.system.name,
            fabric=case.fabric,
            ends=heard.ends(),
            failure=failure,
            notes=(*notes, *heard.notes),
        )

    def _failure(self, ended: Ended, heard: Listener, case: Case) -> FlintError | None:
        """Why not every rank has finished; None if they all have."""
        missing = heard.missing
        if not missing:
            return None
        code, what, help_ = self._verdict(ended, heard)
        left = f"{len(missing)} of {plural(case.fabric.world, 'rank')} did not finish"
        return FlintError(
            code,
            f"{self.binary.name} {what} on {case.network.name}, and {left}: {ranks_text(missing)}",
            place=_last_words(ended, heard),
            help=help_,
        )

    def _verdict(self, ended: Ended, heard: Listener) -> tuple[str, str, str]:
        if ended.given_up:
            more = "--limit SECONDS allows more; flint check DIR proves that traces finish"
            return "FL713", ended.given_up, more
        if heard.contradictions:
            said = f"contradicts itself ({heard.contradictions[0]})"
            return (
                "FL716",
                said,
                f"is it the simulator, and does nothing else write there? {_HELP}",
            )
        if ended.lacked_memory:
            allowed = self.limits.memory_bytes
            had = f" of {format_bytes(allowed)}" if allowed else ""
            more = "--memory-limit GIB allows more; fewer ranks or layers need less"
            return "FL715", f"ran out of memory{had}", more
        if ended.status:
            more = "its last output is above; flint check DIR finds what it cannot handle"
            return "FL714", _how(ended.status), more
        if heard.is_own:
            return "FL712", "ended with status 0", "flint check DIR says what traces wait for"
        silent = "ended with status 0 and printed nothing that ASTRA-sim prints"
        return "FL716", silent, f"is it the simulator? {_HELP}"


@dataclass(eq=False)
class Listener:
    """Hears lines as they are printed, in any order and among any others.

    `is_own` says whether any of them can be ASTRA-sim's, `last_bad` is the last that complains.
    """

    world: int
    progress: Progress | None
    is_own: bool = False
    last_bad: str = ""
    _ends: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    _spent: dict[tuple[str, int], int] = field(default_factory=dict)
    _strange: set[int] = field(default_factory=set)
    _twice: dict[int, int] = field(default_factory=dict)

    def __call__(self, line: str) -> None:
        self.is_own = self.is_own or bool(_OWN.search(line))
        if _BAD.search(line):
            self.last_bad = line
        for found in _SPENT.finditer(line):
            self._spent[found["what"], int(found["rank"])] = int(found["ns"])
        for found in _FINISHED.finditer(line):
            self._finish(int(found["rank"]), int(found["end"]), found["exposed"])

    def _finish(self, rank: int, end: int, exposed: str | None) -> None:
        if rank >= self.world:
            self._strange.add(rank)
            return
        found = end, None if exposed is None else int(exposed)
        if self._ends.setdefault(rank, found) != found:
            self._twice.setdefault(rank, end)
        if self.progress is not None:
            self.progress(len(self._ends), self.world)

    @property
    def missing(self) -> list[int]:
        """Ranks that have not finished, as far as what was said of them can be."""
        ends = self.ends()
        return [r for r in range(self.world) if r not in ends]

    @property
    def contradictions(self) -> list[str]:
        """What was said of ranks and cannot be, a sentence each."""
        return [wrong for rank in sorted(self._ends) if (wrong := self._contradiction(rank))]

    def _contradiction(self, rank: int) -> str:
        end, exposed = self._ends[rank]
        computed = self._spent.get(("GPU", rank), 0)
        if rank in self._twice:
            return f"rank {rank} finished after {end:,} cycles and after {self._twice[rank]:,}"
        if exposed is not None and not 0 <= exposed <= end:
            return f"rank {rank} waited {exposed:,} of {end:,} cycles"
        return f"rank {rank} computed {computed:,} of {end:,} cycles" if computed > end else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was heard and cannot be."""
        if not self._strange:
            return ()
        return (f"it named ranks that the network does not have: {ranks_text(self._strange)}",)

    def ends(self) -> dict[int, RankEnd]:
        """The ranks that have finished, without those of which something was said that cannot be."""
        return {
            rank: RankEnd(end, exposed, self._spent.get(("GPU", rank)), self._comm(rank))
            for rank, (end, exposed) in sorted(self._ends.items())
            if not self._contradiction(rank)
        }

    def _comm(self, rank: int) -> int | None:
        """Time in communication; it prints none for a rank that has none."""
        computed = ("GPU", rank) in self._spent
        return self._spent.get(("Comm", rank), 0 if computed else None)


def _cannot_run(binary: Path, number: int) -> FlintError:
    reasons = {
        errno.ENOEXEC: "is not a program for this machine",
        errno.ENOENT: "names an interpreter that does not exist",
        errno.EACCES: "is not executable by this user",
    }
    why = reasons.get(number, f"cannot be run: {os.strerror(number)}")
    return FlintError("FL710", f"{binary} {why}", help=_HELP)


def _last_words(ended: Ended, heard: Listener) -> str | None:
    """The last complaint of its log, else the last line of stderr."""
    words: Sequence[str] = [w for w in (heard.last_bad, *reversed(ended.last_words)) if w]
    return f"it said: {words[0][:300]}" if words else None


def _how(status: int) -> str:
    if status > 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"crashed ({name})"


def _late(ended: Ended) -> str:
    """What is not said otherwise of a program that has done all and then failed."""
    why = ended.given_up or _how(ended.status)
    return f"after every rank had finished, the simulator {why}"
