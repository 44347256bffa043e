"""Whether the members of every group issue the same collectives in the same order.

If they do not, the program hangs, or exchanges what does not fit. Traces are written as the ranks
are, so that `flint check` finds it, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from flint.errors import FlintError
from flint.frontends.torch_world.program.deeds import working
from flint.frontends.torch_world.program.groups import group_of, used_groups
from flint.frontends.torch_world.program.names import opcode_of
from flint.frontends.torch_world.program.operands import is_meeting
from flint.frontends.torch_world.record.recording import Comm, CommKind, Event, Recording
from flint.ir.arrays import Mask
from flint.ir.mesh import Group, Mesh
from flint.ir.program import Collective, Int64s

#: Collectives of one rank over each group, in order: index of the event, and the event.
_Issued = Mapping[Group, Sequence[tuple[int, Event]]]


@dataclass(frozen=True)
class Matched:
    """Recordings of classes, their uneven exchanges as large as those of the busiest member, and
    sentences about what does not fit together."""

    recordings: tuple[Recording, ...]
    faults: tuple[str, ...]


def matched(classes: Sequence[tuple[Mask, Recording]], mesh: Mesh) -> Matched:
    """Hold the collectives of all classes against each other. Raises FlintError FL251."""
    if len(classes) < 2:
        return Matched(tuple(r for _, r in classes), ())
    class_of = np.full(mesh.size, -1, dtype=np.int64)
    for number, (mask, _) in enumerate(classes):
        class_of[mask] = number
    issued = [_issued(recording, mesh) for _, recording in classes]
    found = [r for _, r in classes]
    faults: dict[str, None] = {}
    wider: dict[tuple[int, int], int] = {}
    for group in dict.fromkeys(g for one in issued for g in one):
        for members in _kinds_of_group(group, class_of, mesh):
            together = [issued[n].get(group, ()) for n in members]
            fault = _first_fault(together, [found[n] for n in members])
            if fault is not None:
                faults[fault.sentence(group)] = None
                _show_meetings(members, together, found)
            else:
                _widen(members, together, wider)
    messages = [_messages(recording, mesh) for recording in found]
    for number in range(len(found)):
        faults.update(dict.fromkeys(_unanswered(number, found, messages, class_of)))
    return Matched(_widened(found, wider), tuple(faults))


def _show_meetings(
    members: Sequence[int],
    together: Sequence[Sequence[tuple[int, Event]]],
    found: list[Recording],
) -> None:
    """Where members of a group do not do the same, traces hold its barriers: NCCL's, which reduce."""
    for number, calls in zip(members, together, strict=True):
        events = list(found[number].events)
        for index, event in calls:
            if is_meeting(event) and event.comm:
                comm = replace(event.comm, collective=Collective.ALL_REDUCE, input_bytes=_BARRIER)
                events[index] = replace(event, comm=comm)
        found[number] = replace(found[number], events=tuple(events))


#: NCCL's barrier reduces one element.
_BARRIER = 4


def _issued(recording: Recording, mesh: Mesh) -> dict[Group, list[tuple[int, Event]]]:
    groups: dict[str, Group] = {}
    found: dict[Group, list[tuple[int, Event]]] = {}
    for index, event in enumerate(recording.events):
        comm = event.comm
        if comm is None or comm.kind is not CommKind.COLLECTIVE:
            continue
        if comm.group not in groups:
            groups[comm.group] = group_of(comm.group, recording, mesh)
        group = groups[comm.group]
        if group.axes or group.ranks:
            found.setdefault(group, []).append((index, event))
    return found


def _kinds_of_group(group: Group, class_of: Int64s, mesh: Mesh) -> Iterator[tuple[int, ...]]:
    """The classes that meet in a group over the axes or in a listed one, each set once."""
    rows = mesh.groups(group.axes) if group.axes else [np.array(r) for r in group.ranks]
    kinds = {tuple(np.unique(class_of[row]).tolist()): None for row in rows}
    return (kind for kind in kinds if len(kind) > 1)


#: Messages of one rank, in order, by their kind, the rank at the other end and the group.
_Messages = Mapping[tuple[CommKind, int, Group], Sequence[Event]]


def _messages(recording: Recording, mesh: Mesh) -> _Messages:
    groups = used_groups(recording, mesh)
    found: dict[tuple[CommKind, int, Group], list[Event]] = {}
    for event in recording.events:
        if (c := event.comm) and c.peer >= 0:
            found.setdefault((c.kind, c.peer, groups[c.group]), []).append(event)
    return found


def _unanswered(
    number: int,
    found: Sequence[Recording],
    messages: Sequence[_Messages],
    class_of: Int64s,
) -> Iterator[str]:
    """The first message of a rank to or from each other rank, in each group, that the other does not know of, or of
    another size. A rank that was not recorded does what its class does, as far away."""
    rank = found[number].rank
    for (kind, peer, group), mine in messages[number].items():
        other = int(class_of[peer])
        turned = CommKind.RECV if kind is CommKind.SEND else CommKind.SEND
        theirs = messages[other].get((turned, found[other].rank + rank - peer, group), ())
        for one, answer in zip_longest(mine, theirs):
            if one is None or answer is None or _message_bytes(one) != _message_bytes(answer):
                verb = {CommKind.SEND: "send", CommKind.RECV: "receive"}
                yield (
                    f"rank {rank} {_moves(one, verb[kind])}, "
                    f"rank {peer} {_moves(answer, verb[turned])}, between the two: "
                    "the program hangs there, or mixes up memory"
                )
                break


def _message_bytes(event: Event) -> int:
    return sum(t.num_bytes for t in (event.inputs or event.outputs)[:1])


def _moves(event: Event | None, verb: str) -> str:
    if event is None:
        return f"{verb}s nothing more"
    tensor = (event.inputs or event.outputs)[0]
    at = f" at {event.location}" if event.location else ""
    return f"{verb}s {tensor.dtype}[{','.join(map(str, tensor.shape))}]{at}"


@dataclass(frozen=True)
class _Fault:
    """Two ranks of a group that do not call the same, and what they call."""

    ranks: tuple[int, int]
    calls: tuple[Event | None, Event | None]

    def sentence(self, group: Group) -> str:
        """What is wrong. Raises FlintError FL251 for what traces have no place for."""
        said = [
            f"rank {rank} {_described(event)}"
            for rank, event in zip(self.ranks, self.calls, strict=True)
        ]
        over = " and ".join(a.name for a in group.axes) or "ranks that were listed"
        one, other = self.calls
        if one is not None and other is not None and _looks_alike(one, other):
            raise FlintError(
                "FL251",
                f"{said[0]}, {said[1]}, both over {over}",
                place=other.location or None,
                help="all members of a group must call a collective with the same root, type "
                "and reduction; on a cluster this hangs or gives other numbers on each "
                "rank",
            )
        return f"{said[0]}, {said[1]}, both over {over}: the program hangs there"


def _looks_alike(one: Event, other: Event) -> bool:
    mine, theirs = one.comm, other.comm
    assert mine is not None and theirs is not None, "both are collectives"
    return (mine.collective, mine.input_bytes) == (theirs.collective, theirs.input_bytes)


def _first_fault(
    together: Sequence[Sequence[tuple[int, Event]]], ranks: Sequence[Recording]
) -> _Fault | None:
    """The first place at which members of a group do not do the same."""
    first = [event for _, event in together[0]]
    for recording, calls in zip(ranks[1:], together[1:], strict=True):
        for mine, theirs in zip_longest(first, [event for _, event in calls]):
            if mine is None or theirs is None or not _fit(mine, theirs):
                return _Fault((ranks[0].rank, recording.rank), (mine, theirs))
    return None


def _fit(one: Event, other: Event) -> bool:
    mine, theirs = one.comm, other.comm
    assert mine is not None and theirs is not None, "both are collectives"
    alike = ("collective", "reduction", "root")
    if is_meeting(one) and one.op != other.op:
        return False
    if any(getattr(mine, name) != getattr(theirs, name) for name in alike):
        return False
    types = [{t.dtype for t in (*e.inputs, *e.outputs)} for e in (one, other)]
    uneven = _is_uneven(mine) or _is_uneven(theirs)
    return types[0] == types[1] and (uneven or mine.input_bytes == theirs.input_bytes)


def _is_uneven(comm: Comm) -> bool:
    return bool(comm.splits or comm.received)


def _described(event: Event | None) -> str:
    if event is None:
        return "issues nothing more"
    root = f" with root {event.comm.root}" if event.comm and event.comm.root >= 0 else ""
    at = f" at {event.location}" if event.location else ""
    shown = [f" of {t.dtype}[{','.join(map(str, t.shape))}]" for t in event.inputs or event.outputs]
    return f"issues {opcode_of(event)}{''.join(shown[:1])}{root}{at}"


def _widen(
    members: Sequence[int],
    together: Sequence[Sequence[tuple[int, Event]]],
    wider: dict[tuple[int, int], int],
) -> None:
    """Note the bytes of the busiest member of each uneven exchange: it takes that long."""
    for calls in zip(*together, strict=True):
        sizes = [event.comm.input_bytes for _, event in calls if event.comm]
        if len(set(sizes)) > 1:
            for number, (index, _) in zip(members, calls, strict=True):
                wider[number, index] = max(wider.get((number, index), 0), *sizes)


def _widened(
    recordings: Sequence[Recording], wider: Mapping[tuple[int, int], int]
) -> tuple[Recording, ...]:
    found = list(recordings)
    for number in sorted({n for n, _ in wider}):
        events = list(found[number].events)
        for index in (i for n, i in wider if n == number):
            event = events[index]
            assert event.comm is not None, "only collectives are widened"
            events[index] = replace(
                event, comm=replace(event.comm, input_bytes=wider[number, index])
            )
        found[number] = replace(found[number], events=tuple(events))
    return tuple(found)


def check_parts(recordings: Sequence[Recording]) -> None:
    """Hold what ranks send each other in uneven exchanges against what the others expect.

    Only ranks that were recorded are compared, and only where the program itself says the sizes: a
    hint says one thing on all ranks. Raises FlintError FL250.
    """
    by_group: dict[tuple[int, ...], dict[int, list[Event]]] = {}
    for recording in recordings:
        for event in () if recording.shares else working(recording):
            if event.comm is not None and event.comm.collective in _WITH_PARTS:
                ranks = recording.groups[event.comm.group].ranks
                by_group.setdefault(ranks, {}).setdefault(recording.rank, []).append(event)
    for ranks, by_rank in by_group.items():
        for calls in zip(*by_rank.values(), strict=False):
            if any(_is_uneven(e.comm) for e in calls if e.comm):
                _check_call(ranks, dict(zip(by_rank, calls, strict=True)))


_WITH_PARTS = (Collective.ALL_TO_ALL, Collective.ALL_GATHER)


def _check_call(ranks: Sequence[int], calls: Mapping[int, Event]) -> None:
    for sender, event in calls.items():
        for receiver, other in calls.items():
            sent = _part(event, ranks.index(receiver), len(ranks), sends=True)
            expected = _part(other, ranks.index(sender), len(ranks), sends=False)
            if event.op == other.op and sent != expected and None not in (sent, expected):
                raise FlintError(
                    "FL250",
                    f"rank {sender} sends {sent} to rank {receiver} in {opcode_of(event)}, "
                    f"which expects {expected}",
                    place=other.location or event.location or None,
                    help="the size that one rank sends must equal the size that the other "
                    "receives; on a cluster this hangs or corrupts memory",
                )


def _part(event: Event, at: int, count: int, *, sends: bool) -> int | None:
    """Size of the part for or from member `at` of `count`, None where it cannot be told."""
    comm = event.comm
    assert comm is not None, "it communicates"
    parts = comm.splits if sends else comm.received
    tensors = event.inputs if sends else event.outputs
    if sends and comm.collective is Collective.ALL_GATHER:
        return int(np.prod(tensors[0].shape, dtype=np.int64)) if tensors else None
    if parts or not tensors:
        return parts[at] if parts else None
    if len(tensors) == count > 1:
        return int(np.prod(tensors[at].shape, dtype=np.int64))
    even = comm.collective is Collective.ALL_TO_ALL and bool(tensors[0].shape)
    return tensors[0].shape[0] // count if even else None
