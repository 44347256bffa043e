"""Whether traces end at the times that they have: a run by the rules of ASTRA-sim.

It takes the network.yml and system.json beside the traces, and made-up ones where there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flint.backends.chakra.checking.liveness import Deadlock
from flint.backends.chakra.reading.trace_files import TraceSet
from flint.backends.chakra.writing.simulator_files import BANDWIDTHS, LATENCIES
from flint.backends.cost.astrasim.files import read_fabric
from flint.backends.cost.astrasim.ring import Dimension, Fabric
from flint.backends.cost.astrasim.run import require_modelled, run_traces
from flint.backends.cost.astrasim.step import NeverEndsError, Waiting
from flint.backends.cost.astrasim.traces import TraceReader
from flint.cluster.astrasim.files import read_system
from flint.cluster.astrasim.system import SystemFile
from flint.errors import FlintError


@dataclass(frozen=True)
class TimedRun:
    """What became of ranks at certain times. `times` says whose these are, "" for those of the files.

    `deadlock` is None if all ended.
    """

    deadlock: Deadlock | None
    times: str


def run_at_their_times(traces: TraceSet) -> TimedRun:
    """Run the traces to their end, or until ranks wait for each other.

    Raises FlintError FL602 to FL605, or FL707 where Flint has no rules for a node or a setting.
    """
    fabric, system, times = _hardware(traces)
    try:
        run_traces(TraceReader(traces, fabric.sizes, system), traces, fabric, system, name="")
    except NeverEndsError as error:
        return TimedRun(_explain(error.stuck, error.waiting), times)
    return TimedRun(None, times)


def _hardware(traces: TraceSet) -> tuple[Fabric, SystemFile, str]:
    """Network and settings beside the traces, or made-up ones and why."""
    network, settings = traces.folder / "network.yml", traces.folder / "system.json"
    try:
        fabric, system = read_fabric(network), read_system(settings)
    except FlintError as error:
        why = error.message
    else:
        if fabric.world == traces.world:
            require_modelled(settings, system, fabric)
            return fabric, system, ""
        why = f"network.yml is of {fabric.world} ranks"
    sizes = traces.dimensions or (traces.world,)
    links = tuple(Dimension(BANDWIDTHS[-1], LATENCIES[-1]) for _ in sizes)
    made_up = SystemFile.model_validate({"peak-perf": 1, "local-mem-bw": 1})
    return Fabric(("Switch",) * len(sizes), sizes, links), made_up, f"made-up times, for {why}"


def _explain(stuck: Sequence[int], waiting: Sequence[Waiting]) -> Deadlock:
    """Follow who waits for whom from the first rank that does not end, until it repeats."""
    first_of: dict[int, Waiting] = {}
    for each in sorted(waiting, key=lambda w: (w.is_message, w.rank, w.node)):
        first_of.setdefault(each.rank, each)
    path: list[Waiting] = []
    rank = stuck[0]
    while (found := first_of.get(rank)) and found not in path and found.absent:
        path.append(found)
        rank = found.absent[0]
    cycle = path[path.index(found) :] if found in path else path
    if not cycle:
        return Deadlock(stuck[0], -1, False, f"rank {stuck[0]} never ends")
    shown = [_sentence(w) for w in cycle]
    if len(shown) > 6:
        shown = [*shown[:5], f"... {len(shown) - 5} more"]
    only_messages = all(w.is_message for w in cycle)
    return Deadlock(cycle[0].rank, cycle[0].node, only_messages, "; ".join(shown))


def _sentence(waiting: Waiting) -> str:
    rank, node, other = waiting.rank, waiting.node, waiting.absent[0]
    if waiting.is_message:
        return f"rank {rank} waits in node {node} for a message of rank {other}"
    return f"rank {rank} holds its slot for node {node} until rank {other} joins"
