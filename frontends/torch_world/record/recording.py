"""Recording: what one rank of a distributed PyTorch program did in one step, as plain data.

It crosses a process boundary, so it holds no torch objects: the process that recorded it had a
patched PyTorch, the one that reads it may have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

from flint.frontends.torch_world.record.compiled import EAGER, CompiledCall
from flint.ir.program import Collective, Phase
from flint.passes.work.work import Work

#: First byte and end of a range of bytes in a storage.
Extent = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A local tensor as an event saw it. `dtype` is StableHLO's name of the type (`bf16`, `i64`).

    `storage` numbers the memory that the tensor lies in; a number is never used again. `order` says
    how its elements lie there, see `order_of`. `extent` is the range of bytes of the storage, first
    and end, that holds all of its elements, see `extent_of`; None stands for the whole storage.
    """

    storage: int
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    order: tuple[int, ...] = field(default=(), compare=False)
    extent: Extent | None = field(default=None, compare=False)


#: Elements with gaps between them, or that lie at one place: slices, expanded tensors.
GAPS = (-1,)
#: The operator of an event that is memory of which the events behind it use parts.
ALLOCATION = "aten.empty.memory_format"


def order_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """How elements lie in memory: () one after the other by rows, else dimensions by their strides,
    the widest first, or `GAPS`. Dimensions of one element do not count; without strides it is ()."""
    if len(strides) != len(shape):
        return ()
    wide = [i for i, size in enumerate(shape) if size != 1]
    order = sorted(wide, key=lambda i: -strides[i])
    expected = 1
    for i in reversed(order):
        if strides[i] != expected:
            return GAPS
        expected *= shape[i]
    return () if order == wide else tuple(order)


def extent_of(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, item_bytes: int
) -> Extent:
    """The bytes of its storage from the first to the last element of a tensor, both included.

    `strides` and `offset` count elements of `item_bytes` each. A tensor without elements is as wide
    as one: an empty shard then has the place in a flat buffer that it has on other ranks.
    """
    last = offset + sum([max(n - 1, 0) * s for n, s in zip(shape, strides, strict=True)])
    return offset * item_bytes, (last + 1) * item_bytes


class CommKind(IntEnum):
    """What an event is to the network."""

    COLLECTIVE = 0
    SEND = 1
    RECV = 2


@dataclass(frozen=True, slots=True)
class Comm:
    """The network side of an event.

    `group` is a key of `Recording.groups`. `peer` is a rank of the world (SEND, RECV) or -1.
    `input_bytes` is what this rank puts in. `reduction` is "sum", "avg", "max" ... or "".
    `splits` are the sizes of the parts that go to each member in an uneven all-to-all, `received`
    of those that come from each in an uneven all-to-all or all-gather, or (). `root` is the place
    in the group of the member that a broadcast, scatter, gather or reduction is from or for, or -1.
    """

    kind: CommKind
    collective: Collective
    group: str
    input_bytes: int
    peer: int = -1
    reduction: str = ""
    is_async: bool = False
    splits: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    root: int = -1


class HostCopy(IntEnum):
    """Whether an event copies between the memories of device and host, and to which."""

    NONE = 0
    TO_HOST = 1
    FROM_HOST = 2


@dataclass(frozen=True, slots=True)
class Event:
    """One operator of PyTorch that ran on the virtual device.

    op          `aten.mm.default`, `c10d.allreduce_.default`, ...
    inputs      its tensors in the order of its arguments, lists flattened
    outputs     its results, flattened; a result in the storage of an input is a view or an update
    writes      storages that it changes in place
    is_view     no bytes move: the result is an input seen differently
    attributes  arguments that the work depends on, by name, as JSON values (stride, causal, ...)
    module      path of the innermost module (`layers.0.attention.wq`), "" outside all
    location    `file.py:line` of the innermost frame of the user's code, or ""
    stream      index into `Recording.streams`; 0 is the compute stream
    waits       earlier events, by index, that must be over first for a reason that is not data:
                stream events, `Work.wait` (these may be of the same stream), and waits of the host
    host        the copy between memories that it is; a tensor on the host is then its result, or
                its only input. Of all other events, only tensors of the device are listed
    work        what the program declares that it costs, if it does
    call        the compiled call that it is part of, forward or backward
    """

    op: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    writes: tuple[int, ...] = ()
    is_view: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)
    module: str = ""
    phase: Phase = Phase.UNKNOWN
    location: str = ""
    stream: int = 0
    comm: Comm | None = None
    waits: tuple[int, ...] = ()
    host: HostCopy = HostCopy.NONE
    work: Work | None = None
    call: CompiledCall = EAGER


@dataclass(frozen=True, slots=True)
class Placement:
    """How a parameter (a DTensor) lies on a device mesh.

    `mesh` is an index into `Recording.meshes`; `shards` gives the tensor dimension that each mesh
    dimension shards, or -1, first mesh dimension first (as DTensor splits, also under FSDP over
    tensor parallelism, where `strided` marks mesh dimensions of `_StridedShard`).
    """

    mesh: int
    global_shape: tuple[int, ...]
    shards: tuple[int, ...]
    strided: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class StorageInfo:
    """Memory that outlives the step or has a name.

    `role` is "parameter", "buffer", "gradient", "optimizer" or "input"; `name` is the parameter's
    (`layers.0.attention.wq.weight`), with the state's name for the optimizer (`...weight/exp_avg`).
    `on_host` memory is the host's: what the step copies from, and the optimizer's states of that.
    """

    num_bytes: int
    role: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    placement: Placement | None = None
    on_host: bool = False


class Freed(NamedTuple):
    """Memory that the program let go of after as many events."""

    storage: int
    events: int


@dataclass(frozen=True, slots=True)
class DeviceMeshInfo:
    """A `DeviceMesh` that the program made: dimension names, sizes and the ranks, row-major."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A process group: the description that PyTorch gives it (`mesh_tp`), its ranks, and how many
    groups of these ranks the program made before it."""

    description: str
    ranks: tuple[int, ...]
    copy: int = 0


@dataclass(frozen=True, slots=True)
class RankQuestion:
    """A line of the program that asks which rank it runs as. `axis` is the dimension of a device
    mesh along which it asks, "" if that is not told. `numbers` are those that the program holds ranks
    against: ranks of these numbers may do something else than all others."""

    place: str
    axis: str = ""
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PassLoop:
    """Events `start:stop`, run `trips` times. What they make in tensor `carries[k][1]`, they read the
    next time in storage `carries[k][0]`."""

    start: int
    stop: int
    trips: int
    carries: tuple[tuple[int, TensorInfo], ...]


@dataclass(frozen=True)
class Recording:
    """One step of one rank.

    `world_groups` are the rank lists of all groups that the program asked `new_group` for, whether
    this rank is in them or not: where a group matches no mesh axis, the others are found there.
    `warnings` are sentences for the user: values that the policy made up, patches that did nothing.
    `found` and `assumed` are for the processes of other ranks, see `Handover`. `asks` are the lines
    that make the work of a rank depend on its number, as far as their text shows. `shares` are lines
    at which no data said how many rows each part (expert) has, but the policy or a hint. `loops` are
    passes of inference that are alike. `freed` is the memory that the program let go of in the step,
    in that order; where there are loops, what a pass makes and lets go of itself. `older` are the bytes of storages
    that were there before the step and are there behind it, whether an event uses them or not,
    `leaving` those that no event uses and that go on the way.
    """

    rank: int
    world_size: int
    events: tuple[Event, ...]
    streams: tuple[str, ...]
    storages: Mapping[int, StorageInfo]
    meshes: tuple[DeviceMeshInfo, ...]
    groups: Mapping[str, GroupInfo]
    world_groups: tuple[tuple[int, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    found: Mapping[str, bytes] = field(default_factory=dict)
    assumed: Mapping[str, bytes] = field(default_factory=dict)
    asks: tuple[RankQuestion, ...] = ()
    shares: tuple[str, ...] = ()
    loops: tuple[PassLoop, ...] = ()
    freed: tuple[Freed, ...] = ()
    older: Mapping[int, int] = field(default_factory=dict)
    leaving: Mapping[int, int] = field(default_factory=dict)


def with_known_sources(recording: Recording) -> Iterator[Event]:
    """The events of a step; copies of its inputs to the device are events without a source.

    What the step itself put on the host (offloaded activations) and weights and states that live
    there are copied over the host's link. A batch is not: loaders copy it while the step before
    runs, so that it is on the device when the step starts.
    """
    filled: set[int] = set()
    for event in recording.events:
        if event.host is HostCopy.TO_HOST:
            filled.update(t.storage for t in event.outputs)
        elif event.host is HostCopy.FROM_HOST and not _lives_there(event, recording, filled):
            event = replace(event, inputs=(), host=HostCopy.NONE)
        yield event


def _lives_there(event: Event, recording: Recording, filled: set[int]) -> bool:
    source = event.inputs[0].storage
    info = recording.storages.get(source)
    return source in filled or (info is not None and info.on_host)
