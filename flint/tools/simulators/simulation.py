"""Traces in ASTRA-sim, on one network after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from flint.backends.cost.astrasim.disturbance import UNDISTURBED, Disturbance
from flint.errors import FlintError
from flint.io.documents import as_object
from flint.log import stage
from flint.text import plural
from flint.tools.simulators.astra_sim import Progress
from flint.tools.simulators.inputs import Case, Inputs
from flint.tools.simulators.outcome import SimulatedRun

if TYPE_CHECKING:
    from flint.tools.simulators.documents import SimulationDocument

#: Version of the JSON form.
SCHEMA: Final = "flint.simulation/1"
#: Looks at a run of a case, and says more of it.
Look = Callable[[Case, SimulatedRun], SimulatedRun]


class Runner(Protocol):
    """What runs traces: a binary of ASTRA-sim, or Flint by its rules."""

    @property
    def name(self) -> str:
        """For people."""

    def run(self, inputs: Inputs, case: Case, progress: Progress | None = None) -> SimulatedRun:
        """Simulate on one network."""


@dataclass(frozen=True)
class AstraSimulation:
    """What ASTRA-sim said of traces on each network. `binary` is who ran them.

    `warnings` say what was not as the files or options make one believe.
    """

    binary: str
    name: str
    runs: tuple[SimulatedRun, ...]
    disturbance: Disturbance = UNDISTURBED
    warnings: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[FlintError, ...]:
        """Why runs did not end as they should, in their order."""
        return tuple(r.failure for r in self.runs if r.failure is not None)

    def to_json(self) -> dict[str, Any]:
        """Exact numbers, JSON-able."""
        document: SimulationDocument = {
            "schema": SCHEMA,
            "simulator": "astra-sim",
            "binary": self.binary,
            "disturbance": str(self.disturbance),
            "warnings": list(self.warnings),
            "runs": [r.document() for r in self.runs],
        }
        return as_object(document)

    def to_text(self, *, verbose: bool = False) -> str:
        """For people; `verbose` prints a row for each rank."""
        head = f"simulator  {self.binary}\ntraces     {self.name}"
        if self.disturbance:
            head += f"\ndisturbed  {self.disturbance}"
        return "\n\n".join([head, *(r.to_text(verbose=verbose) for r in self.runs)])


def simulate_all(
    simulator: Runner,
    inputs: Inputs,
    look: Look | None = None,
    progress: Progress | None = None,
    disturbance: Disturbance = UNDISTURBED,
    warnings: Sequence[str] = (),
) -> AstraSimulation:
    """Run the simulator on each network. A run that fails does not keep the next from running.

    `disturbance` is what the traces, or the simulator, make ranks late by. Raises FlintError FL710
    where the binary cannot be run at all.
    """
    runs = []
    for case in inputs.cases:
        with stage(f"simulate {case.network.name}"):
            run = simulator.run(inputs, case, progress)
        runs.append(look(case, run) if look else run)
    name = f"{inputs.traces.folder.name or inputs.traces.folder}: {plural(inputs.ranks, 'rank')}"
    return AstraSimulation(simulator.name, name, tuple(runs), disturbance, tuple(warnings))
