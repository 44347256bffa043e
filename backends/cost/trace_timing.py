"""What a cluster adds to execution traces: kernels with durations, and the simulator's hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flint.backends.chakra.writing.simulator_files import (
    SimulatedHardware,
    Timing,
    placeholder_hardware,
)
from flint.backends.cost.astrasim.files import simulated_hardware
from flint.backends.cost.estimate import estimate
from flint.backends.cost.estimate_numbers import main_type_and_peak
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.setting import price_kernels
from flint.backends.cost.simulate.layers import prepared_apart
from flint.backends.cost.simulate.timeline import POLICIES, ClassWork
from flint.backends.cost.software import default_profile, profile_on, stack_of, with_stack
from flint.cluster.devices import cluster_of_device
from flint.cluster.models import Cluster
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.arrays import Float64s
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.passes.profiles import RECORDED, kernels_for
from flint.passes.rewrites.small_kernels import MergeSmallKernels
from flint.requests.estimate import EstimateRequest


def timed_nodes(
    workload: Workload, granularity: str, request: EstimateRequest
) -> tuple[Workload, Timing]:
    """What traces with durations are of: those of a request's cluster, or those that were measured.

    Raises FlintError FL406 for nodes that are not kernels, and what the two functions below raise.
    """
    if granularity != "kernel":
        raise FlintError(
            "FL406",
            f"nodes with durations are kernels, not '{granularity}'",
            help="omit the granularity, or the cluster",
        )
    on = None if request.cluster is None else load_cluster(request.cluster)
    if on is None or workload.measured_by:
        return measured_kernels(workload, on, request)
    return timed_kernels(workload, on, request)


def timed_kernels(
    workload: Workload,
    cluster: Cluster,
    request: EstimateRequest | None = None,
    *,
    profile: str = "",
) -> tuple[Workload, Timing]:
    """The kernels of a workload, none that has a price below 1 us if it can be merged.

    `profile` is whose kernels; "" takes that of an earlier rewrite, or what `estimate` would. Of the
    `request` count the stack, where axes lie, what has no price, and which ranks differ.
    Raises FlintError FL405 (profile), FL703 (mapping), FL704 (an operation without a price), FL705
    (a chip without what is needed), FL725 (stack).
    """
    request = request or EstimateRequest()
    asked = profile or request.profile or str(workload.metadata.get("profile", ""))
    software = stack_of(workload, cluster, request.stack, asked)
    profile = profile_on(software, default_profile(workload, cluster), asked)
    cluster = with_stack(cluster, software)
    placement = NetworkPlacement(workload.mesh, cluster, request.mapping)
    kernels = kernels_for(workload, profile)
    policy = POLICIES["overlap"]  # durations of kernels do not depend on it
    on = cluster, placement, policy, request.unpriced_is_zero
    priced = price_kernels(kernels, *on)
    by_program = {id(w.program): w.duration_ns for w in priced.works}
    others: list[ClassWork] = []
    if request.slow or request.chip_map:
        from flint.backends.cost.unlike import unlike_of

        if unlike := unlike_of(request, kernels, placement):
            kernels = unlike.split()
            others = list(price_kernels(kernels, *on, unlike).works)
    programs, durations = [], []
    of_class: dict[int, Float64s] = {}
    for number, program in enumerate(kernels.programs):
        of_all = by_program.get(id(program))
        mine = {
            i: w.duration_ns
            for i, w in enumerate(others)
            if kernels.classes[i].program == number and (w.duration_ns != of_all).any()
        }
        merged, found = merged_kernels(prepared_apart(program), of_all, list(mine.values()))
        programs.append(merged)
        durations.append(found[0])
        of_class |= dict(zip(mine, found[1:], strict=True))
    timing = Timing(cluster.name, tuple(durations), hardware_of(workload, placement), of_class)
    return replace(kernels, programs=tuple(programs)), timing


def measured_kernels(
    workload: Workload,
    cluster: Cluster | None,
    request: EstimateRequest,
) -> tuple[Workload, Timing]:
    """A workload made of profiles, and the time of each row, of the host and of communication too.

    That is what was measured; on a `cluster`, what `estimate` takes there. None of them is merged.
    Without one, the hardware beside the traces is that of the device, if Flint knows it.
    """
    by = workload.measured_by
    assert by is not None
    kernels = kernels_for(workload, RECORDED)
    on = cluster or cluster_of_device(by.device)
    if on is None:
        durations = tuple(p.measured_ns.astype(np.float64) for p in kernels.programs)
        hardware = replace(placeholder_hardware(workload.mesh), has_durations=True)
        return kernels, Timing("", durations, hardware)
    alike = EstimateRequest(on, mapping=request.mapping, unpriced_is_zero=request.unpriced_is_zero)
    estimated = estimate(workload, alike)
    by_program = {id(c.work.program): c.work.duration_ns for c in estimated.timeline.classes}
    durations = tuple(by_program.get(id(p), np.zeros(len(p))) for p in kernels.programs)
    of_class: dict[int, Float64s] = {}
    if request.slow or request.chip_map:
        estimated = estimate(workload, alike.but(slow=request.slow, chip_map=request.chip_map))
        kernels = replace(kernels, classes=estimated.kernels.classes)
        of_class = {i: c.work.duration_ns for i, c in enumerate(estimated.timeline.classes)}
    placement = NetworkPlacement(workload.mesh, on, request.mapping)
    name = on.name if cluster else ""
    return kernels, Timing(name, durations, hardware_of(workload, placement), of_class)


def hardware_of(workload: Workload, placement: NetworkPlacement) -> SimulatedHardware:
    """What a simulator is told beside traces with durations.

    The peak is that of the type of most products, if the chip's file has it.
    """
    dtype, _ = main_type_and_peak(workload, placement.cluster)
    peaks = placement.cluster.chip.peak_flops_per_s
    dtype = dtype if dtype in peaks else max(peaks, key=lambda d: peaks[d].value)
    return replace(simulated_hardware(placement, dtype), has_durations=True)


def merged_kernels(
    program: Program, duration_ns: Float64s | None, others: Sequence[Float64s] = ()
) -> tuple[Program, list[Float64s]]:
    """The program with small kernels merged by `duration_ns`, and the rows' times by that and `others`."""
    if duration_ns is None:  # no rank class runs it
        return program, [np.zeros(len(program))]
    computes = program.kind == Kind.COMPUTE
    of_all, *late = (np.where(computes, ns, 0.0) for ns in (duration_ns, *others))
    merged, durations = MergeSmallKernels(of_all).merged_with(program, late)
    merged.verify()
    return merged, durations
