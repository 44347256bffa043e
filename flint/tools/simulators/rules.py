"""Flint's own run of ASTRA-sim's rules as a simulator, and traces of late ranks for any simulator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from flint.backends.chakra.reading.reader import TraceNode, read, read_bytes, records, unpack
from flint.backends.chakra.schema import VALUE_FIELDS, NodeType, messages
from flint.backends.chakra.writing.encode import varint
from flint.backends.cost.astrasim.disturbance import UNDISTURBED, Disturbance
from flint.backends.cost.astrasim.run import simulate_traces
from flint.backends.cost.astrasim.step import NeverEndsError
from flint.errors import FlintError
from flint.io.scratch import scratch_folder
from flint.tools.simulators.astra_sim import Progress
from flint.tools.simulators.inputs import Case, Inputs
from flint.tools.simulators.outcome import SimulatedRun
from flint.tools.simulators.rank_end import RankEnd


@dataclass(frozen=True)
class FlintRules:
    """Runs traces by ASTRA-sim's rules; `disturbance` says which ranks are late."""

    disturbance: Disturbance = UNDISTURBED

    @property
    def name(self) -> str:
        """What stands where others have the name of a binary."""
        return "Flint's own run of ASTRA-sim's rules"

    def run(self, inputs: Inputs, case: Case, progress: Progress | None = None) -> SimulatedRun:
        """Simulate on one network. That ranks wait forever is the `failure` of the run.

        Raises FlintError FL707 for what is not modeled, FL727 for a late rank that is not there.
        """
        run = SimulatedRun(case.network.name, case.system.name, case.fabric, {})
        place = inputs.traces.folder / inputs.traces.prefix
        try:
            step = simulate_traces(
                place, case.network, case.system, inputs.memory, disturbance=self.disturbance
            )
        except NeverEndsError as error:
            return replace(run, failure=error, waiting=error.waiting)
        if progress is not None:
            progress(case.fabric.world, case.fabric.world)
        ends = zip(step.end_ns, step.compute_ns, strict=True)
        told = {r: RankEnd(end, end - compute, compute) for r, (end, compute) in enumerate(ends)}
        return replace(run, ends=told)


def beside_undisturbed(inputs: Inputs, case: Case, run: SimulatedRun) -> SimulatedRun:
    """The run of late ranks, with the time that Flint's rules say where none is late."""
    try:
        calm = FlintRules().run(inputs, case)
    except FlintError as error:
        told = f"Flint's rules cannot give the undisturbed time: {error.message}"
        return replace(run, notes=(*run.notes, told))
    return replace(run, undisturbed_ns=calm.step_time_ns)


@contextlib.contextmanager
def disturbed_inputs(inputs: Inputs, disturbance: Disturbance) -> Iterator[Inputs]:
    """The same inputs, with the times of late ranks written into copies of their traces."""
    disturbance.require_ranks(inputs.ranks)
    with scratch_folder() as scratch:
        folder = scratch / "late"
        folder.mkdir()
        paths = {}
        for rank, path in inputs.traces.paths.items():
            paths[rank] = folder / path.name
            data = read_bytes(path)
            if disturbance.touches(rank):
                nodes = sorted(read(path).nodes, key=lambda n: n.id)
                data = _with_times(path, data, disturbance.nodes(rank, nodes))
            paths[rank].write_bytes(data)
        yield replace(inputs, traces=replace(inputs.traces, folder=folder, paths=paths))


def _with_times(path: Path, data: bytes, nodes: list[TraceNode]) -> bytes:
    """A file with the durations and the work of `nodes`."""
    known = {n.id: n for n in nodes}
    data = unpack(data, str(path))
    spans = list(records(data, str(path)))
    found = [data[slice(*spans[0])]]
    for start, stop in spans[1:]:
        message = messages().Node.FromString(data[start:stop])
        if message.type == NodeType.COMP:
            node = known[message.id]
            message.duration_micros = node.duration_micros
            for attribute in message.attr:
                kind, value = node.attributes[attribute.name]
                if attribute.name in ("num_ops", "tensor_size") and kind in VALUE_FIELDS:
                    setattr(attribute, kind, value)
        found.append(message.SerializeToString(deterministic=True))
    return b"".join(varint(len(r)) + r for r in found)
