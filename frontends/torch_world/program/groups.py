"""From PyTorch's process groups to mesh axes, and from peers to routes.

A recording knows the ranks of the groups that its own rank is in. That every other rank has the
same group, moved along the mesh, is how SPMD programs make them; it is checked where the program
asked for the groups itself (`new_group`), and arithmetic on strides finds the axes, so that a
mesh of a million devices costs no more than a small one.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flint.errors import FlintError
from flint.frontends.torch_world.record.recording import Comm, CommKind, DeviceMeshInfo, Recording
from flint.ir.mesh import DEFAULT_AXIS_NAMES, AxisRef, Group, Mesh, Route
from flint.passes.axes import axes_of_members, positions_along

#: What PyTorch puts before the dimension's name in the description of a mesh's group.
_MESH_GROUP = "mesh_"
#: Up to so many ranks, a match is compared with every group that the program asked for.
_MOST_RANKS_COMPARED = 1 << 17


def mesh_of(spec: object, recording: Recording) -> Mesh:
    """The mesh that the user asked for; without names, with those of the program's own mesh.

    Raises FlintError FL101 for a mesh that cannot be, FL232 if the program's is smaller.
    """
    mesh = mesh_before(spec)
    if isinstance(spec, str) and "=" not in spec:
        names = (_axis_names(info, mesh) for info in recording.meshes)
        mesh = Mesh(next((n for n in names if n), mesh.names), mesh.sizes)
    _check_extent(recording, mesh)
    return mesh


def mesh_before(spec: object) -> Mesh:
    """The mesh of `spec` before the program ran: unnamed axes have stand-ins for names."""
    if not isinstance(spec, str) or "=" in spec:
        return Mesh.parse(spec)
    count = len(re.split(r"[,x×]", spec))
    names = DEFAULT_AXIS_NAMES.get(count) or tuple(f"axis{i}" for i in range(count))
    return Mesh.parse(spec, names)


def _check_extent(recording: Recording, mesh: Mesh) -> None:
    """Whether the program knows of the whole world; a mesh written into it may be smaller."""
    if not recording.meshes:
        return
    largest = max(recording.meshes, key=lambda info: len(info.ranks))
    used = {e.comm.group for e in recording.events if e.comm is not None}
    reach = max((len(recording.groups[g].ranks) for g in used), default=0)
    messages = any(e.comm and e.comm.kind is not CommKind.COLLECTIVE for e in recording.events)
    if messages or max(len(largest.ranks), reach) == mesh.size:
        return
    sizes = ",".join(f"{n}={s}" for n, s in zip(largest.names, largest.sizes, strict=False))
    raise FlintError(
        "FL232",
        f"the program uses a mesh {sizes or largest.sizes} of {len(largest.ranks)} ranks, but "
        f"--mesh {mesh} has {mesh.size} devices",
        help="capture with the program's mesh, or let the program take its sizes from WORLD_SIZE",
    )


def _axis_names(info: DeviceMeshInfo, mesh: Mesh) -> tuple[str, ...]:
    """Dimension names of a device mesh over the whole world with the sizes of `mesh`, or ().

    Dimensions of size 1 may be omitted.
    """
    if info.ranks != tuple(range(mesh.size)) or len(info.names) != len(info.sizes):
        return ()
    larger = [(n, s) for n, s in zip(info.names, info.sizes, strict=True) if s > 1]
    for dims in (list(zip(info.names, info.sizes, strict=True)), larger):
        if tuple(s for _, s in dims) == mesh.sizes and all(n for n, _ in dims):
            return tuple(n for n, _ in dims)
    return ()


def group_of(key: str, recording: Recording, mesh: Mesh) -> Group:
    """The Group of a process group; `Group()` for a group of one.

    First an axis with the name that the description gives (`mesh_tp`), then the axes and
    sub-axes that span its ranks, then the rank lists of the program.
    """
    found = _of_ranks(key, recording, mesh)
    copy = recording.groups[key].copy
    return replace(found, copy=copy) if copy and (found.axes or found.ranks) else found


def _of_ranks(key: str, recording: Recording, mesh: Mesh) -> Group:
    info = recording.groups[key]
    members = np.unique(np.array(info.ranks, dtype=np.int64))
    if len(members) < 2:
        return Group()
    named = AxisRef(info.description.removeprefix(_MESH_GROUP))
    if named.name in mesh.names and axes_of_members(members, mesh) == mesh.canonical((named,)):
        return Group(axes=mesh.canonical((named,)))
    axes = axes_of_members(members, mesh)
    made_by_mesh = info.description.startswith(_MESH_GROUP) or len(members) == mesh.size
    if axes is not None and (made_by_mesh or _asked_for(axes, recording, mesh)):
        return Group(axes=axes)
    return Group(ranks=_siblings(tuple(members.tolist()), recording.world_groups))


def used_groups(recording: Recording, mesh: Mesh) -> dict[str, Group]:
    """The groups through which a rank communicates, by their keys."""
    keys = dict.fromkeys(e.comm.group for e in recording.events if e.comm)
    return {key: group_of(key, recording, mesh) for key in keys}


def with_numbered_copies(recordings: Sequence[Recording], mesh: Mesh) -> list[Recording]:
    """Copies of a group numbered among those that are used, on all ranks alike.

    They are one where all ranks run one program: then no two of them can be in another order.
    """
    groups = [used_groups(recording, mesh) for recording in recordings]
    used: dict[Group, set[int]] = {}
    for group in (g for one in groups for g in one.values()):
        used.setdefault(replace(group, copy=0), set()).add(group.copy)
    found = []
    for recording, its in zip(recordings, groups, strict=True):
        infos = dict(recording.groups)
        for key, group in its.items():
            number = sorted(used[replace(group, copy=0)]).index(group.copy)
            infos[key] = replace(infos[key], copy=number if len(recordings) > 1 else 0)
        found.append(replace(recording, groups=infos))
    return found


def _asked_for(axes: tuple[AxisRef, ...], recording: Recording, mesh: Mesh) -> bool:
    """Whether the program asked for each group over `axes`; yes where it cannot be told."""
    known = {tuple(sorted(g)) for g in recording.world_groups if len(g) == mesh.group_size(axes)}
    if len(known) < 2 or mesh.size > _MOST_RANKS_COMPARED:
        return True
    return known.issuperset(map(tuple, mesh.groups(axes).tolist()))


def _siblings(
    members: tuple[int, ...], world_groups: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """The groups asked for around `members` that share no rank with each other: one partition."""
    lists = [tuple(sorted(set(g))) for g in world_groups if len(g) > 1]
    if members not in lists:
        return (members,)
    at = lists.index(members)
    taken, found = set(members), [members]
    for following in (lists[at + 1 :], lists[:at][::-1]):
        for other in following:
            if len(other) != len(members) or not taken.isdisjoint(other):
                break
            taken.update(other)
            found.append(other)
    return tuple(sorted(found))


@dataclass
class Channels:
    """Numbers of messages, shared by the programs of all rank classes of a workload.

    A message is known by its group and route, the place that sends it and how many that place sent
    before: sender and receiver count the same, because a group's messages between two ranks keep
    their order.
    """

    numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, message: Hashable) -> int:
        """The number of a message; both ends build the same key."""
        return self.numbers.setdefault(message, len(self.numbers))


@dataclass
class Messages:
    """Routes and channels of the messages of one rank."""

    rank: int
    mesh: Mesh
    channels: Channels
    _sent: dict[Hashable, int] = field(default_factory=dict)

    def of(self, comm: Comm, group: Group) -> tuple[Route, int]:
        """Route and channel of one SEND or RECV. `group` is the process group it goes through."""
        source, target = (self.rank, comm.peer)
        if comm.kind is CommKind.RECV:
            source, target = target, source
        axes = message_axes(self.rank, comm.peer, group, self.mesh)
        start, stop = positions_along(np.array([source, target]), axes, self.mesh).tolist()
        pair = source, target, group
        turn = self._sent[pair] = self._sent.get(pair, -1) + 1
        route = Route(axes=axes, offset=stop - start, wrap=False)
        return route, self.channels.number((group, axes, start, stop, turn))


def message_axes(rank: int, peer: int, group: Group, mesh: Mesh) -> tuple[AxisRef, ...]:
    """Axes along which a message goes: those of its group, or the only one in which ends differ."""
    mine, theirs = mesh.coordinates(rank), mesh.coordinates(peer)
    differ = [name for name in mesh.names if mine[name] != theirs[name]]
    inside = {a.name for a in group.axes}
    if len(inside) == 1 and inside == set(differ):
        return group.axes
    if len(differ) == 1:
        return (AxisRef(differ[0]),)
    return group.axes or mesh.canonical(AxisRef(name) for name in mesh.names)
