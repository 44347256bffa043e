"""What `flint estimate --compare` asks for: which fidelity, of which capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flint.cli.inputs import load_workload
from flint.errors import FlintError
from flint.requests.estimate import EstimateRequest

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.ir.workload import Workload
    from flint.tools.simulators.astra_sim import AstraSim
    from flint.tools.simulators.fidelities import Fidelities, Fidelity


@dataclass(frozen=True)
class Question:
    """What is compared, and how it is estimated."""

    path: Path
    request: EstimateRequest
    binary: str | None


def compare_fidelities(
    text: str, path: Path, request: EstimateRequest, binary: str | None
) -> Fidelities:
    """The fidelities that `text` names: "analytic,compiled=DIR,simulated".

    DIR is another capture of the same step; without one it is `path`. Raises FlintError FL718 for an unknown or repeated name, what reading captures raises, and what the
    cluster or the binary does.
    """
    from flint.tools.simulators.fidelities import require_fidelity, side_by_side

    question = Question(path, request, binary)
    pairs = [part.strip().partition("=")[::2] for part in text.split(",")]
    for name, _ in pairs:
        require_fidelity(name)
    places = {name: Path(place) if place else question.path for name, place in pairs}
    if len(places) < len(pairs):
        raise FlintError("FL718", f"a fidelity is named twice: {text}", help="name each once")
    columns = _Columns(question, frozenset(places))
    sources = {name: columns.source(name, place) for name, place in places.items()}
    own = load_workload(question.path)
    return side_by_side(str(own.metadata.get("name") or "program"), columns.cluster.name, sources)


class _Columns:
    """Makes the columns. A capture that several of them need is read and estimated once."""

    def __init__(self, question: Question, names: frozenset[str]) -> None:
        from flint.cluster.named import load_cluster

        self.cluster = load_cluster(question.request.cluster or "")
        self._question = question
        self._names = names
        self._simulator = _simulator(question.binary) if "simulated" in names else None
        self._workload = cache(load_workload)
        self._estimate = cache(self._estimated)

    def source(self, name: str, place: Path) -> Callable[[], Fidelity]:
        """What makes the column `name` of the capture at `place`. Raises what reading that raises."""
        workload = self._workload(place)
        return {
            "analytic": lambda: self._analytic(workload, place),
            "compiled": lambda: self._compiled(workload, place),
            "cycles": lambda: self._compiled(workload, place, timing="compiler"),
            "simulated": lambda: self._simulated(workload, place),
        }[name]

    def _analytic(self, workload: Workload, place: Path) -> Fidelity:
        from flint.tools.simulators.fidelities import FIDELITIES, of_estimate

        if workload.compiled_by is not None and "compiled" in self._names:
            raise FlintError(
                "FL718",
                f"{place.name} was made by {workload.compiled_by}: analytic=DIR takes another capture",
            )
        return of_estimate("analytic", FIDELITIES["analytic"], self._estimate(place))

    def _compiled(self, workload: Workload, place: Path, timing: str = "model") -> Fidelity:
        from flint.tools.simulators.fidelities import of_estimate

        if workload.compiled_by is None:
            raise FlintError(
                "FL718",
                f"{place.name} was not made by a compiler: capture it with --compiler and -o DIR, "
                "then NAME=DIR takes it",
            )
        if timing == "compiler":
            by = f"flint estimate --timing compiler, of what {workload.compiled_by} made"
            return of_estimate("cycles", by, self._estimate(place, timing))
        by = f"flint estimate, of what {workload.compiled_by} made"
        return of_estimate("compiled", by, self._estimate(place))

    def _simulated(self, workload: Workload, place: Path) -> Fidelity:
        from flint.tools.simulators.traced import TracedWorkload

        q = self._question.request
        traced = TracedWorkload(workload, self.cluster, q.profile or "", q, self._simulator)
        return traced.simulated(self._estimate(place))

    def _estimated(self, place: Path, timing: str | None = None) -> Estimate:
        from flint.backends.cost.estimate import estimate

        request = self._question.request.but(cluster=self.cluster, timing=timing)
        return estimate(self._workload(place), request)


def _simulator(binary: str | None) -> AstraSim | None:
    """The simulator that is named, by option or environment; None: Flint's own run of its rules."""
    import os

    from flint.io.processes import Patience
    from flint.tools.simulators.astra_sim import BINARY, AstraSim, find_binary
    from flint.tools.simulators.process import Limits, machine_memory_bytes

    if not (binary or os.environ.get(BINARY)):
        return None
    limits = Limits(Patience.from_environment(), machine_memory_bytes())
    return AstraSim(find_binary(binary), limits)
