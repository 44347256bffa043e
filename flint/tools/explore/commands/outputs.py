"""What `flint explore` writes and prints beside its answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flint.cli.console import print_note, print_text
from flint.cli.options import Writes
from flint.errors import FlintError
from flint.io.outputs import OutputKind, write_output
from flint.requests.option import Form, Request, option

if TYPE_CHECKING:
    from flint.tools.explore.answers.against import StudyDifference
    from flint.tools.explore.api import Answer
    from flint.tools.explore.evaluation.simulated import SimulatedPoint
    from flint.tools.explore.point import Point
    from flint.tools.simulators.astra_sim import AstraSim


@dataclass(frozen=True)
class Outputs(Request):
    """What is printed and written of an answer."""

    top: int = option(
        "--top", form=Form.NUMBER, default=10, metavar="N", least=1, help="Rows to print."
    )
    explain: str | None = option(
        "--explain",
        metavar="ROW,ROW",
        help="Say why one row beats another: 1,2 is best and second.",
    )
    against: Path | None = option(
        "--against",
        form=Form.PATH,
        metavar="STUDY",
        reads=True,
        help="Compare with an older study, point by point.",
    )
    export: Path | None = option(
        "--export",
        form=Form.PATH,
        metavar="FILE",
        role=Writes(OutputKind.TABLE),
        help="Write all results: .csv or .parquet.",
    )
    html: Path | None = option(
        "--html",
        form=Form.PATH,
        metavar="FILE",
        role=Writes(OutputKind.PAGE),
        help="Write an HTML page with charts.",
    )
    machine: Path | None = option(
        "--machine",
        form=Form.PATH,
        metavar="FILE",
        role=Writes(OutputKind.CLUSTER),
        help="Write the cluster of the first row as a file.",
    )
    simulate: int | None = option(
        "--simulate",
        form=Form.NUMBER,
        metavar="N",
        least=1,
        help="Write traces of the first N rows to --output and run them by ASTRA-sim's rules, or with "
        "--binary by ASTRA-sim itself.",
    )
    output: Path | None = option(
        "--output",
        "-o",
        form=Form.PATH,
        metavar="DIR",
        role=Writes(adds=True),
        help="Directory for the traces of --simulate.",
    )
    binary: str | None = option(
        "--binary", metavar="PATH", reads=True, help="ASTRA-sim binary for --simulate."
    )

    def refuse(self) -> None:
        """Raise FlintError FL870, FL710, FL218 or FL864 for what cannot be written, run or read.

        That is before any work.
        """
        if self.export is not None:
            from flint.tools.explore.answers.export import require_format

            require_format(self.export)
        if (self.simulate is None) != (self.output is None):
            raise FlintError(
                "FL218", "--simulate N writes traces to --output DIR", help="give both, or neither"
            )
        if self.simulate is None and self.binary is not None:
            raise FlintError("FL218", "--binary needs --simulate", help="add --simulate 3 -o DIR")
        self._simulator()
        if self.against is not None:
            from flint.tools.explore.study.study import Study

            Study.load(self.against)

    def rows(self) -> tuple[int, int] | None:
        """`--explain`. Raises FlintError FL874 for what is no pair of rows."""
        if self.explain is None:
            return None
        words = [w.strip() for w in self.explain.split(",")]
        if len(words) != 2 or not all(w.isascii() and w.isdigit() and int(w) > 0 for w in words):
            raise FlintError(
                "FL874",
                f"--explain {self.explain} is not a pair of rows",
                help="write --explain 1,2",
            )
        return int(words[0]), int(words[1])

    def difference(self, found: Answer) -> StudyDifference | None:
        """What the study of --against says otherwise. Raises FlintError FL864 if it is none."""
        if self.against is None:
            return None
        from flint.tools.explore.answers.against import against
        from flint.tools.explore.study.study import Study

        return against(Study.load(self.against), found.study, found.ranking.objectives)

    def write(
        self, found: Answer, study: Path | None, *, force: bool, quiet: bool
    ) -> list[SimulatedPoint]:
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
            write_output(path, text.encode(), kind, force=force)
        if self.export is not None:
            found.export(self.export, force=force)
        written = [p for p, _, _ in texts] + [p for p in (self.export,) if p is not None]
        for path in written:
            print_note(f"wrote   {path}", quiet=quiet)
        return self._simulated(found, study)

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

    def _simulated(self, found: Answer, study: Path | None) -> list[SimulatedPoint]:
        if self.simulate is None or self.output is None:
            return []
        from flint.tools.explore.evaluation.simulated import simulate_best
        from flint.tools.explore.study.generations import require_current

        if study is not None:
            require_current(study, found.ranking.results[: self.simulate])
        return list(
            simulate_best(
                found.study.subject,
                found.ranking.results,
                self.simulate,
                self.output,
                simulator=self._simulator(),
            )
        )

    def _simulator(self) -> AstraSim | None:
        if self.binary is None:
            return None
        from flint.io.processes import Patience
        from flint.tools.simulators.astra_sim import AstraSim, find_binary
        from flint.tools.simulators.process import Limits, machine_memory_bytes

        limits = Limits(Patience.from_environment(), machine_memory_bytes())
        return AstraSim(find_binary(self.binary), limits)


def _machine(point: Point, file: Path) -> str:
    from flint.tools.explore.machine.text import cluster_text

    return cluster_text(point.cluster, point.changes, file.stem, file.parent)
