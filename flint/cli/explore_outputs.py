"""What `flint explore` writes and prints beside its answer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flint.cli.console import print_note, print_text
from flint.cli.signals import signals
from flint.errors import FlintError

if TYPE_CHECKING:
    from flint.backends.simulators.astra_sim import AstraSim
    from flint.exploring.answers.against import StudyDifference
    from flint.exploring.api import Answer
    from flint.exploring.evaluation.simulated import SimulatedPoint
    from flint.exploring.point import Point


@dataclass(frozen=True)
class Outputs:
    """Options as they are given."""

    export: Path | None
    html: Path | None
    machine: Path | None
    against: Path | None
    simulate: int | None
    traces: Path | None
    binary: str | None
    study: Path | None = None  #: which none of the files may replace

    def refuse(self) -> None:
        """Raise FlintError FL870, FL502, FL710, FL218 or FL864 for what cannot be written, run or read.

        That is before any work.
        """
        from flint.cli.inputs import keep_traces

        for path in self._files():
            keep_traces(path)
        self._refuse_to_replace()
        if self.export is not None:
            from flint.exploring.answers.export import require_format

            require_format(self.export)
        if (self.simulate is None) != (self.traces is None):
            raise FlintError(
                "FL218", "--simulate N writes traces to --output DIR", help="give both, or neither"
            )
        if self.simulate is None and self.binary is not None:
            raise FlintError("FL218", "--binary is for --simulate", help="add --simulate 3 -o DIR")
        self._simulator()
        if self.against is not None:
            from flint.exploring.study.study import Study

            Study.load(self.against)

    def _refuse_to_replace(self) -> None:
        """Raise FlintError FL502 for a study that would be replaced, and one file for two things."""
        from flint.exploring.study.study_format import is_study

        taken = {os.path.realpath(p) for p in (self.study, self.against) if p is not None}
        for path in self._files():
            whole = os.path.realpath(path)
            if whole in taken or is_study(path):
                what = "is a study" if is_study(path) else "is asked for twice"
                raise FlintError(
                    "FL502", f"{path} {what}, and is not overwritten", help="give another name"
                )
            taken.add(whole)

    def difference(self, found: Answer) -> StudyDifference | None:
        """What the study of --against says otherwise. Raises FlintError FL864 if it is none."""
        if self.against is None:
            return None
        from flint.exploring.answers.against import against
        from flint.exploring.study.study import Study

        return against(Study.load(self.against), found.study, found.ranking.objectives)

    def write(self, found: Answer, *, quiet: bool) -> list[SimulatedPoint]:
        """Write the files that were asked for; give the points that were simulated.

        Raises FlintError FL872 where the model is not what the estimates are of.
        """
        from flint.io.files import cannot_write, write_atomically

        texts = []
        if self.html is not None:
            texts.append((self.html, found.to_html()))
        if self.machine is not None and found.best is not None:
            texts.append((self.machine, _machine(found.best.point, self.machine)))
        for path, text in texts:
            try:
                write_atomically(path, text.encode())
            except OSError as error:
                raise cannot_write(path, error) from error
        if self.export is not None:
            found.export(self.export)
        written = [p for p, _ in texts] + [p for p in (self.export,) if p is not None]
        for path in written:
            print_note(f"wrote   {path}", quiet=quiet)
        return self._simulated(found)

    def print_more(
        self, difference: StudyDifference | None, simulated: list[SimulatedPoint]
    ) -> None:
        """Print what stands below the answer."""
        if difference is not None:
            print_text(f"\nagainst {self.against}:\n{difference.to_text()}")
        if simulated:
            from flint.exploring.evaluation.simulated import simulated_table

            whose = "ASTRA-sim" if self.binary else "ASTRA-sim's rules"
            print_text(f"\nthe first rows by {whose}:\n{simulated_table(simulated)}")

    def _files(self) -> list[Path]:
        return [p for p in (self.export, self.html, self.machine) if p is not None]

    def _simulated(self, found: Answer) -> list[SimulatedPoint]:
        if self.simulate is None or self.traces is None:
            return []
        from flint.exploring.evaluation.simulated import simulate_best
        from flint.exploring.study.current import require_current

        if self.study is not None:
            require_current(self.study, found.ranking.results[: self.simulate])
        with signals().unwinding():
            return list(
                simulate_best(
                    found.study.subject,
                    found.ranking.results,
                    self.simulate,
                    self.traces,
                    simulator=self._simulator(),
                )
            )

    def _simulator(self) -> AstraSim | None:
        """The simulator of --binary; None: its rules."""
        if self.binary is None:
            return None
        from flint.backends.simulators.astra_sim import AstraSim, find_binary
        from flint.backends.simulators.process import Limits, machine_memory_bytes
        from flint.io.processes import Patience

        limits = Limits(Patience.from_environment(), machine_memory_bytes())
        return AstraSim(find_binary(self.binary), limits)


def _machine(point: Point, file: Path) -> str:
    """The cluster of a point as the text of a file."""
    from flint.exploring.machine.text import cluster_text

    return cluster_text(point.cluster, point.changes, file.stem, file.parent)
