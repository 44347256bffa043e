"""What a profile says of a collective or message, as a row of a program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Kind
from flint.passes.axes import axes_of_members
from flint.tools.measure.profiles.comm_kernels import comm_of_kernel, comm_of_operator
from flint.tools.measure.profiles.operators.types import element_type
from flint.tools.measure.profiles.profile import Profile, ProfiledComm

#: Parts of names of collectives, the first that fits: without underscores, in lower case.
_NAMES: tuple[tuple[str, Collective], ...] = (
    ("allreduce", Collective.ALL_REDUCE),
    ("reducescatter", Collective.REDUCE_SCATTER),
    ("allgather", Collective.ALL_GATHER),
    ("alltoall", Collective.ALL_TO_ALL),
    ("broadcast", Collective.BROADCAST),
    ("barrier", Collective.ALL_REDUCE),
    ("gather", Collective.ALL_GATHER),
    ("scatter", Collective.BROADCAST),
    ("reduce", Collective.ALL_REDUCE),
)


def collective_of(name: str) -> Collective:
    """The kind of a collective by the framework's name (`_allgather_base`); NONE if unknown."""
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in _NAMES if part in plain), Collective.NONE)


def message_kind(name: str) -> Kind | None:
    """SEND or RECV for messages, None for anything else."""
    plain = name.lower().removeprefix("nccl:").removeprefix("i")
    if plain.startswith("send"):
        return Kind.SEND
    return Kind.RECV if plain.startswith("recv") else None


def input_bytes(comm: ProfiledComm) -> int:
    """Bytes of the rank's input; 0 where sizes or type are not said."""
    found = element_type(comm.dtype)
    elements = comm.in_elements if comm.in_elements > 0 else comm.out_elements
    if comm.in_elements <= 0:
        kind = collective_of(comm.name)
        elements //= max(comm.group_size, 1) if kind is Collective.ALL_GATHER else 1
        elements *= comm.group_size if kind is Collective.REDUCE_SCATTER else 1
    return max(elements, 0) * found[1] if found else 0


def result_bytes(comm: ProfiledComm) -> int:
    """Bytes of what the rank has afterwards."""
    found = element_type(comm.dtype)
    return max(comm.out_elements, 0) * found[1] if found else 0


def members_of(comm: ProfiledComm, profile: Profile, world: int) -> tuple[int, ...]:
    """Ranks of a collective's group in ascending order; () where nothing tells them."""
    listed = comm.ranks or profile.groups.get(comm.group, ())
    if not listed and comm.group_size == world > 0:
        listed = tuple(range(world))
    members = tuple(sorted(set(listed)))
    return members if all(0 <= r < world for r in members) else ()


def comm_of_own_operator(profile: Profile, operator: int) -> ProfiledComm | None:
    """The collective that an operator of an engine does by itself, None for any other operator.

    Its sizes are those of the first tensor; its group is the only one of several ranks that the
    profile has, as nothing else says it.
    """
    if operator < 0:
        return None
    named = comm_of_operator(profile.strings[profile.operators.name[operator]])
    signature = int(profile.operators.signature[operator])
    ranks = _only_group(profile)
    if named is None or named.collective is Collective.NONE or signature < 0 or not ranks:
        return None
    said = profile.signatures[signature]
    shaped = next(((s, t) for s, t in zip(said.shapes, said.types, strict=False) if s), None)
    if shaped is None:
        return None
    read = stored = math.prod(shaped[0])
    if named.collective is Collective.ALL_GATHER:
        stored *= len(ranks)
    if named.collective is Collective.REDUCE_SCATTER:
        stored //= len(ranks)
    name = named.collective.name.lower()
    return ProfiledComm(name, read, stored, shaped[1], group_size=len(ranks), ranks=ranks)


def _only_group(profile: Profile) -> tuple[int, ...]:
    groups = {tuple(sorted(g)) for g in profile.groups.values() if len(g) > 1}
    return groups.pop() if len(groups) == 1 else ()


def described(profile: Profile, activity: int, world: int) -> ProfiledComm | None:
    """What is known of an activity that communicates: its metadata, else what its name tells."""
    number = int(profile.activities.comm[activity])
    operator = int(profile.activities.operator[activity])
    if number < 0 and operator >= 0:
        number = int(profile.operators.comm[operator])
    if number >= 0:
        return profile.comms[number]
    own = comm_of_own_operator(profile, operator)
    if own is not None:
        return own
    named = comm_of_kernel(profile.strings[profile.activities.name[activity]])
    if named is None or named.collective is Collective.NONE:
        return None
    ranks = _only_group(profile)
    kind = named.collective.name.lower()
    return ProfiledComm(kind, -1, -1, "", group_size=len(ranks), ranks=ranks)


def library_of(profile: Profile, activity: int) -> str:
    """Whose communication an activity is: NCCL's, if nothing else is said."""
    a = profile.activities
    named = comm_of_kernel(profile.strings[a.name[activity]])
    if named is None and a.operator[activity] >= 0:
        named = comm_of_operator(profile.strings[profile.operators.name[a.operator[activity]]])
    return named.library if named is not None else "nccl" if a.comm[activity] >= 0 else "its stream"


def mesh_of_groups(world: int, groups: Sequence[tuple[int, ...]]) -> Mesh:
    """Axes such that groups of equal distances are groups over axes; one axis `world` without any."""
    sizes: list[int] = []
    done = 1
    strides = {found for g in groups if (found := _stride(g)) is not None and len(g) < world}
    for stride, size in sorted(strides):
        if stride % done or world % (stride * size):
            continue
        if stride > done:
            sizes.append(stride // done)
        sizes.append(size)
        done = stride * size
    if done < world:
        sizes.append(world // done)
    sizes = [s for s in reversed(sizes) if s > 1]
    if len(sizes) < 2:
        return Mesh(("world",), (max(world, 1),))
    return Mesh(tuple(f"axis{i}" for i in range(len(sizes))), tuple(sizes))


def _stride(group: tuple[int, ...]) -> tuple[int, int] | None:
    """Distance and number of ranks that are equally far apart."""
    if len(group) < 2:
        return None
    steps = np.unique(np.diff(group))
    return (int(steps[0]), len(group)) if len(steps) == 1 else None


def group_of_members(
    members: tuple[int, ...], mesh: Mesh, others: Sequence[tuple[int, ...]]
) -> Group:
    """Axes where the members are a group over them, else rank lists: with groups that are as large
    and share no rank with these."""
    if len(members) == mesh.size:
        return Group(axes=mesh.canonical(AxisRef(n) for n in mesh.names))
    axes = axes_of_members(np.array(members, dtype=np.int64), mesh)
    if axes is not None:
        return Group(axes=axes)
    taken, lists = set(members), [members]
    for other in others:
        if len(other) == len(members) and taken.isdisjoint(other):
            taken.update(other)
            lists.append(other)
    return Group(ranks=tuple(sorted(lists)))


def known_groups(profiles: Mapping[int, Profile], world: int) -> list[tuple[int, ...]]:
    """Rank lists of all groups of several ranks that collectives of these profiles use."""
    found: dict[tuple[int, ...], None] = {}
    for profile in profiles.values():
        for comm in profile.comms:
            members = members_of(comm, profile, world)
            if len(members) > 1:
                found.setdefault(members)
    return list(found)


def world_of(profiles: Sequence[Profile]) -> int:
    """Ranks of the job: what the profiles say, else as many as their groups and ranks need."""
    said = max((p.world_size for p in profiles), default=0)
    ranks = [r for p in profiles for g in p.groups.values() for r in g]
    ranks += [r for p in profiles for c in p.comms for r in c.ranks]
    ranks += [r for p in profiles for c in p.comms for pair in c.pairs for r in pair]
    ranks += [p.rank for p in profiles]
    sizes = [c.group_size for p in profiles for c in p.comms]
    return said if said > 0 else max([len(profiles), *sizes, *(r + 1 for r in ranks)])
