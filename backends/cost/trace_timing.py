"""What a cluster adds to execution traces: kernels with durations, and the simulator's hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flint.backends.chakra.writing.simulator_files import Timing, placeholder_hardware
from flint.backends.cost.astrasim.files import simulated_hardware
from flint.backends.cost.estimate import estimate
from flint.backends.cost.estimate_numbers import main_type_and_peak
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.setting import price_kernels
from flint.backends.cost.simulate.layers import prepared_apart
from flint.backends.cost.simulate.timeline import POLICIES
from flint.backends.cost.software import default_profile, stack_for, with_stack
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
    options: dict[str, Any] = {
        "mapping": request.mapping,
        "unpriced_is_zero": request.unpriced_is_zero,
    }
    if on is None or workload.measured_by:
        return measured_kernels(workload, on, **options)
    return timed_kernels(workload, on, **options)


def timed_kernels(
    workload: Workload,
    cluster: Cluster,
    *,
    profile: str = "",
    mapping: Mapping[str, str] | str | None = None,
    unpriced_is_zero: bool = False,
) -> tuple[Workload, Timing]:
    """The kernels of a workload, none that has a price below 1 us if it can be merged.

    `profile` is whose kernels; "" takes that of an earlier rewrite, or what `estimate` would.
    Raises FlintError FL405 (profile), FL703 (mapping), FL704 (an operation without a price), FL705
    (a chip without what is needed).
    """
    profile = profile or str(workload.metadata.get("profile", ""))
    profile = profile or default_profile(workload, cluster)
    cluster = with_stack(cluster, stack_for(profile, cluster))
    placement = NetworkPlacement(workload.mesh, cluster, mapping)
    kernels = kernels_for(workload, profile)
    policy = POLICIES["overlap"]  # durations of kernels do not depend on it
    priced = price_kernels(kernels, cluster, placement, policy, unpriced_is_zero)
    by_program = {id(w.program): w.duration_ns for w in priced.works}
    programs, durations = [], []
    for program in kernels.programs:
        duration_of = by_program.get(id(program))
        merged, duration_ns = _merged(prepared_apart(program), duration_of)
        programs.append(merged)
        durations.append(duration_ns)
    hardware = simulated_hardware(placement, _roofline_type(workload, cluster))
    timing = Timing(cluster.name, tuple(durations), replace(hardware, has_durations=True))
    return replace(kernels, programs=tuple(programs)), timing


def measured_kernels(
    workload: Workload,
    cluster: Cluster | None = None,
    *,
    mapping: Mapping[str, str] | str | None = None,
    unpriced_is_zero: bool = False,
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
    estimated = estimate(
        workload, EstimateRequest(on, mapping=mapping, unpriced_is_zero=unpriced_is_zero)
    )
    by_program = {id(c.work.program): c.work.duration_ns for c in estimated.timeline.classes}
    durations = tuple(by_program.get(id(p), np.zeros(len(p))) for p in kernels.programs)
    placement = NetworkPlacement(workload.mesh, on, mapping)
    hardware = simulated_hardware(placement, _roofline_type(workload, on))
    name = on.name if cluster else ""
    return kernels, Timing(name, durations, replace(hardware, has_durations=True))


def _roofline_type(workload: Workload, cluster: Cluster) -> str:
    """The type whose peak a simulator is told: of most products, if the chip's file has its peak."""
    dtype, _ = main_type_and_peak(workload, cluster)
    peaks = cluster.chip.peak_flops_per_s
    return dtype if dtype in peaks else max(peaks, key=lambda d: peaks[d].value)


def _merged(program: Program, duration_ns: Float64s | None) -> tuple[Program, Float64s]:
    if duration_ns is None:  # no rank class runs it
        return program, np.zeros(len(program))
    of_kernels = np.where(program.kind == Kind.COMPUTE, duration_ns, 0.0)
    merge = MergeSmallKernels(of_kernels)
    merged, durations = merge.merged(program)
    merged.verify()
    return merged, durations
