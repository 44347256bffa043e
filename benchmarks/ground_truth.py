"""Ground truth for replay and prediction: a captured step as ranks of a made-up machine would run it.

The machine is a preset with other constants; each kernel of each rank, and each collective, takes a
random bit more or less, some ranks are a little slower, and ranks meet in their collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.setting import price_kernels
from flint.backends.cost.simulate.timeline import (
    POLICIES,
    ClassTimeline,
    ClassWork,
    Timeline,
    previous_on,
    simulate,
)
from flint.backends.cost.software import default_profile
from flint.cluster.models import Cluster
from flint.ir.builder import ProgramBuilder
from flint.ir.made_by import MeasuredBy, MeasuredClass
from flint.ir.program import Int64s, Kind, Program
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.passes.profiles import kernels_for

#: What the machine's driver calls its chips.
DEVICE = "NVIDIA H100 80GB HBM3"
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
    priced = price_kernels(kernels, cluster, placement, policy, unpriced_is_zero=False)
    owner = captured.class_of_ranks()
    shared: dict[tuple[object, ...], float] = {}
    works = [
        _rank(priced.works[int(owner[r])], r, random, (jitter, slower), shared)
        for r in range(captured.mesh.size)
    ]
    works = [replace(w, peers=_peers(w, rank)) for rank, w in enumerate(works)]
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


def _peers(work: ClassWork, rank: int) -> dict[int, int]:
    """For each row that receives, the rank that sends."""
    program = work.program
    found = {}
    for row in np.flatnonzero(program.kind == Kind.RECV).tolist():
        source = int(program.routes[program.route[row]].sources(program.mesh)[rank])
        if source >= 0 and source != rank:
            found[row] = source
    return found


def measured(truth: Truth) -> Workload:
    """The truth as a workload made of profiles, without their files: of programs that no writer has
    a form for. Kernels keep what a captured program says of them; nothing says what the host did."""
    mesh, tracks = truth.workload.mesh, truth.timeline.classes
    names = [str(s) for s in truth.timeline.streams]
    programs = tuple(_as_recorded(track, names) for track in tracks)
    by = MeasuredBy("made up", DEVICE, tuple(
        MeasuredClass(rank, track.total_ns, 1) for rank, track in enumerate(tracks)
    ))  # fmt: skip
    classes = tuple(RankClass(f"rank {r}", r, {}, (r,)) for r in range(mesh.size))
    return Workload(mesh, programs, classes, {"name": "truth", "measured": by.to_json()})


def _as_recorded(track: ClassTimeline, streams: list[str]) -> Program:
    """The nodes of a rank as rows, each after what it waits for and after the one before it."""
    work, builder = track.work, ProgramBuilder(track.work.program.mesh)
    previous = previous_on(work.stream[work.nodes.row])
    for node, row in enumerate(work.nodes.row.tolist()):
        r = work.program.row(row)
        received = r.kind is Kind.RECV
        took = work.duration_ns[row] if received else track.end_ns[node] - track.start_ns[node]
        builder.add(
            r.opcode, r.kind, op=r.op, dtype=r.dtype, shape=r.shape, result_bytes=r.result_bytes,
            operand_bytes=r.operand_bytes, flops=r.flops, dims=r.dims, product=r.product, mask=r.mask,
            collective=r.collective, group=r.group, comm_bytes=r.comm_bytes, route=r.route,
            channel=r.channel, phase=r.phase, flags=r.flags, stream=streams[work.stream[row]],
            deps=(*work.nodes.dependencies(node).tolist(), previous[node]),
            measured_ns=max(round(float(took)), 1),
        )  # fmt: skip
    return builder.build()


def _members(groups: Int64s, rank: int) -> tuple[int, ...]:
    return next(tuple(sorted(g.tolist())) for g in groups if rank in g)
