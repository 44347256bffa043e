"""What is compared of two ranks: the operators that work, their shapes, and their communication."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from flint.frontends.torch_world.program.groups import group_of
from flint.frontends.torch_world.program.names import opcode_of
from flint.frontends.torch_world.program.op_classes import class_of
from flint.frontends.torch_world.program.operands import does_nothing, is_meeting, is_view
from flint.frontends.torch_world.record.recording import (
    Comm,
    Event,
    HostCopy,
    Recording,
    TensorInfo,
)
from flint.ir.mesh import Group, Mesh
from flint.ir.op_class import ATTENTION, PRODUCT

#: Shape and type of each tensor.
Sizes = tuple[tuple[tuple[int, ...], str], ...]


class Deed(NamedTuple):
    """One operator: two ranks that do the same have equal lists of these."""

    opcode: str
    inputs: Sizes
    outputs: Sizes
    host: HostCopy
    network: tuple[object, ...]


def deeds_of(recording: Recording, mesh: Mesh) -> list[Deed]:
    """What a rank does, in order. Which memory it does it in is not compared."""
    groups: dict[str, Group] = {}
    found = []
    for event in working(recording):
        network: tuple[object, ...] = ()
        if event.comm is not None:
            key = event.comm.group
            if key not in groups:
                groups[key] = group_of(key, recording, mesh)
            network = _network(event.comm, groups[key], recording.rank)
        found.append(
            Deed(opcode_of(event), _sizes(event.inputs), _sizes(event.outputs), event.host, network)
        )
    return found


def heavy_deeds_of(recording: Recording, mesh: Mesh) -> list[Deed]:
    """Products, attention and communication of a rank, in order."""
    pairs = zip(deeds_of(recording, mesh), working(recording), strict=True)
    return [d for d, event in pairs if d.network or class_of(event.op) in PRODUCT | ATTENTION]


def working(recording: Recording) -> list[Event]:
    """The events that do something. A barrier follows the communication before it, as what ranks
    calculate in between may be before it or behind it."""
    found: list[Event] = []
    behind = 0
    for event in recording.events:
        if is_meeting(event):
            found.insert(behind, event)
            behind += 1
        elif not does_nothing(event) and not is_view(event):
            found.append(event)
            behind = len(found) if event.comm else behind
    return found


def _sizes(tensors: Sequence[TensorInfo]) -> Sizes:
    return tuple([(t.shape, t.dtype) for t in tensors])


def _network(comm: Comm, group: Group, rank: int) -> tuple[object, ...]:
    """A peer is compared by how far away it is, a root by its place in the group."""
    distance = comm.peer - rank if comm.peer >= 0 else 0
    return (group, comm.input_bytes, distance, comm.splits, comm.received, comm.root)


def difference(one: Recording, other: Recording, mesh: Mesh) -> str:
    """`ranks 0 and 3 differ: rank 0 runs aten.mm of f32[8,64] at train.py:9, rank 3 ends there`."""
    pairs = zip_longest(
        zip(deeds_of(one, mesh), working(one), strict=True),
        zip(deeds_of(other, mesh), working(other), strict=True),
    )
    mine, theirs = next((a, b) for a, b in pairs if (a and a[0]) != (b and b[0]))
    at = _first_apart(mine[0], theirs[0]) if mine and theirs else 0
    said = [
        f"rank {recording.rank} {_described(found[1], at) if found else 'does no more'}"
        for recording, found in ((one, mine), (other, theirs))
    ]
    return f"ranks {one.rank} and {other.rank} differ: {said[0]}, {said[1]}"


def _first_apart(one: Deed, other: Deed) -> int:
    """Which tensor, of inputs and outputs, is the first that two operators do not share; else 0."""
    pairs = enumerate(zip_longest(one.inputs + one.outputs, other.inputs + other.outputs))
    return next((n for n, (mine, theirs) in pairs if mine != theirs), 0)


def _described(event: Event, number: int) -> str:
    """With one of its tensors: of a list that is not always the first, and then its number is said."""
    tensors = (*event.inputs, *event.outputs)
    of = f" of {len(tensors)} tensors" if number >= len(tensors) > 0 else ""
    for t in tensors[number : number + 1]:
        which = f" (tensor {number + 1} of {len(tensors)})" if number else ""
        of = f" of {t.dtype}[{','.join(map(str, t.shape))}]{which}"
    at = f" at {event.location}" if event.location else ""
    return f"runs {opcode_of(event)}{of}{at}"
