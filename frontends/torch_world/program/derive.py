"""The recording of a rank that holds other shards, derived from one that ran.

Shards that `torch.chunk` makes are full, a remainder or empty. FSDP pads them for its collectives,
so that ranks differ only where operators work on the shards themselves: gradients after they were
scattered, their norms, and the optimizer. There a tensor is the shard of a parameter if its memory
is that of the parameter, of its gradient or of its state, or was computed from such element by
element, and then has the shape of that parameter's shard on the other rank.

It is a proof only if nothing else touches shards. Where something does (a product with a matrix
that tensor parallelism split unevenly, a shard seen in another shape) there is no derived
recording, and the rank must run.

Its program is made from that of the recording it was derived from: only sizes differ, so only the
rows of events with other sizes are looked at.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from flint.frontends.torch_world.program.build import Built
from flint.frontends.torch_world.program.names import base_name, without_overload
from flint.frontends.torch_world.program.op_classes import class_of
from flint.frontends.torch_world.program.operands import is_view, read, results
from flint.frontends.torch_world.program.shards import Shape, Shards
from flint.frontends.torch_world.program.work import moved_bytes, work_of
from flint.frontends.torch_world.record.recording import Event, Recording, StorageInfo, TensorInfo
from flint.ir.builder import Table
from flint.ir.mesh import Mesh
from flint.ir.op_class import ELEMENTWISE, GENERATED, REDUCTION
from flint.ir.program import Kind, Phase, Program

#: Number of an event, and of a tensor in it: inputs first, then outputs.
Place = tuple[int, int]
#: Operators that give each element of a shard, or each shard of a list, on its own.
_ELEMENT_BY_ELEMENT = frozenset(
    ("clone", "copy", "to", "detach", "alias", "_fused_adam", "_fused_adamw", "_fused_sgd")
    + ("_fused_adagrad", "_amp_foreach_non_finite_check_and_unscale")
)
#: Operators that carry padded shards to a collective.
_PACKING = frozenset(
    ("aten._foreach_copy_", "aten.copy_", "aten._to_copy", "aten.cat")
    + ("fsdp.all_gather_copy_in", "fsdp.chunk_cat")
)


class _Unprovable(Exception):
    """Something touches a shard that is not known to treat all shards alike."""


@dataclass(frozen=True)
class _Shard:
    """A parameter's shard on the rank that ran and on the one that is asked for."""

    name: str
    here: Shape
    there: Shape


def derive(recording: Recording, rank: int, mesh: Mesh) -> Recording | None:
    """What `recording` would be with the shards of `rank`, or None if that cannot be told."""
    shards = _parameter_shards(recording, rank, mesh)
    if shards is None:
        return None
    found = {s for s, i in recording.storages.items() if i.role == "gradient"}
    try:
        while True:
            places = _Places(recording, shards, found)
            shapes = places.resolved()
            if places.shared == found:
                break
            found = places.shared
    except _Unprovable:
        return None
    storages = {s: _stored(i, shards) for s, i in recording.storages.items()}
    return replace(recording, events=_substituted(recording.events, shapes), storages=storages)


def _parameter_shards(recording: Recording, rank: int, mesh: Mesh) -> dict[str, _Shard] | None:
    """Shards by parameter; None if the arithmetic of shards is not what the rank did."""
    arithmetic = Shards(recording, mesh)
    shapes = cache(arithmetic.local_shape)
    found: dict[str, _Shard] = {}
    for info in recording.storages.values():
        if info.placement is None or parameter_of(info) in found:
            continue
        here, there = (shapes(info.placement, r) for r in (recording.rank, rank))
        if here is None or there is None or here != info.shape:
            return None
        found[parameter_of(info)] = _Shard(parameter_of(info), here, there)
    return found


def parameter_of(info: StorageInfo) -> str:
    """The parameter that memory belongs to: state of the optimizer is named after a slash."""
    return info.name.partition("/")[0]


class _Places:
    """Which tensors of a recording are shards, of what, and so their shape on the other rank.

    `shared` is memory that several shards lie in: scattered gradients, and what is found.
    """

    def __init__(
        self, recording: Recording, shards: Mapping[str, _Shard], shared: set[int]
    ) -> None:
        self.events = recording.events
        self.by_shape: dict[Shape, list[_Shard]] = {}
        for shard in shards.values():
            self.by_shape.setdefault(shard.here, []).append(shard)
        self.known: dict[int, _Shard] = {}
        self.shared = set(shared)
        for storage, info in recording.storages.items():
            owner = shards.get(parameter_of(info))
            if owner is not None and owner.here == info.shape and storage not in shared:
                self.known[storage] = owner
        self.shapes: dict[Place, Shape] = {}
        self.open: dict[tuple[str, Shape], list[Place]] = {}

    def resolved(self) -> dict[Place, Shape]:
        """The shape of every shard. Raises _Unprovable."""
        for number, event in enumerate(self.events):
            if event.comm is None:
                found = self._shards_in(event)
                if found:
                    self._resolve(number, found)
        for (_, shape), places in self.open.items():
            self._share(shape, places)
        return self.shapes

    def _shards_in(self, event: Event) -> dict[Shape, list[tuple[int, TensorInfo]]]:
        tensors = event.inputs + event.outputs
        shards = [(at, t) for at, t in enumerate(tensors) if self._is_shard(event, t)]
        if not shards:
            return {}
        if not is_view(event):
            shapes = {t.shape for _, t in shards}
            shards += self._computed(event, shapes)
            self._look_beside(event, {at for at, _ in shards}, shapes)
        found: dict[Shape, list[tuple[int, TensorInfo]]] = {}
        for at, tensor in shards:
            found.setdefault(tensor.shape, []).append((at, tensor))
        return found

    def _is_shard(self, event: Event, tensor: TensorInfo) -> bool:
        """Whether a tensor is a shard itself, not padded or flat. Raises _Unprovable."""
        if tensor.storage in self.shared:
            return tensor.shape in self.by_shape
        shard = self.known.get(tensor.storage)
        if shard is None:
            return False
        steps = event.phase is Phase.OPTIMIZER
        if shard.here == shard.there:
            return steps and tensor.shape == shard.here
        if not steps and (without_overload(event.op) in _PACKING or is_view(event)):
            flat = len(tensor.shape) == 1 and tensor.shape[0] == math.prod(shard.here)
            if flat or tensor.shape == shard.here:
                return False
        if tensor.shape != shard.here or not steps:
            raise _Unprovable(f"{event.op} in {event.phase.name}")
        return True

    def _computed(self, event: Event, shapes: set[Shape]) -> list[tuple[int, TensorInfo]]:
        """Results that are shards because their operator works element by element."""
        name = base_name(event.op)
        op = class_of(event.op)
        if op in REDUCTION and all(not t.shape for t in event.outputs):
            return []
        if op not in ELEMENTWISE | GENERATED and name not in _ELEMENT_BY_ELEMENT:
            raise _Unprovable(event.op)
        first = len(event.inputs)
        results = list(enumerate(event.outputs, start=first))
        return [
            (at, t)
            for at, t in results
            if t.shape in shapes and t.storage not in self.known and t.storage not in self.shared
        ]

    def _look_beside(self, event: Event, shards: set[int], shapes: set[Shape]) -> None:
        """What meets a shard element by element is one, too: its memory is looked at again.

        Raises _Unprovable for what is neither a shard nor a number.
        """
        for at, tensor in enumerate(event.inputs):
            if at in shards or math.prod(tensor.shape) == 1:
                continue
            if tensor.shape not in shapes:
                raise _Unprovable(f"{event.op} of {tensor.shape}")
            self.shared.add(tensor.storage)

    def _resolve(self, number: int, found: dict[Shape, list[tuple[int, TensorInfo]]]) -> None:
        """Give every shard of one event its shape, or leave it open."""
        for shape, tensors in found.items():
            candidates = self.by_shape[shape]
            if len({c.there for c in candidates}) == 1:
                self._assign(number, tensors, candidates[:1])
                continue
            named = {at: self.known[t.storage] for at, t in tensors if t.storage in self.known}
            for at, shard in named.items():
                self.shapes[number, at] = shard.there
            others = [t for t in tensors if t[0] not in named]
            order = list({s.name: s for s in named.values()}.values())
            if not order and len(others) % len(candidates) == 0:
                order = candidates
            if order and len(others) % len(order) == 0:
                self._assign(number, others, order)
            else:
                places = self.open.setdefault((self.events[number].op, shape), [])
                places.extend((number, at) for at, _ in others)

    def _assign(
        self, number: int, tensors: list[tuple[int, TensorInfo]], shards: Sequence[_Shard]
    ) -> None:
        """The tensors are those of `shards`, in order, again and again.

        Results with memory of their own are recognized when they are read.
        """
        event = self.events[number]
        count = Counter(t.storage for t in event.inputs + event.outputs)
        for i, (at, tensor) in enumerate(tensors):
            shard = shards[i % len(shards)]
            self.shapes[number, at] = shard.there
            if at >= len(event.inputs) and count[tensor.storage] == 1:
                self.known[tensor.storage] = shard

    def _share(self, shape: Shape, places: list[Place]) -> None:
        """Tensors of one operator that met each parameter equally often. Raises _Unprovable."""
        shards = self.by_shape[shape]
        if len(places) % len(shards):
            raise _Unprovable(f"{len(places)} tensors of {len(shards)} parameters")
        each = len(places) // len(shards)
        for i, place in enumerate(places):
            self.shapes[place] = shards[i // each].there


def _substituted(events: Sequence[Event], shapes: Mapping[Place, Shape]) -> tuple[Event, ...]:
    by_event: dict[int, dict[int, Shape]] = {}
    for (number, at), shape in shapes.items():
        by_event.setdefault(number, {})[at] = shape
    found = list(events)
    for number, changed in by_event.items():
        event = found[number]
        tensors = list(event.inputs + event.outputs)
        for at, shape in changed.items():
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


def _stored(info: StorageInfo, shards: Mapping[str, _Shard]) -> StorageInfo:
    """Memory of a shard on the other rank. FSDP pads parameters alike on all ranks."""
    shard = shards.get(parameter_of(info))
    if shard is None or info.shape != shard.here or info.role == "gradient":
        return info
    num_bytes = info.num_bytes
    if info.role != "parameter":
        num_bytes = num_bytes * math.prod(shard.there) // max(math.prod(shard.here), 1)
    return replace(info, shape=shard.there, num_bytes=num_bytes)


def resized(built: Built, recording: Recording, derived: Recording) -> Program:
    """What `build_program(derived, ...)` is; `built` is the program of `recording`."""
    edit = _Edit(built)
    for storage, row in built.arguments.items():
        before, after = recording.storages.get(storage), derived.storages.get(storage)
        if after is not None and after is not before:
            edit.set(row, TensorInfo(storage, after.shape, after.dtype, after.num_bytes))
    events = zip(built.rows, recording.events, derived.events, strict=True)
    for row, old, event in events:
        if event is not old and row >= 0:
            edit.event(row, event)
    return edit.result()


@dataclass
class _Edit:
    built: Built
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.built.program
        self.result_bytes = program.result_bytes.copy()
        self.operand_bytes = program.operand_bytes.copy()
        self.flops = program.flops.copy()
        self.dims = program.dims.copy()

    def set(self, row: int, tensor: TensorInfo) -> None:
        """A row without work whose value is `tensor`."""
        self.shapes[row] = tensor.shape
        self.result_bytes[row] = tensor.num_bytes

    def event(self, row: int, event: Event) -> None:
        if self.built.program.kind[row] == Kind.VALUE:
            self.set(row, event.outputs[0])
            return
        work, stored = work_of(event), results(event)
        moved = moved_bytes(work, read(event), stored, lambda t: t.num_bytes)
        self.operand_bytes[row], self.result_bytes[row] = moved
        self.flops[row], self.dims[row] = work.flops, work.dims
        self.shapes[row] = (stored or event.inputs)[0].shape

    def result(self) -> Program:
        """The program, its shapes numbered in order of first use."""
        program = self.built.program
        table: Table[tuple[int, ...]] = Table()
        numbers = program.shape.copy()
        old = [program.shapes[n] for n in numbers.tolist()]
        for row, shape in enumerate(old):
            numbers[row] = table.index(self.shapes.get(row, shape))
        return program.with_rows(
            shape=numbers,
            shapes=tuple(table),
            result_bytes=self.result_bytes,
            operand_bytes=self.operand_bytes,
            flops=self.flops,
            dims=self.dims,
        )
