"""Which measured times an estimate takes: those of the workload itself, and what a user changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flint.backends.cost.chips.peaks import tf32_kinds
from flint.backends.cost.kernel_times import COMPILER, MEASURED, MODEL, find_timing
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.replay.changes import Changes, Replacing, Scaling
from flint.backends.cost.replay.replay import Modelled, Replayed, same_chip, same_network
from flint.backends.cost.replay.table import MeasuredTable, Predicted, table_of
from flint.backends.cost.row_prices import Pricing, RowPrices, Times
from flint.backends.cost.simulate.streams import peers_of, together_of
from flint.backends.cost.simulate.timeline import RECORDED, Policy
from flint.backends.cost.software import stack_for, with_software_of, with_stack
from flint.cluster.devices import cluster_of_device
from flint.cluster.models import Cluster, Quantity, SourceKind
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.arrays import Mask
from flint.ir.measured_by import MeasuredBy
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.rewrite import RECORDED as RECORDED_PROFILE
from flint.rewrite import kernels_for

_DEFAULT_POLICY = "overlap"
#: Profiles whose kernels are launched one by one.
_LAUNCHED = ("eager", "torch")


@dataclass(frozen=True, slots=True)
class Chain:
    """One after the other."""

    steps: tuple[Times, ...]

    def of(self, program: Program, prices: RowPrices) -> RowPrices:
        """What the last makes of it."""
        for step in self.steps:
            prices = step.of(program, prices)
        return prices


def recorded_cluster(by: MeasuredBy) -> Cluster:
    """The cluster of the device that profiles are of. Raises FlintError FL831 where Flint has none."""
    found = cluster_of_device(by.device)
    if found is None:
        raise FlintError(
            "FL831",
            f"Flint has no cluster of '{by.device}', which the profiles are of",
            help="name one with -c CLUSTER (flint clusters list has those that come with Flint)",
        )
    return found


def cluster_for(workload: Workload, named: str | Path | Cluster | None) -> Cluster:
    """The cluster that a user names, or that of the device which a workload was measured on.

    Raises FlintError FL831 for a device that Flint does not know, FL702 without either, and those of
    `load_cluster`.
    """
    if named is not None:
        return load_cluster(named)
    if workload.measured_by is None:
        raise FlintError(
            "FL702",
            "no cluster is named, and no profile says which device the program ran on",
            help="give the name of a preset (-c h100-dgx), or the path of a TOML file",
        )
    return recorded_cluster(workload.measured_by)


def timing_of(workload: Workload, name: str | None, *, has_table: bool = False) -> str:
    """Whose times kernels have: those that were measured, where there are any.

    `has_table`: other workloads were, whose times are taken.

    Raises FlintError FL703 for an unknown name, FL832 where a workload has no such times.
    """
    measured = has_table or workload.measured_by is not None
    if has_table and workload.measured_by is not None:
        raise FlintError(
            "FL832",
            "the workload was measured itself: it takes no times of others",
            help="leave --measured out; it is for programs that were captured",
        )
    found = (MEASURED if measured else MODEL) if name is None else find_timing(name)
    if found == MEASURED and not measured:
        raise FlintError(
            "FL832",
            "the workload was not measured: no profile was imported to it",
            help="flint import FILE... -o m.flint makes one of profiles; --measured m.flint takes its times",
        )
    if measured and found == COMPILER:
        raise FlintError(
            "FL832",
            "measured times and a compiler's cycles are not for one estimate",
            help="leave --timing out",
        )
    return found


def policy_of(workload: Workload, asked: Policy | None, default: Policy) -> Policy:
    """The policy of a workload: what was recorded is not moved. Raises FlintError FL832."""
    policy = asked or default
    if workload.measured_by is None:
        return policy
    if asked is not None and policy.name not in (_DEFAULT_POLICY, RECORDED.name):
        raise FlintError(
            "FL832",
            f"policy '{policy.name}' is not for a workload made of profiles, which has its order in time",
            help="leave --overlap out",
        )
    return RECORDED


def refuse_profile(profile: str) -> None:
    """Raise FlintError FL832 for another profile than "recorded"."""
    if profile not in ("", RECORDED_PROFILE):
        raise FlintError(
            "FL832",
            f"profile '{profile}' is not for a workload made of profiles: its kernels are those that ran",
            help="leave --profile out",
        )


def measured_table(workloads: Sequence[Workload], cluster: Cluster) -> MeasuredTable | None:
    """The table of workloads made of profiles; None for none of them.

    Where they are of the hardware of `cluster`, or of a device that Flint does not know, the constants
    of that count. Raises FlintError FL832 for a workload that was not measured, and for several devices.
    """
    found = []
    for workload in workloads:
        timing_of(workload, MEASURED)
        kernels = kernels_for(workload, RECORDED_PROFILE)
        pricing = _recorded_pricing(kernels, cluster)
        alone = [_alone(kernels, n) for n in range(len(kernels.programs))]
        found.append((kernels, pricing, alone))
    if len({p.cluster.name for _, p, _ in found}) > 1:
        raise FlintError(
            "FL832",
            "the measured workloads are of several devices: "
            + ", ".join(sorted({p.cluster.name for _, p, _ in found})),
            help="take times of one device at a time",
        )
    return table_of(found) if found else None


def _recorded_pricing(workload: Workload, cluster: Cluster) -> Pricing:
    """How the models price a measured workload on the cluster that it was measured on."""
    by = workload.measured_by
    known = cluster_of_device(by.device) if by else None
    base = cluster if known is None or same_chip(known.chip, cluster.chip) else known
    base = with_stack(base, stack_for(RECORDED_PROFILE, base))
    placement = NetworkPlacement(workload.mesh, base)
    return Pricing(base, placement, tf32_kinds(RECORDED_PROFILE, base.chip), lenient=True)


def launched_by(table: MeasuredTable | None, cluster: Cluster, profile: str) -> Cluster:
    """The cluster with the host that was measured, for programs whose kernels a host launches."""
    if table is None or not table.host_ns or profile not in _LAUNCHED or cluster.host_launch_ns:
        return cluster
    source = "the mean of measured launches, one for each call of an operator"
    launch = Quantity(value=table.host_ns, kind=SourceKind.MEASURED, source=source)
    return cluster.model_copy(update={"host_launch_ns": launch})


def times_of(
    workload: Workload,
    pricing: Pricing,
    timing: str,
    changes: Changes,
    table: MeasuredTable | None = None,
) -> Times | None:
    """What changes the models' prices; None for nothing.

    A `table` of other measured workloads prices what was not measured itself.
    """
    steps: list[Times] = []
    if replaced := [(r.part, r.cluster) for r in changes.replacements if r.cluster]:
        steps.append(Replacing(tuple((part, _on(workload, pricing, c)) for part, c in replaced)))
    if workload.measured_by:
        steps.append(_replayed(workload, pricing) if timing == MEASURED else Modelled())
    elif table is not None:
        same = same_chip(table.cluster.chip, pricing.cluster.chip)
        base = pricing.cluster if same else table.cluster
        steps.append(Predicted(table, _on(workload, pricing, base)))
    if changes:
        steps.append(Scaling(changes, pricing))
    return Chain(tuple(steps)) if steps else None


def _replayed(workload: Workload, pricing: Pricing) -> Replayed:
    """Measured times, on the cluster of `pricing`; a device that Flint does not know is taken to be its."""
    by = workload.measured_by
    assert by is not None
    base = cluster_of_device(by.device) or pricing.cluster
    return Replayed(
        _on(workload, pricing, base),
        not same_chip(base.chip, pricing.cluster.chip),
        not same_network(base, pricing.cluster),
        tuple((p, _alone(workload, n)) for n, p in enumerate(workload.programs)),
    )


def _alone(workload: Workload, number: int) -> Mask:
    """The communication of a program whose ranks are all of one class, so that nobody is met."""
    program, owner = workload.programs[number], workload.class_of_ranks()
    found = np.asarray(program.kind >= Kind.COLLECTIVE)
    at = next(n for n, c in enumerate(workload.classes) if c.program == number)
    rank = int(np.flatnonzero(owner == at)[0])
    found[list(together_of(program, rank, owner))] = False
    found[list(peers_of(program, rank, owner, others_only=True))] = False
    return found


def _on(workload: Workload, pricing: Pricing, cluster: Cluster) -> Pricing:
    """The same prices on another cluster, with the default places of mesh axes and the same software."""
    cluster = with_software_of(cluster, pricing.cluster)
    if cluster == pricing.cluster:
        return replace(pricing, lenient=True)
    profile = str(workload.metadata.get("profile", ""))
    placement = NetworkPlacement(workload.mesh, cluster)
    tf32 = tf32_kinds(profile, cluster.chip)
    return Pricing(
        cluster, placement, tf32, lenient=True, slower=pricing.slower, routing=pricing.routing
    )
