"""What `flint explore` writes and prints beside its answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flint.cli.console import print_note, print_text
from flint.errors import FlintError
from flint.io.outputs import OutputKind, write_output

if TYPE_CHECKING:
    from flint.tools.explore.answers.against import StudyDifference
    from flint.tools.explore.api import Answer
    from flint.tools.explore.evaluation.simulated import SimulatedPoint
    from flint.tools.explore.point import Point
    from flint.tools.simulators.astra_sim import AstraSim


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
    study: Path | None = None
    force: bool = False  #: files that Flint did not write are replaced

    def refuse(self) -> None:
        """Raise FlintError FL870, FL710, FL218 or FL864 for what cannot be written, run or read.

        That is before any work.
        """
        if self.export is not None:
            from flint.tools.explore.answers.export import require_format

            require_format(self.export)
        if (self.simulate is None) != (self.traces is None):
            raise FlintError(
                "FL218", "--simulate N writes traces to --output DIR", help="give both, or neither"
            )
        if self.simulate is None and self.binary is not None:
            raise FlintError("FL218", "--binary is for --simulate", help="add --simulate 3 -o DIR")
        self._simulator()
        if self.against is not None:
            from flint.tools.explore.study.study import Study

            Study.load(self.against)

    def difference(self, found: Answer) -> StudyDifference | None:
        """What the study of --against says otherwise. Raises FlintError FL864 if it is none."""
        if self.against is None:
            return None
        from flint.tools.explore.answers.against import against
        from flint.tools.explore.study.study import Study

        return against(Study.load(self.against), found.study, found.ranking.objectives)

    def write(self, found: Answer, *, quiet: bool) -> list[SimulatedPoint]:
        """Write the files that were asked for; give the points that were simulated.

        Raises FlintError FL872 where the model is not what the estimates are of.
        """
        texts = []
        if self.html is not None:
            texts.append((self.html, found.to_html(), OutputKind.PAGE))
        if self.machine is not None and found.best is not None:
            machine = _machine(found.best.point, self.machine)
            texts.append((self.machine, machine, OutputKind.CLUSTER))
        for path, text, kind in texts:
            write_output(path, text.encode(), kind, force=self.force)
        if self.export is not None:
            found.export(self.export, force=self.force)
        written = [p for p, _, _ in texts] + [p for p in (self.export,) if p is not None]
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
            from flint.tools.explore.evaluation.simulated import simulated_table

            whose = "ASTRA-sim" if self.binary else "ASTRA-sim's rules"
            print_text(f"\nthe first rows by {whose}:\n{simulated_table(simulated)}")

    def _simulated(self, found: Answer) -> list[SimulatedPoint]:
        if self.simulate is None or self.traces is None:
            return []
        from flint.tools.explore.evaluation.simulated import simulate_best
        from flint.tools.explore.study.current import require_current

        if self.study is not None:
            require_current(self.study, found.ranking.results[: self.simulate])
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
        from flint.io.processes import Patience
        from flint.tools.simulators.astra_sim import AstraSim, find_binary
        from flint.tools.simulators.process import Limits, machine_memory_bytes

        limits = Limits(Patience.from_environment(), machine_memory_bytes())
        return AstraSim(find_binary(self.binary), limits)


def _machine(point: Point, file: Path) -> str:
    """The cluster of a point as the text of a file."""
    from flint.tools.explore.machine.text import cluster_text

    return cluster_text(point.cluster, point.changes, file.stem, file.parent)
