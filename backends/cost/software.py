"""Which stack a program runs on, and a cluster with that software on it."""

from __future__ import annotations

from pathlib import Path

from flint.backends.cost.chips.model import model_of
from flint.backends.cost.simulate.timeline import POLICIES, Policy
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack, shipped_stacks
from flint.errors import FlintError, nearest
from flint.ir.workload import Workload
from flint.passes.profiles import RECORDED as RECORDED_PROFILE


def stack_of(
    workload: Workload, cluster: Cluster, asked: str | Path | Stack | None, profile: str = ""
) -> Stack:
    """The stack that was asked for, or that which a profile means: the one asked for, or the program's.

    A program that was recorded with packages of one stack runs on it, if nothing else was asked for.
    Of several stacks that have a profile, that which names it earliest is meant.

    Raises FlintError FL725 for an unknown one and for one that does not run on such chips, FL701 for a
    file of one that cannot be used.
    """
    implied = workload.stood_in.stack
    if asked is None and implied and not profile and not workload.metadata.get("profile"):
        found = Stack.load(implied)
        if family_of(cluster) in ("", *found.chips):
            return found
    if asked is None:
        return stack_for(str(profile) or default_profile(workload, cluster), cluster)
    found = Stack.load(asked)
    family = family_of(cluster)
    if family and family not in found.chips:
        fitting = [s.name for s in shipped_stacks() if family in s.chips]
        raise FlintError(
            "FL725",
            f"stack '{found.name}' does not run on {cluster.chip.name}: it is for {', '.join(found.chips)}",
            help=f"stacks for such chips: {', '.join(fitting)}",
        )
    return found


def stack_for(profile: str, cluster: Cluster) -> Stack:
    """The stack that a profile of kernels means on such chips; without one, a stack without a name."""
    family = family_of(cluster)
    fitting = [
        stack
        for stack in shipped_stacks()
        if stack.infers and profile in stack.profiles and family in ("", *stack.chips)
    ]
    if fitting:
        return min(fitting, key=lambda stack: stack.profiles.index(profile))
    return Stack(
        name="unknown",
        title="no stack is known for this profile of kernels",
        chips=("gpu", "systolic"),
        profiles=(profile,),
    )


def profile_on(stack: Stack, captured: str, asked: str) -> str:
    """Whose kernels a program's operations become: what was asked for, captured, or is the stack's."""
    return asked or (captured if captured in stack.profiles else stack.profiles[0])


def with_stack(cluster: Cluster, stack: Stack) -> Cluster:
    """The cluster with the software of a stack: its libraries' constants, and its host."""
    return with_host(with_libraries(cluster, stack.libraries), stack)


def with_host(cluster: Cluster, stack: Stack) -> Cluster:
    """The cluster with the host that a stack has, where its file says nothing of one."""
    if cluster.host_launch_ns is not None or stack.host_launch_ns is None:
        return cluster
    return cluster.model_copy(update={"host_launch_ns": stack.host_launch_ns})


def with_libraries(cluster: Cluster, libraries: tuple[str, ...]) -> Cluster:
    """The cluster with the constants of libraries; those that its file names itself stay.

    A tier of the network runs the last of them that it has constants of.
    """
    its = {n.name: [name for name in libraries if name in n.libraries] for n in cluster.network}
    if any(its.values()):
        tiers = (
            n.model_copy(update={"library": (n.library, *its[n.name])[-1]}) for n in cluster.network
        )
        cluster = cluster.model_copy(update={"network": tuple(tiers)})
    family = cluster.chip.family
    if family is None or not libraries or getattr(family, "uses", True):
        return cluster
    running = family.model_copy(update={"uses": libraries})
    chip = cluster.chip.model_copy(update={family.table: running})
    return cluster.model_copy(update={"chip": chip})


def with_software_of(cluster: Cluster, other: Cluster) -> Cluster:
    """The cluster with the libraries that run on `other`, so that prices of both differ by hardware."""
    family, runs = cluster.chip.family, getattr(other.chip.family, "uses", ())
    if family is None or not runs or not hasattr(family, "uses"):
        return cluster
    bare = cluster.chip.model_copy(update={family.table: family.model_copy(update={"uses": ()})})
    return with_libraries(cluster.model_copy(update={"chip": bare}), runs)


def family_of(cluster: Cluster) -> str:
    return cluster.chip.family.table if cluster.chip.family else ""


# What an estimate takes where nothing is asked for: the policy by its name, the profile of a program.


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
    found = model_of(cluster.chip).profile(captured, workload.is_launched)
    compiles = any(p.compiled.any() for p in workload.programs)
    return "torch" if compiles and found == "eager" and not captured else found
