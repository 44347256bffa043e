"""A captured step as traces in a scratch folder, simulated: the fidelity `simulated`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from flint.backends.chakra import write
from flint.backends.cost.astrasim.run import simulate_traces
from flint.backends.cost.estimate import Estimate
from flint.backends.cost.trace_timing import timed_kernels
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.io.scratch import scratch_folder
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.tools.simulators.astra_sim import AstraSim
from flint.tools.simulators.fidelities import Fidelity, of_trace
from flint.tools.simulators.inputs import find_inputs

#: A step with more nodes on all ranks together is not written for a comparison: minutes.
MOST_NODES = 3_000_000


@dataclass(frozen=True)
class TracedWorkload:
    """A workload on a cluster, to be written with its durations there and simulated.

    `simulator` is a binary of ASTRA-sim; without one Flint runs the traces by its rules.
    """

    workload: Workload
    cluster: Cluster
    profile: str = ""
    request: EstimateRequest = field(default_factory=EstimateRequest)
    simulator: AstraSim | None = None

    def simulated(self, e: Estimate) -> Fidelity:
        """What the simulator says. `e` is an estimate of the same, which tells how large it is.

        Raises FlintError FL718 for a step that is too large, and what writing, the rules (FL707) and
        the simulator (FL710 to FL716) raise.
        """
        nodes = sum(
            c.ranks * len(t.start_ns) for c, t in zip(e.classes, e.timeline.classes, strict=True)
        )
        if nodes > MOST_NODES:
            raise FlintError("FL718", f"the traces have {nodes:,} nodes: flint simulate runs them")
        with scratch_folder() as scratch:
            folder = scratch / "traces"
            kernels, timing = timed_kernels(
                self.workload,
                self.cluster,
                self.request,
                profile=self.profile,
            )
            write(kernels, folder, timing=timing, link=True)
            return self._by_binary(folder) if self.simulator else _by_rules(folder)

    def _by_binary(self, folder: Path) -> Fidelity:
        assert self.simulator is not None
        inputs = find_inputs(folder, [folder / "network.yml"])
        run = self.simulator.run(inputs, inputs.cases[0])
        if run.failure is not None:
            raise run.failure
        end = run.ends[run.slowest]
        compute = end.compute_ns
        if compute is None and end.exposed_ns is not None:
            compute = end.end_ns - end.exposed_ns
        by = f"the traces, by {self.simulator.binary.name}"
        return of_trace(inputs.traces.paths[run.slowest], end.end_ns, compute, by)


def _by_rules(folder: Path) -> Fidelity:
    step = simulate_traces(folder, folder / "network.yml")
    rank = step.slowest
    by = "the traces, by Flint's run of ASTRA-sim's rules"
    path = folder / f"trace.{rank}.et"
    return of_trace(path, step.step_time_ns, step.compute_ns[rank], by)
