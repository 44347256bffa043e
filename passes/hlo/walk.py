"""One walk from a partitioned HLO module to a Program.

Tuples are taken apart on the way: a value is a tree whose leaves are rows, so that a dependency
through a tuple is on the one row that is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flint.errors import Malformed
from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import Group, Mesh
from flint.ir.op_class import ELEMENTWISE, OpClass
from flint.ir.program import Collective, Flag, Kind, Program, RegionKind
from flint.passes.hlo import shapes
from flint.passes.hlo.barriers import BARRIERS, passed, waits
from flint.passes.hlo.calls import FREE_TARGETS
from flint.passes.hlo.check import VIEWS, check_module, check_size
from flint.passes.hlo.collectives import (
    Message,
    collective_kind,
    collective_message,
    fused_reduce_scatter,
    holds_collective,
    point_to_point_message,
    reducer,
    reduction,
)
from flint.passes.hlo.convolutions import Windows
from flint.passes.hlo.cycles import estimated_cycles, prefetches
from flint.passes.hlo.facts import NOTHING, CapturedFacts, turned_operands
from flint.passes.hlo.module import (
    HloModule,
    Instruction,
    location,
    malformed,
    scope_and_phase,
    started_shape,
)
from flint.passes.hlo.op_classes import class_of
from flint.passes.hlo.places import kept_part
from flint.passes.hlo.trees import Rows, flat, mapped, tree, zipped
from flint.passes.hlo.trip_counts import (
    AskedLoops,
    Value,
    body_arguments,
    compares_counters,
    counted_trips,
    known_trip_count,
)
from flint.passes.hlo.visit import Visit
from flint.passes.hlo.work import work_of
from flint.passes.rewrites.phases import with_phases
from flint.passes.work.host_copies import ARGUMENT
from flint.passes.work.work import Work
from flint.steps.trip_counts import TripCounts

NO_WORK = frozenset({"constant", "after-all", "partition-id", "replica-id", "add-dependency"})


def module_to_program(
    module: HloModule,
    mesh: Mesh,
    trip_counts: Mapping[str, int] | None = None,
    known: CapturedFacts = NOTHING,
) -> Program:
    """The Program of one device of `mesh` that runs a partitioned `module`.

    `trip_counts` gives loops whose bound is not static, by instruction name or scope. Raises FlintError FL303 (a module that contradicts itself), FL102 (other mesh) or FL403 (unknown trip count).
    """
    return with_phases(_walked(module, mesh, trip_counts, known, apart=False)[0])


def module_with_results(
    module: HloModule,
    mesh: Mesh,
    trip_counts: Mapping[str, int] | None = None,
    known: CapturedFacts = NOTHING,
    *,
    apart: bool = True,
) -> tuple[Program, tuple[int, ...]]:
    """As `module_to_program`, with phases as tagged (it may be a part of a step), and for each result of
    the module a row that holds it, with `apart` one of its own.
    """
    return _walked(module, mesh, trip_counts, known, apart=apart)


def _walked(
    module: HloModule,
    mesh: Mesh,
    trip_counts: Mapping[str, int] | None,
    known: CapturedFacts,
    *,
    apart: bool,
) -> tuple[Program, tuple[int, ...]]:
    check_size(module, mesh)
    try:
        check_module(module)
        walk = _HloWalk(module, mesh, TripCounts.of(trip_counts), known)
        results = walk.run(apart=apart)
    except Malformed as error:
        raise malformed(module.source, str(error)) from error
    return walk.builder.build(), results


class _HloWalk:
    """State of one walk: the rows so far, and the rows of every value in reach."""

    def __init__(
        self,
        module: HloModule,
        mesh: Mesh,
        trip_counts: TripCounts,
        known: CapturedFacts,
    ) -> None:
        self.module = module
        self.known = known
        self.mesh = mesh
        self.loops = AskedLoops(trip_counts)
        self.builder = ProgramBuilder(mesh)
        self._channels: dict[int, int] = {}
        self._choices = 0

    def run(self, *, apart: bool) -> tuple[int, ...]:
        """Add all rows of the entry computation and one that holds its results; returns those.

        With `apart` each result has a row: a kernel may give several.
        """
        entry = self.module.entry
        parameters = [i for i in entry.instructions if i.opcode == "parameter"]
        arguments = [
            self._parameter(p) for p in sorted(parameters, key=lambda p: p.parameter_number)
        ]
        scope = Visit(self.module, entry, arguments, [])
        result = self._computation(scope)
        root = self.module.root(entry)
        deps = list(flat(self._apart(root, result) if apart else result))
        self.builder.add("hlo.ROOT", Kind.VALUE, op=OpClass.RESULT, deps=deps)
        return tuple(deps)

    def _apart(self, root: Instruction, result: Rows) -> Rows:
        """A view for each leaf of a result, of its type."""

        def view(part: Any, row: int) -> int:
            dtype, shape = shapes.first(part)
            return self.builder.add(
                "hlo.result", Kind.VALUE, deps=[row], alias=row, dtype=dtype, shape=shape,
                result_bytes=shapes.num_bytes(part), flags=Flag.VIEW,
            )  # fmt: skip

        return zipped(root.shape, result, view)

    def _computation(self, scope: Visit) -> Rows:
        """Add the rows of a computation; returns those of its result."""
        for instruction in self.module.in_order(scope.computation):
            scope.places.see(instruction)
            scope.rows[instruction.id] = self._instruction(instruction, scope)
        return scope.rows[self.module.root(scope.computation).id]

    def _parameter(self, p: Instruction) -> Rows:
        number = p.parameter_number
        is_donated = number in self.module.donated or number in self.known.donated
        flags = Flag.DONATED if is_donated else 0
        on_host, cause = self.known.argument(number)
        return tree(p.shape, lambda part: -1 if part.element_type == shapes.TOKEN else self.builder.add(
            ARGUMENT if on_host else "hlo.parameter", Kind.PARAMETER,
            op=OpClass.HOST_VALUE if on_host else OpClass.VALUE, dtype=shapes.first(part)[0],
            shape=shapes.first(part)[1], result_bytes=shapes.num_bytes(part),
            name=p.metadata.op_name or p.name, location=location(p, self.module), flags=flags,
            cause=cause,
        ))  # fmt: skip

    def _instruction(self, i: Instruction, scope: Visit) -> Rows:
        """Add the rows of one instruction; returns those of its result."""
        opcode = i.opcode
        operands = [scope.rows[o] for o in i.operand_ids]
        if opcode == "parameter":
            return scope.arguments[i.parameter_number]
        if opcode == "tuple":
            return self._tuple(i, operands, scope)
        if opcode == "get-tuple-element":
            return operands[0][i.tuple_index]
        if opcode == "while":
            return self._loop(i, operands[0], scope)
        if opcode == "conditional":
            return self._conditional(i, operands, scope)
        if opcode in ("call", "async-start"):
            return self._call(i, operands, scope)
        if opcode == "async-update" or prefetches(i):
            return operands[0]
        if opcode.endswith("-done"):
            return self._done(i, operands[0], scope)
        if opcode in ("send", "recv"):
            return self._point_to_point(i, scope)
        if collective_kind(opcode):
            return self._collective(i, scope)
        if opcode == "fusion" and holds_collective(i, self.module):
            return self._communicating_fusion(i, operands, scope)
        return self._compute(i, scope)

    def _tuple(self, i: Instruction, operands: list[Rows], scope: Visit) -> Rows:
        """In a scheduled module a tuple that is taken apart again was a barrier: parts wait for all of it."""
        read = scope.parts_read.get(i.id) if self.module.schedules else None
        return passed(i, operands, read, self.module, self.builder) if read else tuple(operands)

    def _call(self, i: Instruction, operands: list[Rows], scope: Visit) -> Rows:
        called = self.module.called(i)[0]
        asynchronous = scope.asynchronous or i.opcode == "async-start"
        known = [scope.value(o) for o in self._operands(i, scope)]
        return self._computation(Visit(self.module, called, operands, known, asynchronous))

    def _compute(self, i: Instruction, scope: Visit) -> Rows:
        if i.opcode in BARRIERS:
            self.builder.barrier()
            if waits(i, scope.computation, self.module):
                operand, read = scope.rows[i.operand_ids[0]], scope.parts_read.get(i.id)
                return passed(i, operand, read, self.module, self.builder)
        work = work_of(i, scope.computation, self.module)
        if i.opcode in VIEWS or i.opcode in NO_WORK or i.custom_call_target in FREE_TARGETS:
            return self._value(i, scope, Flag.VIEW if i.opcode in VIEWS else Flag(0))
        part = None
        if i.opcode == "dynamic-slice":
            part = kept_part(i, self._operands(i, scope)[0], scope.places, self.mesh)
        if self._is_scalar_bookkeeping(i, scope) or scope.places.of(i.id) is not None:
            return self._value(i, scope, Flag(0), part)
        flags = Flag.UNPRICED if work.unpriced else Flag(0)
        if work.in_place:
            flags |= Flag.IN_PLACE
        if i.opcode.endswith("-start"):
            flags |= Flag.ASYNC
        if self.known.captured and i.opcode == "convolution":
            return self._convolution(i, scope, work, flags)
        if self.known.captured:
            flags |= turned_operands(i, self._operands(i, scope), self._reads(i, scope))
        return self._add(i, scope, Kind.COMPUTE, work, flags, part=part)

    def _convolution(self, i: Instruction, scope: Visit, work: Work, flags: int) -> Rows:
        windows = Windows(self.builder, self.module, i, self._operands(i, scope))
        deps = windows.operands(self._reads(i, scope))
        flags |= turned_operands(i, windows.read, deps)
        made = self._add(i, scope, Kind.COMPUTE, work, flags, deps=deps)
        return mapped(made, windows.result)

    def _is_scalar_bookkeeping(self, i: Instruction, scope: Visit) -> bool:
        """Loop counters and indices: they fuse into whatever uses them and cost nothing."""
        values = [i, *self._operands(i, scope)]
        scalar = all(not v.shape.dimensions and not v.shape.tuple_shapes for v in values)
        return scalar and class_of(i.opcode) in ELEMENTWISE

    def _value(self, i: Instruction, scope: Visit, flags: int, part: Group | None = None) -> Rows:
        """A row without work: of tuples that are seen differently, one for each leaf."""
        if i.opcode in VIEWS and i.shape.element_type == shapes.TUPLE:
            return scope.rows[i.operand_ids[0]]
        leaves = list(flat([scope.rows[o] for o in i.operand_ids]))
        if not shapes.leaves(i.shape) and not leaves:
            return tree(i.shape, lambda _: -1)
        return self._add(i, scope, Kind.VALUE, Work(operand_bytes=0), flags, part=part)

    def _collective(self, i: Instruction, scope: Visit) -> Rows:
        operands = self.module.operands(scope.computation, i)
        message = collective_message(i, operands, self.module, self.mesh)
        if message is None:
            return self._add(i, scope, Kind.VALUE, Work(operand_bytes=0))
        flags = Flag.ASYNC if i.opcode.endswith("-start") else Flag(0)
        return self._add(i, scope, message.kind, Work(), flags, message)

    def _communicating_fusion(self, i: Instruction, operands: list[Rows], scope: Visit) -> Rows:
        """A reduce-scatter where it is one, else the rows of what is fused."""
        message = fused_reduce_scatter(i, self.module, self.mesh)
        if message is None:
            return self._call(i, operands, scope)
        return self._add(i, scope, message.kind, Work(), message=message)

    def _point_to_point(self, i: Instruction, scope: Visit) -> Rows:
        operands = self.module.operands(scope.computation, i)
        message = point_to_point_message(i, operands, self.module, self.mesh)
        if message is None:
            return self._add(i, scope, Kind.COMPUTE, Work(unpriced=True), Flag.UNPRICED)
        return self._add(i, scope, message.kind, Work(), Flag.ASYNC, message)

    def _add(
        self,
        i: Instruction,
        scope: Visit,
        kind: Kind,
        work: Work,
        flags: int = 0,
        message: Message | None = None,
        part: Group | None = None,
        deps: list[int] | None = None,
    ) -> Rows:
        """Append an instruction's row, of which it keeps its part over the axes of `part`.

        All leaves of its result are that row.
        """
        result = started_shape(i)
        dtype, shape = shapes.first(result)
        source, phase = scope_and_phase(i)
        opcode = work.called or f"hlo.{i.opcode.removesuffix('-start')}"
        if message is not None and i.opcode == "fusion":
            opcode = "hlo.reduce-scatter"
        elif message is not None:
            opcode += reduction(i, self.module)
        idle = kind is Kind.VALUE
        made_for, told = self.known.cause(i)
        shares = Flag.VIEW | (Flag.IN_PLACE if self.known.captured else 0)
        deps = self._reads(i, scope, 1 if part else None) if deps is None else deps
        row = self.builder.add(
            opcode,
            kind,
            op=self._class(i, work, message, part, idle=idle),
            deps=deps,
            alias=deps[0] if flags & shares and deps else -1,
            dtype=dtype,
            shape=shape,
            result_bytes=shapes.num_bytes(result)
            if work.result_bytes is None
            else work.result_bytes,
            operand_bytes=self._moved(i, scope)
            if work.operand_bytes is None
            else work.operand_bytes,
            flops=0 if idle else work.flops,
            dims=(0, 0, 0, 0) if idle else work.dims,
            product="" if idle else work.product,
            mask=0 if idle else work.mask,
            collective=message.collective if message else Collective.NONE,
            group=message.group if message else part,
            comm_bytes=message.comm_bytes if message else 0,
            route=message.route if message else None,
            channel=self._channel(i, message),
            scope=source,
            location=location(i, self.module),
            phase=phase,
            flags=flags | told | (Flag.ASYNC if scope.asynchronous and not idle else Flag(0)),
            cycles=0 if idle else estimated_cycles(i),
            cause=made_for,
        )
        whole = kind is Kind.VALUE or scope.asynchronous or i.opcode.endswith("-start")
        return tree(result, lambda _: row) if whole else self._parts(result, row)

    def _class(
        self, i: Instruction, work: Work, message: Message | None, part: Group | None, *, idle: bool
    ) -> OpClass:
        if message is not None:
            return reducer(i, message, self.module)
        if part:
            return OpClass.ALL_SLICE
        found = work.class_or(class_of(i.opcode))
        return OpClass.VALUE if idle and found is OpClass.UNKNOWN else found

    def _moved(self, i: Instruction, scope: Visit) -> int:
        operands = self._operands(i, scope)
        once = {o.id: o for o in operands}.values()  # x * x reads x once
        read = once if class_of(i.opcode) in ELEMENTWISE else operands
        return sum(shapes.num_bytes(o.shape) for o in read)

    def _parts(self, shape: Any, row: int) -> Rows:
        """A tree with `row` at its leaves, or a row for each of several."""
        if len(shapes.leaves(shape)) <= 1:
            return tree(shape, lambda _: row)
        return tree(shape, lambda part: self.builder.add(
            "hlo.get-tuple-element", Kind.VALUE, op=OpClass.PART, deps=[row], alias=row,
            dtype=shapes.first(part)[0], shape=shapes.first(part)[1],
            result_bytes=shapes.num_bytes(part), flags=Flag.VIEW,
        ))  # fmt: skip

    def _operands(self, i: Instruction, scope: Visit) -> list[Instruction]:
        return self.module.operands(scope.computation, i)

    def _reads(self, i: Instruction, scope: Visit, count: int | None = None) -> list[int]:
        """Rows of the first `count` operands, and of what has to be done before."""
        before = [scope.rows[c] for c in i.control_predecessor_ids if c in scope.rows]
        return list(flat([*(scope.rows[o] for o in i.operand_ids[:count]), *before]))

    def _channel(self, i: Instruction, message: Message | None) -> int:
        if message is None or message.kind is Kind.COLLECTIVE:
            return -1
        return self._channels.setdefault(i.channel_id, len(self._channels))

    def _done(self, i: Instruction, started: Rows, scope: Visit) -> Rows:
        """The end of something asynchronous: a VALUE row for each row that was started."""
        source, phase = scope_and_phase(i)
        made: dict[int, int] = {}

        def wait(row: int) -> int:
            if row >= 0 and row not in made:
                made[row] = self.builder.add(
                    f"hlo.{i.opcode}", Kind.VALUE, deps=[row], dtype=shapes.first(i.shape)[0],
                    shape=shapes.first(i.shape)[1], result_bytes=shapes.num_bytes(i.shape),
                    scope=source, location=location(i, self.module), phase=phase,
                    flags=Flag.VIEW,
                )  # fmt: skip
            return made.get(row, -1)

        if i.opcode in ("send-done", "recv-done"):
            row = wait(next(flat(started), -1))
            return tree(i.shape, lambda part: row)
        found = mapped(started, wait)
        return self._parts(i.shape, *made.values()) if len(made) == 1 else found

    def _loop(self, i: Instruction, initial: Rows, scope: Visit) -> Rows:
        value = scope.value(self._operands(i, scope)[0])
        self.loops.around.append("")
        trips = self._trip_count(i, value)
        body = self.module.called(i)[0]
        source, phase = scope_and_phase(i)
        place = location(i, self.module)
        builder = self.builder
        name = source if self.known.captured else i.name
        builder.begin_region(RegionKind.LOOP, trips, name=name, location=place)
        carried: list[int] = []

        def carry(part: Any, row: int) -> int:
            dtype, shape = shapes.first(part)
            carried.append(builder.add(
                "hlo.carried", Kind.VALUE, deps=[row], dtype=dtype, shape=shape,
                result_bytes=shapes.num_bytes(part), scope=source, location=place, phase=phase,
            ))  # fmt: skip
            return carried[-1]

        inside = zipped(i.shape, initial, carry)
        known = body_arguments(i, value, self.module)
        condition = self.module.called(i)[1]
        if not compares_counters(condition):
            self._computation(Visit(self.module, condition, [inside], known, scope.asynchronous))
        result = self._computation(Visit(self.module, body, [inside], known, scope.asynchronous))
        first = min(carried, default=len(builder))

        def inner(part: Any, row: int) -> int:
            """Carried values are produced inside: one that comes from outside gets a row."""
            if row >= first:
                return row
            dtype, shape = shapes.first(part)
            return builder.add("hlo.carried", Kind.VALUE, deps=[row], dtype=dtype, shape=shape)

        produced = zipped(i.shape, result, inner)
        builder.end_region(tuple(zip(carried, flat(produced), strict=True)))
        self.loops.around.pop()
        return produced

    def _trip_count(self, i: Instruction, initial: Value) -> int:
        """From the compiler, else from the counter, else from the user."""
        count = known_trip_count(i)
        if count is not None and count < 0:
            raise Malformed(f"loop '{i.name}' runs {count} times")
        if count is not None:
            return count
        count, alone = counted_trips(i, initial, self.module)
        if count is not None and (alone or not count):
            return count
        source, _ = scope_and_phase(i)
        place = location(i, self.module)
        # XLA names the loops of a captured program, one way before it partitions and another after
        name = "" if self.known.captured else i.name
        names = (name, source, source.rsplit("/", 1)[-1], place)
        return self.loops.count(names, source, place or self.module.source, count)

    def _conditional(self, i: Instruction, operands: list[Rows], scope: Visit) -> Rows:
        branches = self.module.called(i)
        choice, self._choices = self._choices, self._choices + 1
        known = [scope.value(o) for o in self._operands(i, scope)]
        place, results, regions = location(i, self.module), list[list[int]](), list[int]()
        for k, branch in enumerate(branches):
            regions.append(
                self.builder.begin_region(
                    RegionKind.BRANCH, 1, name=branch.name, location=place, choice=choice
                )
            )
            inner = Visit(
                self.module, branch, [operands[k + 1]], [known[k + 1]], scope.asynchronous
            )
            results.append(list(flat(self._computation(inner), tokens=True)))
            self.builder.end_region()
        self.builder.take_heaviest(regions)
        columns = iter(list(zip(*results, strict=True)))
        chooser = list(flat(operands[0]))
        return tree(i.shape, lambda part: self._join(part, [*next(columns), *chooser], i))

    def _join(self, part: Any, rows: list[int], i: Instruction) -> int:
        dtype, shape = shapes.first(part)
        source, phase = scope_and_phase(i)
        return self.builder.add(
            "hlo.conditional", Kind.VALUE, op=OpClass.JOIN, deps=rows, dtype=dtype, shape=shape,
            result_bytes=shapes.num_bytes(part), scope=source, phase=phase,
            location=location(i, self.module),
        )  # fmt: skip
