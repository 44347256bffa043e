"""Ground truth for replay and prediction: a captured step as ranks of a made-up machine would run it.

The machine is a preset with other constants; each kernel of each rank, and each collective, takes a
random bit more or less, some ranks are a little slower, and ranks meet in their collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flint.backends.cost.chips.peaks import tf32_kinds
from flint.backends.cost.estimate import default_profile
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.price import price
from flint.backends.cost.simulate.timeline import POLICIES, ClassWork, Timeline, simulate
from flint.cluster.models import Cluster
from flint.ir.program import Int64s, Kind
from flint.ir.workload import Workload
from flint.rewrite import kernels_for

#: What the machine's constants are times those of the preset.
KERNEL_FACTORS = {
    "gemm.efficiency": 0.82,
    "gemm.memory_efficiency": 0.9,
    "attention.efficiency.128": 0.75,
    "attention.memory_efficiency": 0.9,
    "elementwise.memory_efficiency": 0.88,
    "elementwise.launch_ns": 1.25,
    "softmax.memory_efficiency": 0.9,
    "norm.memory_efficiency": 0.8,
    "norm.launch_ns": 1.2,
    "gemm.launch_ns": 1.3,
}
NETWORK_FACTORS = {"efficiency": 0.78, "nvls_efficiency": 0.85, "a0_ns": 1.6, "c": 1.2}
HOST_LAUNCH_NS = 4_000.0


def machine(preset: str = "h100-dgx", host_launch_ns: float = HOST_LAUNCH_NS) -> Cluster:
    """The preset with other constants and a host that takes time to launch."""
    found = Cluster.load(preset)
    data = found.model_dump()
    for family in data["chip"].values():
        if isinstance(family, dict) and "constants" in family:
            _scaled(family["constants"], KERNEL_FACTORS)
    for network in data["network"]:
        _scaled(network["constants"], NETWORK_FACTORS)
    data["host_launch_ns"] = {"value": host_launch_ns, "kind": "assumed", "source": "made up"}
    data["name"] = "machine"
    return Cluster.model_validate(data)


def _scaled(constants: dict[str, dict[str, object]], factors: dict[str, float]) -> None:
    for name, factor in factors.items():
        if name in constants:
            constants[name]["value"] = float(str(constants[name]["value"])) * factor


@dataclass(frozen=True, eq=False)
class Truth:
    """A step as it ran: a class of the timeline for each rank."""

    workload: Workload
    timeline: Timeline

    @property
    def step_ns(self) -> float:
        """When the last rank ends."""
        return self.timeline.total_ns


def run(
    captured: Workload,
    cluster: Cluster,
    *,
    jitter: float = 0.04,
    slower: float = 0.01,
    seed: int = 0,
) -> Truth:
    """Run a captured step on all ranks of its mesh.

    `jitter` is the standard deviation of each time, as a share of it; `slower` that of ranks.
    """
    random = np.random.default_rng(seed)
    profile = default_profile(captured, cluster)
    kernels, policy = kernels_for(captured, profile), POLICIES["overlap"]
    placement = NetworkPlacement(captured.mesh, cluster)
    priced = price(kernels, cluster, placement, policy, tf32=tf32_kinds(profile, cluster.chip))
    owner = captured.class_of_ranks()
    shared: dict[tuple[object, ...], float] = {}
    works = [
        _rank(priced.works[int(owner[r])], r, random, (jitter, slower), shared)
        for r in range(captured.mesh.size)
    ]
    return Truth(captured, simulate(works, priced.streams, policy, every_node=True))


def _rank(
    work: ClassWork,
    rank: int,
    random: np.random.Generator,
    spread: tuple[float, float],
    shared: dict[tuple[object, ...], float],
) -> ClassWork:
    """The work of one rank. Members of a group share the time of a collective."""
    program, (jitter, slower) = work.program, spread
    factor = np.maximum(1 + jitter * random.standard_normal(len(program)), 0.5)
    factor *= max(1 + slower * random.standard_normal(), 0.9)
    together: dict[int, tuple[int, ...]] = {}
    turns: dict[object, int] = {}
    for row in np.flatnonzero(program.kind == Kind.COLLECTIVE).tolist():
        if program.group[row] < 0:
            continue
        members = _members(program.groups[program.group[row]].members(program.mesh), rank)
        turn = turns[members] = turns.get(members, -1) + 1
        together[row] = members
        key = (members, turn)
        if key not in shared:
            shared[key] = max(1 + jitter * random.standard_normal(), 0.5)
        factor[row] = shared[key]
    return replace(work, duration_ns=work.duration_ns * factor, together=together, peers={})


def _members(groups: Int64s, rank: int) -> tuple[int, ...]:
    return next(tuple(sorted(g.tolist())) for g in groups if rank in g)
