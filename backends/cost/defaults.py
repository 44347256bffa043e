"""What an estimate takes where nothing is asked for: the policy by its name, the profile of a program."""

from __future__ import annotations

from flint.backends.cost.chips.model import model_of
from flint.backends.cost.simulate.timeline import POLICIES, Policy
from flint.cluster.models import Cluster
from flint.errors import FlintError, nearest
from flint.ir.program import Flag
from flint.ir.workload import Workload
from flint.rewrite import RECORDED as RECORDED_PROFILE


def find_policy(name: object) -> Policy:
    """The policy called `name`, or a Policy as it is. Raises FlintError FL703 for anything else."""
    if isinstance(name, Policy):
        return name
    if not isinstance(name, str) or name not in POLICIES:
        raise FlintError(
            "FL703",
            f"unknown overlap policy {name!r}{nearest(str(name), list(POLICIES))}",
            help="the policies are " + ", ".join(POLICIES),
        )
    return POLICIES[name]


def default_profile(workload: Workload, cluster: Cluster) -> str:
    """The profile that the program was captured for, or the compiler that it would usually meet.

    A capture for TPUs is for them alone, and one for anything else is for other chips. What a
    compiler made is as it left it.
    """
    if workload.measured_by:
        return RECORDED_PROFILE
    if workload.compiled_by:
        return workload.compiled_by.profile
    captured = str(workload.metadata.get("profile", ""))
    recorded = any((p.flags & Flag.LAUNCHED).any() for p in workload.programs)
    found = model_of(cluster.chip).profile(captured, recorded)
    compiles = any(p.compiled.any() for p in workload.programs)
    return "torch" if compiles and found == "eager" and not captured else found
