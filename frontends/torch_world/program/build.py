"""Recording -> Program: one row for each event, dependencies from the memory that events share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flint.frontends.torch_world.program.found_memory import (
    DONATED_ROLES,
    found_memory,
    leaving_together,
    replaced,
)
from flint.frontends.torch_world.program.groups import Channels, Messages, group_of
from flint.frontends.torch_world.program.memory import FUNCTIONAL, Memory, StreamOrder
from flint.frontends.torch_world.program.names import (
    is_causal,
    opcode_of,
    stream_names,
    without_overload,
)
from flint.frontends.torch_world.program.op_classes import class_of
from flint.frontends.torch_world.program.operands import (
    corrected,
    does_nothing,
    is_indexed,
    is_view,
    made,
    memory_bytes,
    read,
    results,
    written,
)
from flint.frontends.torch_world.program.work import moved_bytes, work_of
from flint.frontends.torch_world.record.recording import (
    ALLOCATION,
    Comm,
    CommKind,
    Event,
    HostCopy,
    PassLoop,
    Recording,
    TensorInfo,
    with_known_sources,
)
from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import Group, Mesh
from flint.ir.op_class import ATTENTION, OpClass
from flint.ir.program import CAUSAL, Collective, Flag, Kind, Phase, Program, RegionKind
from flint.passes.tensors import dtype_name
from flint.passes.work import host_copies
from flint.passes.work.work import Work

#: Opcode of a VALUE row that is its dependency, unchanged.
IDENTITY = "flint.identity"
#: Opcode of the arguments of a step: memory that it finds.
ARGUMENT = "torch.argument"
#: Operators that rename or wait: nothing runs on the device.
_IDLE = frozenset(
    f"aten.{name}"
    for name in ("alias", "detach", "detach_", "lift", "lift_fresh", "resize_", "set_")
) | {"_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd"}
_WITHOUT_WORK = _IDLE | {without_overload(ALLOCATION)}
#: Operators that are kernels by themselves: PyTorch's, and those of packages that are stood in for.
LAUNCHED = (
    "aten.",
    "torch_attn.",
    "te.",
    "amp_C.",
    "apex.",
    "flash_attn.",
    "xformers.",
    "flex.",
    "deep_ep.",
    "triton.",
)
#: PyTorch's names of reductions.
_REDUCERS = {
    "": OpClass.ADD,
    "sum": OpClass.ADD,
    "max": OpClass.MAXIMUM,
    "min": OpClass.MINIMUM,
    "product": OpClass.MULTIPLY,
}


@dataclass(frozen=True)
class Built:
    """A program, the row of each event of its recording (-1: none), of found memory by storage."""

    program: Program
    rows: tuple[int, ...]
    arguments: Mapping[int, int]


def build_program(recording: Recording, mesh: Mesh, channels: Channels | None = None) -> Built:
    """Turn a recording into a Program of `mesh`; the result is not verified here.

    Memory that the step finds becomes PARAMETER rows. A row depends on the rows that last wrote
    what it reads, on those that still read what it writes, on the events that it waits for, and
    on what its stream waited for. `channels` are shared by the rank classes of one workload.
    """
    events = tuple(map(corrected, with_known_sources(recording)))
    work = _Build(replace(recording, events=events), mesh, channels or Channels())
    work.add_arguments()
    begins = {loop.start: loop for loop in recording.loops}
    for number, event in enumerate(events):
        if number in begins:
            work.begin_loop(begins[number])
        work.add(event)
        if work.loop and work.loop.stop == number + 1:
            work.end_loop(work.loop)
    work.end()
    return Built(work.builder.build(), tuple(work.rows), work.arguments)


@dataclass
class _Build:
    recording: Recording
    mesh: Mesh
    channels: Channels
    rows: list[int] = field(default_factory=list)
    arguments: dict[int, int] = field(default_factory=dict)
    loop: PassLoop | None = None
    carried: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.builder = ProgramBuilder(self.mesh)
        self.memory = Memory()
        self.messages = Messages(self.recording.rank, self.mesh, self.channels)
        self.streams = stream_names(self.recording.streams)
        self.order = StreamOrder()
        self.groups: dict[str, Group] = {}
        self.last_row = -1
        self.shown: set[int] = set()  # storages that are other names of a row's value
        infos = self.recording.storages.items()
        self.gradients = {s for s, info in infos if info.role == "gradient"}
        copies = (e for e in self.recording.events if e.host is HostCopy.FROM_HOST)
        self.returning = {t.storage for e in copies for t in e.inputs}  # what the host still needs
        self.freed: dict[int, list[int]] = {}
        self.freed_at = dict(self.recording.freed)
        for storage, events in self.recording.freed:
            self.freed.setdefault(events, []).append(storage)

    def add_arguments(self) -> None:
        """PARAMETER rows for memory with a role, and for what is read before it is written."""
        changed = {s for e in self.recording.events for s in e.writes}
        for storage, tensor in found_memory(self.recording).items():
            info = self.recording.storages.get(storage)
            on_host = info is not None and info.on_host
            role = info.role if info else "other"
            donated = role in DONATED_ROLES and storage in changed
            row = self.builder.add(
                host_copies.ARGUMENT if on_host else ARGUMENT,
                Kind.PARAMETER,
                op=OpClass.HOST_VALUE if on_host else OpClass.VALUE,
                dtype=dtype_name(tensor.dtype),
                shape=tensor.shape,
                result_bytes=tensor.num_bytes,
                name=f"{role}.{info.name}" if info and info.name else role,
                flags=Flag.DONATED if donated else 0,
            )
            self.arguments[storage] = row
            self.memory.provide(storage, row, tensor.num_bytes)
        self.shown |= replaced(self.recording) & self.arguments.keys()
        for storages, num_bytes in leaving_together(self.recording):
            row = self.builder.add("torch.held", Kind.VALUE, result_bytes=num_bytes)
            for storage in storages:
                self.memory.provide(storage, row, num_bytes)
                self.shown.add(storage)

    def end(self) -> None:
        """The step is over. Gradients stay until they are reset, and what else the program holds."""
        self._free(Phase.UNKNOWN)
        rows = {r for s in self.gradients - set(self.arguments) for r in self.memory.writers(s)}
        if rows:
            self.builder.add("torch.gradients", Kind.VALUE, op=OpClass.RESULT, deps=sorted(rows))

    def begin_loop(self, loop: PassLoop) -> None:
        """Passes that are alike: a loop, which begins with what each has of the one before."""
        self.builder.begin_region(RegionKind.LOOP, loop.trips, name="decode")
        self.loop, self.carried = loop, []
        for storage, next_one in loop.carries:
            row = self.builder.add(
                "torch.carry",
                Kind.VALUE,
                deps=self.memory.writers(storage),
                dtype=dtype_name(next_one.dtype),
                shape=next_one.shape,
                result_bytes=next_one.num_bytes,
                phase=Phase.DECODE,
            )
            self.carried.append(row)
            self.memory.provide(storage, row, next_one.num_bytes)

    def end_loop(self, loop: PassLoop) -> None:
        """What the passes make, the next ones begin with."""
        produced = [self.memory.writer(t) for _, t in loop.carries]
        self.builder.end_region(list(zip(self.carried, produced, strict=True)))

    def add(self, event: Event) -> None:
        self._free(event.phase)
        if event.comm is not None:
            row = self._communication(event, event.comm)
        elif event.host is not HostCopy.NONE:
            row = self._host_copy(event)
        elif does_nothing(event):
            self._leave_waits(event)
            row = -1
        elif is_view(event) or opcode_of(event) in _WITHOUT_WORK:
            row = self._value(event, opcode_of(event))
        else:
            row = self._compute(event)
        self.rows.append(row)
        self.order.passed(event)

    def _free(self, phase: Phase) -> None:
        """A row for memory that the program let go of now, but not at its last use."""
        late: set[int] = set()
        for storage in self.freed.get(len(self.rows), ()):
            stays = storage in self.arguments and storage not in self.shown
            if stays or storage in self.gradients or storage in self.returning:
                continue
            if storage in self.shown or self.memory.last_use(storage) < self.last_row:
                late |= self.memory.writers(storage)
            self.memory.forget(storage)
        if late:
            self.builder.add(
                "torch.free", Kind.VALUE, op=OpClass.FREED, deps=sorted(late), phase=phase
            )

    def _sources(self, tensors: Sequence[TensorInfo]) -> list[int]:
        """The rows that made what a reader of `tensors` reads."""
        return [row for tensor in tensors for row in self.memory.rows_of(tensor)]

    def _waited(self, event: Event) -> tuple[int, ...]:
        """Rows of other events that must be over first, those of skipped events included."""
        rows = self.order.ends(event) + self.order.take_left_over(event.stream)
        return tuple([r for r in rows if r >= 0])

    def _leave_waits(self, event: Event) -> None:
        """What an event without work waits for, the next one of its stream waits for."""
        if event.waits and not event.op.startswith(FUNCTIONAL):
            self.order.leave(event.stream, self.order.ends(event))

    def _value(self, event: Event, opcode: str) -> int:
        """A row without work: a view, an allocation, a wait."""
        self._leave_waits(event)
        home = event.outputs[0].storage if event.outputs else -1
        if home < 0 or (event.op == ALLOCATION and home in self.arguments):
            return -1
        sources = self._sources(event.inputs)
        aliased = self._sources([t for t in event.inputs if t.storage == home])
        alias = max(aliased or sources, default=-1)
        row = self._row(
            event,
            opcode,
            Kind.VALUE,
            deps=sources,
            stored=event.outputs[:1],
            flags=Flag.VIEW if alias >= 0 else 0,
            alias=alias,
        )
        for tensor in made(event):
            self.memory.provide(tensor.storage, row, tensor.num_bytes)
            self.shown.add(tensor.storage)
        for tensor in event.outputs:
            self.memory.see(tensor, row)
        return row

    def _compute(self, event: Event) -> int:
        work, op = work_of(event), class_of(event.op)
        reads, stored = read(event), results(event)
        operand_bytes, result_bytes = moved_bytes(work, reads, stored, self.memory.visible_bytes)
        return self._works(
            event,
            opcode_of(event),
            Kind.COMPUTE,
            reads,
            stored,
            operand_bytes=operand_bytes,
            result_bytes=result_bytes,
            flops=work.flops,
            dims=work.dims,
            product=work.product,
            mask=CAUSAL if op in ATTENTION and is_causal(event) else work.mask,
            op=work.class_or(op),
            flags=flags_of(event, work, op),
        )

    def _host_copy(self, event: Event) -> int:
        """A copy over the link of the host, on the stream that the program ran it on.

        Values are converted before they are copied, so that the bytes are those of the result.
        """
        stored = results(event)
        moved = sum(t.num_bytes for t in stored)
        op = OpClass.TO_HOST if event.host is HostCopy.TO_HOST else OpClass.FROM_HOST
        return self._works(
            event,
            host_copies.OPCODES[op],
            Kind.COMPUTE,
            read(event),
            stored,
            op=op,
            operand_bytes=moved,
            result_bytes=moved,
            flags=Flag(0),
        )

    def _communication(self, event: Event, comm: Comm) -> int:
        group = self._group(comm.group)
        alone = not group.axes and not group.ranks
        if comm.kind is CommKind.COLLECTIVE and (alone or comm.collective is Collective.NONE):
            return self._alone(event)
        overlaps = comm.is_async or event.op.startswith(FUNCTIONAL)
        flags = Flag.ASYNC if overlaps else Flag(0)
        reads, stored = read(event), results(event)
        result_bytes = sum(t.num_bytes for t in stored)
        if comm.kind is CommKind.COLLECTIVE:
            return self._works(
                event,
                opcode_of(event),
                Kind.COLLECTIVE,
                reads,
                stored,
                op=reducer(comm),
                collective=comm.collective,
                group=group,
                comm_bytes=comm.input_bytes,
                operand_bytes=comm.input_bytes,
                result_bytes=result_bytes,
                flags=flags,
            )
        sends = comm.kind is CommKind.SEND
        route, channel = self.messages.of(comm, group)
        return self._works(
            event,
            opcode_of(event),
            Kind.SEND if sends else Kind.RECV,
            reads,
            stored,
            route=route,
            channel=channel,
            comm_bytes=comm.input_bytes,
            operand_bytes=comm.input_bytes if sends else 0,
            result_bytes=result_bytes,
            flags=flags,
        )

    def _alone(self, event: Event) -> int:
        """A collective of one rank: its result is its input."""
        self._leave_waits(event)
        sources = self._sources(event.inputs)
        stored = [t for t in results(event) if t.storage not in {i.storage for i in event.inputs}]
        if not stored:
            return max(sources, default=-1)
        alias = max(sources, default=-1)
        flags = Flag.VIEW if alias >= 0 else 0
        updates = [t for t in stored if t.storage in event.writes]
        deps = sources + [r for t in updates for r in self.memory.rows_before_write(t)]
        row = self._row(
            event, IDENTITY, Kind.VALUE, deps=deps, stored=stored[:1], flags=flags, alias=alias
        )
        for tensor in stored:
            if tensor in updates:
                self.memory.was_written(tensor, row)
            else:
                self.memory.provide(tensor.storage, row, tensor.num_bytes)
                self.shown.add(tensor.storage)
        return row

    def _group(self, key: str) -> Group:
        if key not in self.groups:
            self.groups[key] = group_of(key, self.recording, self.mesh)
        return self.groups[key]

    def _works(
        self,
        event: Event,
        opcode: str,
        kind: Kind,
        reads: tuple[TensorInfo, ...],
        stored: tuple[TensorInfo, ...],
        *,
        flags: Flag,
        **columns: Any,
    ) -> int:
        """A row that works: it reads `reads` and leaves `stored` in memory."""
        deps = self._sources(reads)
        updates = written(event)
        alias = -1
        for tensor in updates:
            deps += self.memory.rows_before_write(tensor)
            alias = self.memory.writer(tensor) if alias < 0 else alias
        waited = self._waited(event)
        deps += waited
        row = self._row(
            event,
            opcode,
            kind,
            deps=deps + self.order.before(event, deps),
            stored=stored or event.inputs[:1],
            flags=flags | Flag.IN_PLACE if alias >= 0 else flags,
            alias=alias,
            **columns,
        )
        self.order.ran(event, row, bool(waited))
        for tensor in reads:
            self.memory.was_read(tensor, row)
        self._leave_in_memory(event, row, updates, stored)
        return row

    def _leave_in_memory(
        self,
        event: Event,
        row: int,
        updates: Sequence[TensorInfo],
        stored: Sequence[TensorInfo],
    ) -> None:
        """`row` has written: what is let go of at another time, or is larger, has a row of its own."""
        ends = {} if event.call.number else self.freed_at
        apart = len({ends.get(t.storage) for t in updates}) > 1
        for tensor in updates:
            seen = self._seen(row, tensor) if apart and tensor != updates[0] else row
            self.memory.was_written(tensor, seen)
        for tensor in stored:
            if tensor.storage not in event.writes:
                whole = memory_bytes(event, tensor)
                apart = ends.get(tensor.storage) != ends.get(stored[0].storage)
                apart |= whole > tensor.num_bytes
                made_by = self._result(row, row, tensor, whole) if apart else row
                self.memory.provide(tensor.storage, made_by, tensor.num_bytes)

    def _seen(self, row: int, tensor: TensorInfo) -> int:
        """The row of one of several updates: a view of what was there, as it is after `row`."""
        before = self.memory.writer(tensor)
        if before < 0 or tensor.storage in self.arguments:
            return row
        return self._result(row, before, tensor, tensor.num_bytes)

    def _result(self, row: int, alias: int, tensor: TensorInfo, num_bytes: int) -> int:
        return self.builder.add(
            "torch.result",
            Kind.VALUE,
            op=OpClass.PART,
            deps=sorted({row, alias}),
            alias=alias,
            dtype=dtype_name(tensor.dtype),
            shape=tensor.shape,
            result_bytes=num_bytes,
            flags=Flag.VIEW,
        )

    def _row(
        self,
        event: Event,
        opcode: str,
        kind: Kind,
        *,
        deps: Sequence[int],
        stored: Sequence[TensorInfo],
        **columns: Any,
    ) -> int:
        if stored:
            columns["dtype"], columns["shape"] = dtype_name(stored[0].dtype), stored[0].shape
            if kind is Kind.VALUE:
                columns["result_bytes"] = stored[0].num_bytes
        if kind is not Kind.VALUE and event.op.startswith(LAUNCHED):
            columns["flags"] = columns.get("flags", 0) | Flag.LAUNCHED
        if event.call.replayed and kind is not Kind.VALUE:
            columns["flags"] = columns.get("flags", 0) | Flag.REPLAYED
        row = self.builder.add(
            opcode,
            kind,
            deps=deps,
            stream=self.streams[event.stream],
            scope=event.module.replace(".", "/"),
            location=event.location,
            phase=event.phase,
            compiled=event.call.number,
            **columns,
        )
        self.order.placed(row, deps)
        self.last_row = row
        return row


def reducer(comm: Comm) -> OpClass:
    """What a collective reduces with; MOVE if it does not reduce."""
    if comm.collective not in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        return OpClass.MOVE
    return _REDUCERS.get(comm.reduction, OpClass.OTHER)


def flags_of(event: Event, work: Work, op: OpClass) -> Flag:
    """What an operator's work says of its row, and how its arrays lie."""
    found = Flag.INDEXED if is_indexed(event, work.class_or(op)) else Flag(0)
    return found | Flag.UNPRICED if work.unpriced else found
