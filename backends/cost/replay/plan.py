"""Whether an estimate takes measured times: the cluster, timing, policy and host that follow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flint.backends.cost.kernel_times import COMPILER, MEASURED, MODEL, find_timing
from flint.backends.cost.simulate.timeline import RECORDED, Policy
from flint.cluster.models import Cluster, Quantity, SourceKind
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.passes.profiles import RECORDED as RECORDED_PROFILE

if TYPE_CHECKING:
    from flint.backends.cost.replay.table import MeasuredTable
    from flint.ir.made_by import MeasuredBy

_DEFAULT_POLICY = "overlap"
#: Profiles whose kernels are launched one by one.
_LAUNCHED = ("eager", "torch")


def recorded_cluster(by: MeasuredBy) -> Cluster:
    """The cluster of the device that profiles are of. Raises FlintError FL831 where Flint has none."""
    from flint.cluster.devices import cluster_of_device

    found = cluster_of_device(by.device)
    if found is None:
        raise FlintError(
            "FL831",
            f"Flint has no cluster of '{by.device}', the device of the profiles",
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
            "the workload itself was measured: it takes no times from others",
            help="omit --measured; it is for captured programs",
        )
    found = (MEASURED if measured else MODEL) if name is None else find_timing(name)
    if found == MEASURED and not measured:
        raise FlintError(
            "FL832",
            "the workload was not measured: it does not come from a profile",
            help="make one from profiles with flint import FILE... -o m.flint; --measured m.flint uses its times",
        )
    if measured and found == COMPILER:
        raise FlintError(
            "FL832",
            "measured times and a compiler's cycles exclude each other",
            help="omit --timing",
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
            f"policy '{policy.name}' does not apply to a workload made of profiles, which has "
            "its own order in time",
            help="omit --overlap",
        )
    return RECORDED


def refuse_profile(profile: str) -> None:
    """Raise FlintError FL832 for another profile than "recorded"."""
    if profile not in ("", RECORDED_PROFILE):
        raise FlintError(
            "FL832",
            f"profile '{profile}' does not apply to a workload made of profiles, which has its recorded kernels",
            help="omit --profile",
        )


def launched_by(table: MeasuredTable | None, cluster: Cluster, profile: str) -> Cluster:
    """The cluster with the host that was measured, for programs whose kernels a host launches."""
    if table is None or not table.host_ns or profile not in _LAUNCHED or cluster.host_launch_ns:
        return cluster
    source = "the mean of measured launches, one for each call of an operator"
    launch = Quantity(value=table.host_ns, kind=SourceKind.MEASURED, source=source)
    return cluster.model_copy(update={"host_launch_ns": launch})
