"""The best points as traces, and what another simulator says of them.

The traces are those of `flint capture -c`: files of the simulator beside them describe the machine of the
point, its changes, its topology and where the point lays the mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.text import format_duration, headings, text_table
from flint.tools.explore.evaluation.evaluate import Evaluator
from flint.tools.explore.machine.cluster_changes import machine_of
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result, Status
from flint.tools.explore.subject import Subject, estimated

if TYPE_CHECKING:
    from flint.backends.chakra import WriteReport
    from flint.tools.simulators.astra_sim import AstraSim
    from flint.tracing import Trace

#: A simulator holds a trace for each rank: more are not written unless they are asked for.
MOST_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class SimulatedPoint:
    """A point beside its estimate. `rules_ns` is what ASTRA-sim's rules give, by Flint's own run of them;
    `simulator_ns` what the simulator itself said, where one was given. 0: nothing, and `reason` says why.
    """

    result: Result
    folder: Path
    rules_ns: float = 0.0
    simulator_ns: float = 0.0
    reason: str = ""

    @property
    def ratio(self) -> float:
        """The simulator's time over the estimate's; of its rules without a simulator."""
        said = self.simulator_ns or self.rules_ns
        return said / self.result.step_time_ns if self.result.step_time_ns else 0.0


def simulate_best(
    subject: Subject,
    ranked: Iterable[Result],
    count: int,
    folder: Path,
    *,
    simulator: AstraSim | None = None,
) -> Iterator[SimulatedPoint]:
    """Traces of the first `count` points that fit, in their order, in `folder`/1, /2 ..., simulated.

    Points of more than `MOST_DEVICES` are not written, and say so. Without a `simulator` Flint runs
    ASTRA-sim's rules. Raises what `flint capture` raises for a folder that cannot be written.
    """
    evaluator = Evaluator(subject)
    try:
        fitting = [r for r in ranked if r.status is Status.FITS][:count]
        for number, result in enumerate(fitting, 1):
            place = folder / str(number)
            if result.devices > MOST_DEVICES:
                said = f"{result.devices:,} ranks are more than the limit of {MOST_DEVICES:,}"
                yield SimulatedPoint(result, place, reason=said)
                continue
            write_point(evaluator.trace(result.point), subject, result.point, place)
            yield _simulated(result, place, simulator)
    finally:
        evaluator.close()


def write_point(trace: Trace, subject: Subject, point: Point, folder: Path) -> WriteReport:
    """Write a captured point as `flint capture -c` does, for its machine, software and placement.

    When communication begins (its policy) is the simulator's affair. Raises what `Trace.save` raises.
    """
    from flint.backends.cost.software import default_profile, profile_on, stack_of, with_stack

    machine = machine_of(point)
    request = estimated(subject, point)
    asked = request.profile or ""
    stack = stack_of(trace.workload, machine, request.stack, asked)
    profile = profile_on(stack, default_profile(trace.workload, machine), asked)
    if trace.workload.metadata.get("profile") != profile:
        trace = trace.rewritten(profile)
    return trace.save(
        folder,
        cluster=with_stack(machine, stack),
        mapping=request.mapping,
        unpriced_is_zero=request.unpriced_is_zero,
    )


def _simulated(result: Result, place: Path, simulator: AstraSim | None) -> SimulatedPoint:
    """What the simulator, or its rules, say of traces that were written."""
    from flint.backends.cost.astrasim.run import simulate_traces
    from flint.tools.simulators.backends import Backend
    from flint.tools.simulators.inputs import find_inputs

    try:
        aware = simulator is not None and simulator.backend is Backend.AWARE
        inputs = find_inputs(place, flat=aware)
        case = inputs.cases[0]
        if simulator is None:
            traces = place / inputs.traces.prefix
            step = simulate_traces(traces, case.network, case.system)
            return SimulatedPoint(result, place, rules_ns=step.step_time_ns)
        run = simulator.run(inputs, case)
    except FlintError as error:
        return SimulatedPoint(result, place, reason=error.message)
    if run.failure is not None:
        return SimulatedPoint(result, place, reason=run.failure.message)
    return SimulatedPoint(result, place, simulator_ns=float(run.step_time_ns or 0))


def simulated_table(points: Sequence[SimulatedPoint]) -> str:
    """A row for each point: its estimate, what the simulator says, and where its traces are."""
    columns = headings("># | mesh | >estimate | >simulated | >ratio | traces")
    rows = []
    for number, point in enumerate(points, 1):
        said = point.simulator_ns or point.rules_ns
        rows.append(
            (
                str(number),
                point.result.point.mesh,
                format_duration(point.result.step_time_ns),
                format_duration(said) if said else "-",
                f"{point.ratio:.2f}" if said else "-",
                point.reason or str(point.folder),
            )
        )
    return text_table(columns, rows)
