"""The recording of a rank that holds other shards, derived from those of two ranks that ran.

Shards that `torch.chunk` makes are full, a remainder or empty. Ranks that differ in nothing else
run the same operators; those on shards (optimizer, gradient norms) have other sizes. Two ranks with
different shards of everything that is uneven show which tensors these are: every tensor that
differs between them must be the shard of a parameter, and then has the shape of that parameter's
shard on any third rank. Whatever cannot be told so makes no derived recording: that rank must run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flint.frontends.torch_world.recording import Event, Recording, StorageInfo, TensorInfo
from flint.frontends.torch_world.shards import Shape, Shards
from flint.mesh import Mesh

#: Shapes of one tensor on the two ranks that ran.
Pair = tuple[Shape, Shape]
#: Number of an event, and of a tensor in it: inputs first, then outputs.
Place = tuple[int, int]


def derive(first: Recording, second: Recording, rank: int, mesh: Mesh) -> Recording | None:
    """What `first` would be with the shards of `rank`, or None where the two do not tell it."""
    if not same_structure(first, second):
        return None
    shapes = _shard_shapes(first, second, rank, mesh)
    if shapes is None:
        return None
    targets = _Places(first, second, shapes).resolved()
    if targets is None:
        return None
    storages = {s: _stored(s, i, second, shapes) for s, i in first.storages.items()}
    return replace(first, events=_substituted(first.events, targets), storages=storages)


def same_structure(first: Recording, second: Recording) -> bool:
    """Whether two ranks did the same but for the shapes of local tensors."""
    return (
        len(first.events) == len(second.events)
        and first.streams == second.streams
        and first.storages.keys() == second.storages.keys()
        and all(map(_same_event, first.events, second.events))
    )


def _same_event(a: Event, b: Event) -> bool:
    if a is b:
        return True
    return (
        a.op == b.op
        and a.writes == b.writes
        and a.is_view == b.is_view
        and a.module == b.module
        and a.phase == b.phase
        and a.stream == b.stream
        and a.waits == b.waits
        and _same_tensors(a.inputs, b.inputs)
        and _same_tensors(a.outputs, b.outputs)
        and _same_communication(a, b)
    )


def _same_tensors(a: Sequence[TensorInfo], b: Sequence[TensorInfo]) -> bool:
    return len(a) == len(b) and all(
        x.storage == y.storage and x.dtype == y.dtype for x, y in zip(a, b, strict=True)
    )


def _same_communication(a: Event, b: Event) -> bool:
    """Groups have their own ranks, and messages their own peers; all else is equal."""
    if a.comm is None or b.comm is None:
        return a.comm is b.comm
    return replace(a.comm, peer=-1) == replace(b.comm, peer=-1)


@dataclass(frozen=True)
class _Shard:
    """A parameter's shard on the two ranks that ran and on the one that is asked for."""

    name: str
    pair: Pair
    target: Shape


def _shard_shapes(
    first: Recording, second: Recording, rank: int, mesh: Mesh
) -> dict[str, _Shard] | None:
    """Shards by parameter; None if the arithmetic of shards is not what the ranks did."""
    own, other = Shards(first, mesh), Shards(second, mesh)
    found: dict[str, _Shard] = {}
    for storage, info in first.storages.items():
        if info.placement is None:
            continue
        theirs = second.storages[storage]
        here = own.local_shape(info.placement, first.rank)
        there = other.local_shape(theirs.placement or info.placement, second.rank)
        target = own.local_shape(info.placement, rank)
        if here is None or there is None or target is None:
            return None
        if (here, there) != (info.shape, theirs.shape):
            return None
        found.setdefault(_parameter(info), _Shard(_parameter(info), (here, there), target))
    return found


def _parameter(info: StorageInfo) -> str:
    """The parameter that memory belongs to: state of the optimizer is named after a slash."""
    return info.name.partition("/")[0]


class _Places:
    """Which shard each tensor that differs is, and so its shape on the third rank."""

    def __init__(self, first: Recording, second: Recording, shapes: Mapping[str, _Shard]) -> None:
        self.first, self.second = first, second
        self.shapes = shapes
        self.by_pair: dict[Pair, list[_Shard]] = {}
        for shard in shapes.values():
            self.by_pair.setdefault(shard.pair, []).append(shard)
        self.known: dict[int, _Shard] = {
            s: shapes[_parameter(i)]
            for s, i in first.storages.items()
            if _parameter(i) in shapes and i.role != "gradient"
        }
        self.targets: dict[Place, Shape] = {}
        self.open: dict[tuple[str, Pair], list[Place]] = {}

    def resolved(self) -> dict[Place, Shape] | None:
        """The shape of every tensor that differs, or None if some cannot be told."""
        for number in range(len(self.first.events)):
            differ = self._differences(number)
            if differ and not self._resolve(number, differ):
                return None
        return self.targets if all(map(self._share, self.open.items())) else None

    def _differences(self, number: int) -> dict[Pair, list[tuple[int, TensorInfo]]]:
        a, b = self.first.events[number], self.second.events[number]
        found: dict[Pair, list[tuple[int, TensorInfo]]] = {}
        if a is b:
            return found
        for at, (x, y) in enumerate(zip(_tensors(a), _tensors(b), strict=True)):
            if x.shape != y.shape:
                found.setdefault((x.shape, y.shape), []).append((at, x))
        return found

    def _resolve(self, number: int, differ: dict[Pair, list[tuple[int, TensorInfo]]]) -> bool:
        """Give every tensor of one event its shape, or leave it open; False if none fits."""
        for pair, tensors in differ.items():
            candidates = self.by_pair.get(pair, [])
            if not candidates:
                return False
            shapes = {c.target for c in candidates}
            if len(shapes) == 1:
                self._assign(number, tensors, candidates[:1])
                continue
            named = self._named(pair, tensors)
            order = list({s.name: s for s in named.values()}.values())
            others = [t for t in tensors if t[0] not in named]
            for at, shard in named.items():
                self.targets[number, at] = shard.target
            if not order and len(others) % len(candidates) == 0:
                order = candidates
            if order and len(others) % len(order) == 0:
                self._assign(number, others, order)
            else:
                key = (self.first.events[number].op, pair)
                self.open.setdefault(key, []).extend((number, at) for at, _ in others)
        return True

    def _named(self, pair: Pair, tensors: list[tuple[int, TensorInfo]]) -> dict[int, _Shard]:
        """Tensors whose memory belongs to a known parameter."""
        found = {}
        for at, tensor in tensors:
            shard = self.known.get(tensor.storage)
            if shard is not None and shard.pair == pair:
                found[at] = shard
        return found

    def _assign(
        self, number: int, tensors: list[tuple[int, TensorInfo]], shards: Sequence[_Shard]
    ) -> None:
        """The tensors are those of `shards`, in order, again and again.

        Results with memory of their own are recognised when they are read.
        """
        event = self.first.events[number]
        shared = Counter(t.storage for t in _tensors(event))
        for i, (at, tensor) in enumerate(tensors):
            shard = shards[i % len(shards)]
            self.targets[number, at] = shard.target
            if at >= len(event.inputs) and shared[tensor.storage] == 1:
                self.known[tensor.storage] = shard

    def _share(self, item: tuple[tuple[str, Pair], list[Place]]) -> bool:
        """Tensors of one operator that met each parameter equally often."""
        (_, pair), places = item
        shards = self.by_pair[pair]
        if len(places) % len(shards):
            return False
        each = len(places) // len(shards)
        for i, place in enumerate(places):
            self.targets[place] = shards[i // each].target
        return True


def _tensors(event: Event) -> tuple[TensorInfo, ...]:
    return event.inputs + event.outputs


def _substituted(events: Sequence[Event], targets: Mapping[Place, Shape]) -> tuple[Event, ...]:
    by_event: dict[int, dict[int, Shape]] = {}
    for (number, at), shape in targets.items():
        by_event.setdefault(number, {})[at] = shape
    found = list(events)
    for number, shapes in by_event.items():
        event = found[number]
        tensors = list(_tensors(event))
        for at, shape in shapes.items():
            tensors[at] = _reshaped(tensors[at], shape)
        count = len(event.inputs)
        found[number] = replace(
            event, inputs=tuple(tensors[:count]), outputs=tuple(tensors[count:])
        )
    return tuple(found)


def _reshaped(tensor: TensorInfo, shape: Shape) -> TensorInfo:
    elements = math.prod(tensor.shape)
    num_bytes = tensor.num_bytes * math.prod(shape) // max(elements, 1)
    return replace(tensor, shape=shape, num_bytes=num_bytes)


def _stored(
    storage: int, info: StorageInfo, second: Recording, shapes: Mapping[str, _Shard]
) -> StorageInfo:
    """Memory of a shard on the third rank; what both ranks padded alike stays."""
    shard = shapes.get(_parameter(info))
    if shard is None or info.shape != shard.pair[0]:
        return info
    num_bytes = info.num_bytes
    if second.storages[storage].num_bytes != num_bytes:
        elements = max(math.prod(info.shape), 1)
        num_bytes = num_bytes * math.prod(shard.target) // elements
    return replace(info, shape=shard.target, num_bytes=num_bytes)
