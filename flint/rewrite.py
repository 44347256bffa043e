"""Passes over a whole workload: what a compiler does after partitioning, and kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flint.errors import FlintError, nearest
from flint.ir.workload import Workload

if TYPE_CHECKING:
    from flint.passes.base import Pass

#: What one node of a trace may be.
GRANULARITIES = ("op", "kernel")
#: The profile of what is made of profiles: its kernels are those that ran.
RECORDED = "recorded"


def rewrite(workload: Workload, *, profile: str = "none", granularity: str = "op") -> Workload:
    """Apply the passes of a target profile to every program, then merge rows into its kernels.

    What was done is noted in the metadata. What a whole compiler made has its kernels already, and so
    has what is made of profiles (profile "recorded"): it stays as it is. Raises FlintError FL405 for an unknown profile, FL406
    for an unknown granularity.
    """
    from flint.passes.base import run_passes
    from flint.passes.profiles import profile as find_profile

    if granularity not in GRANULARITIES:
        raise FlintError(
            "FL406",
            f"unknown granularity '{granularity}'{nearest(granularity, GRANULARITIES)}",
            help=f"choose one of {', '.join(GRANULARITIES)}",
        )
    passes: list[Pass] = []
    if workload.measured_by:
        profile = RECORDED
    else:
        target = find_profile(profile)
        passes = [*target.passes, *(target.kernels if granularity == "kernel" else ())]
    if workload.compiled_by:
        passes = []
    chosen = {"granularity": granularity}
    if profile != "none":
        chosen["profile"] = profile
    return replace(
        workload,
        programs=tuple(run_passes(p, passes) for p in workload.programs),
        metadata={**workload.metadata, **chosen},
    )


def kernels_for(workload: Workload, profile: str) -> Workload:
    """The kernels of a profile: `rewrite` by "kernel", kept until another profile is asked for."""
    return workload.kept.get(
        "kernels", profile, lambda: rewrite(workload, profile=profile, granularity="kernel")
    )


def nodes_of(workload: Workload, granularity: str) -> Workload:
    """What the nodes of a trace are: operations, or the kernels of the workload's own profile.

    The kernels are those that estimates, memory and timelines use. Raises FlintError FL406 for an
    unknown granularity.
    """
    if granularity != "kernel":
        return rewrite(workload, granularity=granularity)
    return kernels_for(workload, str(workload.metadata.get("profile", "none")))
