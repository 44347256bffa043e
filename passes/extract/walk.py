"""The walk: every operation of a partitioned module becomes rows of a Program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flint.errors import FlintError
from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase, Program, RegionKind
from flint.passes.extract.alike import Alike, Alikes
from flint.passes.extract.collectives import (
    Communication,
    communication_of,
    parts_before,
    slice_group,
)
from flint.passes.extract.consistency import RULE, doubt_about
from flint.passes.extract.host_memory import placement, with_host_memory
from flint.passes.extract.implied import (
    Implied,
    implied_communication,
    implied_on_results,
)
from flint.passes.extract.loops import LoopCounts
from flint.passes.extract.op_classes import class_of, value_class
from flint.passes.extract.phases import with_phases
from flint.passes.extract.products import turned_operands
from flint.passes.extract.tensors import (
    NOTHING,
    Sharding,
    Tensor,
    Tensors,
    axis_refs,
    show,
)
from flint.passes.extract.work import Operation, work_of
from flint.passes.locations import NOWHERE, Origin, Origins
from flint.passes.mlir import (
    defining_operation,
    functions_of,
    make_context,
    target_of,
)
from flint.passes.work.host_copies import ARGUMENT, OPCODES

#: Operations that only name a value: nothing runs.
FREE = frozenset(
    [
        "stablehlo.constant",
        "sdy.constant",
        "stablehlo.reshape",
        "stablehlo.tuple",
        "stablehlo.get_tuple_element",
        "stablehlo.create_token",
        "stablehlo.after_all",
        "stablehlo.partition_id",
        "stablehlo.replica_id",
        "sdy.data_flow_edge",
        "sdy.propagation_barrier",
        "sdy.sharding_constraint",
        "sdy.sharded_to_unreduced",
        "sdy.replicated_to_unreduced",
        "stablehlo.bitcast_convert",
        "sdy.reshard",
        "sdy.sharding_group",
    ]
)
#: Operations that say which device runs them.
_POSITIONS = frozenset({"stablehlo.partition_id", "stablehlo.replica_id"})
RETURNS = frozenset({"func.return", "stablehlo.return", "sdy.return"})


def extract(bytecode: bytes, mesh: Mesh, trip_counts: Mapping[str, int] | None = None) -> Program:
    """Turn a partitioned module (global types, Shardy collectives) into a Program.

    Raises FlintError FL402 for a module without a `main` function, FL403 for a loop whose trip
    count neither the module nor `trip_counts` says.
    """
    return extract_with_results(bytecode, mesh, trip_counts)[0]


def extract_with_results(
    bytecode: bytes, mesh: Mesh, trip_counts: Mapping[str, int] | None = None
) -> tuple[Program, tuple[int, ...]]:
    """`extract`, and for each result of `main`, in order, the row that holds it."""
    found = extract_with_splits(bytecode, mesh, trip_counts)
    return found.program, found.results


@dataclass(frozen=True, slots=True)
class Extracted:
    """A Program; `results` are the rows that hold the results of `main`, in order.

    `splits` has the names of the axes over which the work of each row that computes is split: those
    that shard an operand or a result, and in a `shard_map` those that its specs name or that it
    communicates over.
    """

    program: Program
    results: tuple[int, ...]
    splits: Mapping[int, frozenset[str]]


def extract_with_splits(
    bytecode: bytes, mesh: Mesh, trip_counts: Mapping[str, int] | None = None
) -> Extracted:
    """`extract`, with the rows of results and what splits the work of each row."""
    from jaxlib.mlir import ir

    with make_context():
        module = ir.Module.parse(bytecode)
        functions = functions_of(module)
        if "main" not in functions:
            raise FlintError(
                "FL402",
                f"the module has no function 'main' (it has {', '.join(functions) or 'none'})",
            )
        walk = _Walk(mesh, functions, LoopCounts(trip_counts))
        results = walk.main()
        program = with_host_memory(with_phases(walk.builder.build()))
        return Extracted(program, tuple(results), walk.splits)


@dataclass(frozen=True, slots=True)
class _Stamp:
    """Rows of a function's first call: the first `arguments` rows stand for its arguments."""

    start: int
    stop: int
    arguments: int
    results: tuple[int, ...]
    scope: str
    barrier: bool


class _Walk:
    """State of one extraction: the builder, and which row holds each MLIR value."""

    def __init__(self, mesh: Mesh, functions: dict[str, Any], trips: LoopCounts) -> None:
        self.mesh = mesh
        self.builder = ProgramBuilder(mesh)
        self.functions = functions
        self.trips = trips
        self.tensors = Tensors(mesh)
        self.alikes = Alikes(mesh)
        self.origins = Origins()
        self.rows: dict[Any, int] = {}
        self.values: dict[Any, Tensor] = {}
        self.stamps: dict[tuple[str, Phase], _Stamp] = {}
        self.splits: dict[int, frozenset[str]] = {}
        self.reached: dict[int, frozenset[str]] = {}  # axes of rows that know of other devices
        self.choices = 0
        self.barriers = 0

    def main(self) -> list[int]:
        """Walk `main`: a PARAMETER row for each argument, a `func.return` row at the end.

        Returns the rows of the results, in order.
        """
        function = self.functions["main"]
        block = function.regions[0].blocks[0]
        attributes = function.attributes.get("arg_attrs", ())
        for i, argument in enumerate(block.arguments):
            given = attributes[i] if i < len(attributes) else {}
            self._parameter(argument, given, i)
        returned = self.block(block)
        self.builder.add("func.return", Kind.VALUE, op=OpClass.RESULT, deps=returned)
        return returned

    def _parameter(self, argument: Any, attributes: Any, number: int) -> None:
        sharding = self._given(attributes, "sdy.sharding")
        tensor = self.values[argument] = self.tensors.make(argument.type, sharding)
        donated = any(k in attributes for k in ("jax.buffer_donor", "tf.aliasing_output"))
        on_host = _is_on_host(attributes)
        self.rows[argument] = self.builder.add(
            ARGUMENT if on_host else "parameter",
            Kind.PARAMETER,
            op=OpClass.HOST_VALUE if on_host else OpClass.VALUE,
            dtype=tensor.dtype,
            shape=tensor.shape,
            result_bytes=tensor.num_bytes,
            name=self.origins.name_of(argument) or f"arg{number}",
            cause=show(sharding),
            flags=Flag.DONATED if donated else 0,
        )

    def _given(self, attributes: Any, key: str) -> Sharding:
        return self.tensors.parse(attributes[key]) if key in attributes else ()

    def block(self, block: Any) -> list[int]:
        """Walk the operations of a block; returns the rows of what it returns."""
        for op in block:
            operation = op.operation
            if operation.name in RETURNS:
                return [self.rows[v] for v in operation.operands]
            handler = _STRUCTURE.get(operation.name)
            if handler is not None:
                handler(self, operation)
            else:
                self.plain(operation)
        return []

    # values ------------------------------------------------------------------------------------

    def tensor(self, value: Any) -> Tensor:
        """The local tensor of an MLIR value."""
        found = self.values.get(value)
        return self.tensors.make(value.type, ()) if found is None else found

    def _define(self, op: Any, rows: Sequence[int]) -> None:
        for value, row in zip(op.results, rows, strict=True):
            self.rows[value] = row

    def _declare(self, op: Any) -> tuple[Tensor, ...]:
        """Note the tensors of the results of an operation, and return them."""
        results = list(op.results)
        tensors = self.tensors.of_results(op, results)
        self.values.update(zip(results, tensors, strict=True))
        return tensors

    def _value(
        self,
        opcode: str,
        tensor: Tensor,
        deps: Sequence[int],
        origin: Origin,
        op: OpClass = OpClass.VALUE,
    ) -> int:
        return self.builder.add(
            opcode,
            Kind.VALUE,
            op=op,
            deps=deps,
            dtype=tensor.dtype,
            shape=tensor.shape,
            result_bytes=tensor.num_bytes,
            scope=origin.scope,
            location=origin.location,
            phase=origin.phase,
            flags=Flag.VIEW if len(deps) == 1 else 0,
            alias=deps[0] if len(deps) == 1 else -1,
        )

    # plain operations --------------------------------------------------------------------------

    def plain(self, op: Any) -> None:
        """One operation that holds no other that runs: one row, after what it makes necessary."""
        operands = list(op.operands)
        operation = Operation(op.name, op, tuple(map(self.tensor, operands)), self._declare(op))
        origin = self.origins.of(op.location)
        deps = [self.rows[v] for v in operands]
        communication = communication_of(operation, self.mesh)
        if communication is not None:
            row = self._communicate(operation, communication, deps, origin)
        elif op.name in FREE or _is_scalar_bookkeeping(operation):
            result = operation.results[0] if operation.results else NOTHING
            row = self._value(op.name, result, deps, origin, value_class(op.name))
            if op.name in _POSITIONS:
                self.reached[row] = frozenset(self.mesh.names)
        else:
            alike = self.alikes.of(operation)
            if alike.implies:
                deps = self._imply(operation, deps, origin)
            row = self._compute(operation, alike, deps, origin)
        for value in op.results:
            self.rows[value] = row
        self._complete(operation, row, origin)

    def _communicate(self, o: Operation, c: Communication, deps: list[int], origin: Origin) -> int:
        if not c.is_needed(self.mesh):
            return self._value(o.name, o.results[0], deps, origin)
        if o.name in _SERVES_CONSUMER:
            origin = self._consumer_origin(o.op) or origin
        if o.name == "sdy.all_reduce" and c.collective is Collective.ALL_GATHER:
            deps = [*deps, *(self.rows[v] for v in parts_before(o.op) if v in self.rows)]
        written = sum(r.num_bytes for r in o.results)
        return self._collective(
            c, deps, (o.operands[0].dtype, o.results[0].shape), written, self._cause(o), origin
        )

    def _collective(
        self,
        c: Communication | Implied,
        deps: list[int],
        first: tuple[str, tuple[int, ...]],
        result_bytes: int,
        cause: str,
        origin: Origin,
    ) -> int:
        """One COLLECTIVE row; `first` is dtype and shape of its result."""
        dtype, shape = first
        self.reached[len(self.builder)] = self._axes_of(c)
        return self.builder.add(
            c.opcode,
            Kind.COLLECTIVE,
            op=c.op,
            deps=deps,
            dtype=dtype,
            shape=shape,
            result_bytes=result_bytes,
            operand_bytes=c.comm_bytes,
            collective=c.collective,
            group=c.group,
            route=c.route,
            comm_bytes=c.comm_bytes,
            scope=origin.scope,
            location=origin.location,
            phase=origin.phase,
            cause=cause,
            flags=Flag.PARTITIONED if c.opcode.startswith("sdy.") else 0,
        )

    def _axes_of(self, c: Communication | Implied) -> frozenset[str]:
        """Names of the axes that a collective runs over: all, where ranks are listed."""
        where = c.group or c.route
        if where is None or not where.axes:
            return frozenset(self.mesh.names)
        return frozenset(a.name for a in where.axes)

    def _compute(self, o: Operation, alike: Alike, deps: list[int], origin: Origin) -> int:
        work = work_of(o) if alike.work is None else alike.work
        doubt = self._doubt(o, alike)
        flags = int(turned_operands(o, deps))
        if work.unpriced:
            flags |= Flag.UNPRICED
        if work.in_place:
            flags |= Flag.IN_PLACE
        if doubt:
            flags |= Flag.DOUBTFUL
        result = o.results[0] if o.results else NOTHING
        placed, opcode = placement(o.op), work.called or o.name
        if placed is not None:
            opcode = OPCODES[placed]
        elif opcode == "stablehlo.custom_call":
            opcode = f"custom_call.{target_of(o.op)}"
        self.splits[len(self.builder)] = alike.split_over
        return self.builder.add(
            opcode,
            Kind.COMPUTE,
            op=placed or work.class_or(class_of(o.name)),
            deps=deps,
            dtype=result.dtype,
            shape=result.shape,
            result_bytes=alike.written if work.result_bytes is None else work.result_bytes,
            operand_bytes=alike.read if work.operand_bytes is None else work.operand_bytes,
            flops=work.flops,
            dims=work.dims,
            product=work.product,
            mask=work.mask,
            group=slice_group(o, self.mesh) if o.name == "sdy.all_slice" else None,
            scope=origin.scope,
            location=origin.location,
            phase=origin.phase,
            cause=doubt,
            flags=flags,
            alias=deps[0] if work.in_place else -1,
        )

    def _doubt(self, o: Operation, alike: Alike) -> str:
        if not alike.disagreement and not alike.summed:
            return ""
        if implied_on_results(o, self.mesh):
            return ""
        return doubt_about(o, alike.rule, (alike.disagreement, alike.summed), self.mesh)

    def _imply(self, o: Operation, deps: list[int], origin: Origin) -> list[int]:
        """Add the communication that an operation needs and Shardy does not spell out."""
        for c in implied_communication(o, self.mesh):
            operand = o.operands[c.operand]
            first = (operand.dtype, operand.shape)
            row = self._collective(c, [deps[c.operand]], first, c.result_bytes, c.cause, origin)
            deps = [*deps, row]
        return deps

    def _complete(self, o: Operation, row: int, origin: Origin) -> None:
        """Add the communication that results in `row` need before anything reads them."""
        deps = [row]
        for c in implied_on_results(o, self.mesh):
            result = o.results[c.operand]
            first = (result.dtype, result.shape)
            added = self._collective(c, deps, first, c.result_bytes, c.cause, origin)
            self.rows[o.op.results[c.operand]] = added
            deps = [*deps, added]

    def _cause(self, o: Operation) -> str:
        """The change of sharding, the operation that needs it, its operands' shardings, its rule."""
        change = f"{show(o.operands[0].sharding)} -> {show(o.results[0].sharding)}"
        uses = [use.owner.operation for use in o.op.results[0].uses]
        producer = defining_operation(o.op.operands[0])
        if o.name in _SERVES_CONSUMER or producer is None:
            served = next((u for u in uses if RULE in u.attributes), None)
            word = "for"
        else:
            served, word = producer, "after"
        if served is None:
            return change
        rule = ""
        if RULE in served.attributes:
            rule = " " + str(served.attributes[RULE])
        for owner in map(defining_operation, served.operands):
            if owner is not None and any(r not in self.values for r in owner.results):
                self._declare(owner)  # an operand may come after the collective that is explained
        operands = ", ".join(show(self.tensor(v).sharding) for v in served.operands)
        return f"{change} {word} {served.name} of {operands}{rule}"

    def _consumer_origin(self, op: Any) -> Origin | None:
        """Where the first user of a gathered value comes from: its reason to exist."""
        for use in op.results[0].uses:
            user = use.owner.operation
            if user.name not in RETURNS:
                return self.origins.of(user.location)
        return None

    # structure ---------------------------------------------------------------------------------

    def call(self, op: Any) -> None:
        """A function that is called often is walked once; later calls copy its rows.

        Scopes inside begin with that of the call, and what has no phase of its own has the call's.
        """
        self._declare(op)
        name = op.attributes["callee"].value
        actual = [self.rows[v] for v in op.operands]
        origin = self.origins.of(op.location)
        scope, key = origin.scope, (name, origin.phase)
        stamp = self.stamps.get(key)
        if stamp is None:
            outside, self.origins.inside = self.origins.inside, origin
            stamp = self.stamps[key] = self._first_call(name, scope, actual)
            self.origins.inside = outside
            offset = 0
        else:
            offset = len(self.builder) - stamp.start
            self.builder.repeat(stamp.start, stamp.stop, actual, scopes=(stamp.scope, scope))
            for axes in (self.splits, self.reached):
                for row in range(stamp.start, stamp.stop):
                    if row in axes:
                        axes[row + offset] = axes[row]
            if stamp.barrier:
                self._note_barrier()
        self._define(op, [r + offset for r in stamp.results])

    def _first_call(self, name: str, scope: str, actual: list[int]) -> _Stamp:
        function = self.functions[name]
        block = function.regions[0].blocks[0]
        attributes = function.attributes.get("arg_attrs", ())
        start, barriers = len(self.builder), self.barriers
        for i, (argument, row) in enumerate(zip(block.arguments, actual, strict=True)):
            given = attributes[i] if i < len(attributes) else {}
            sharding = self._given(given, "sdy.sharding")
            tensor = self.values[argument] = self.tensors.make(argument.type, sharding)
            self.rows[argument] = self._value("func.argument", tensor, [row], NOWHERE)
        results = self.block(block)
        # A result that is an argument of the caller would point outside of the copied rows.
        held = self.barriers > barriers
        return _Stamp(start, len(self.builder), len(actual), tuple(results), scope, held)

    def _note_barrier(self) -> None:
        self.barriers += 1
        self.builder.barrier()

    def barrier(self, op: Any) -> None:
        """`optimization_barrier` holds back the compiler, not the device: each value passes."""
        self._note_barrier()
        self._declare(op)
        self._define(op, [self.rows[v] for v in op.operands])

    def nested(self, op: Any) -> None:
        """`sdy.manual_computation` and `sdy.named_computation`: the body runs once, in place.

        As in a call, JAX names what is inside as seen from there: scope and phase begin outside.
        """
        self._declare(op)
        block = op.regions[0].blocks[0]
        manual = _manual_axes(op)
        given = (
            self.tensors.per_value(op.attributes["in_shardings"])
            if "in_shardings" in op.attributes
            else [()] * len(op.operands)
        )
        for argument, operand, sharding in zip(block.arguments, op.operands, given, strict=True):
            self.rows[argument] = self.rows[operand]
            left = tuple(tuple(a for a in axes if a.name not in manual) for axes in sharding)
            self.values[argument] = self.tensors.make(argument.type, left)
        outside, self.origins.inside = self.origins.inside, self.origins.of(op.location)
        start = len(self.builder)
        self._define(op, self.block(block))
        self.origins.inside = outside
        if manual:
            self._split_by_hand(op, start, manual)

    def _split_by_hand(self, op: Any, start: int, manual: frozenset[str]) -> None:
        """Add to rows from `start` the manual axes that the program itself splits their work over.

        Those that its specs name, and those that it communicates over or asks its position on.
        """
        shown = " ".join(str(op.attributes[n]) for n in ("in_shardings", "out_shardings"))
        rows = range(start, len(self.builder))
        used = {a.name for a in axis_refs(shown)}
        used.update(*(self.reached[row] for row in rows if row in self.reached))
        for row in rows:
            if row in self.splits:
                self.splits[row] |= used & manual

    def loop(self, op: Any) -> None:
        """`stablehlo.while`: a LOOP region whose first rows are the carried values."""
        self._declare(op)
        origin = self.origins.of(op.location)
        trip_count = self.trips.of(op, origin)
        condition, body = (r.blocks[0] for r in op.regions)
        initial = [self.rows[v] for v in op.operands]
        self.builder.begin_region(
            RegionKind.LOOP, trip_count, name=origin.scope, location=origin.location
        )
        carried = []
        for i, (value, row) in enumerate(zip(op.results, initial, strict=True)):
            tensor = self.values[value]
            here = self._value("while.carry", tensor, [row], origin)
            for argument in (condition.arguments[i], body.arguments[i]):
                self.values[argument] = tensor
                self.rows[argument] = here
            carried.append(here)
        if not _is_scalar_block(self, condition):
            self.block(condition)
        produced = self.block(body)
        self.trips.leave()
        start = carried[0] if carried else len(self.builder)
        produced = [
            p if p >= start else self._value("while.yield", NOTHING, [p], origin) for p in produced
        ]
        self.builder.end_region(list(zip(carried, produced, strict=True)))
        self._define(op, produced)

    def choice(self, op: Any) -> None:
        """`stablehlo.case` and `if`: every branch is kept, the one with most work is taken."""
        self._declare(op)
        origin = self.origins.of(op.location)
        choice, self.choices = self.choices, self.choices + 1
        selector = self.rows[op.operands[0]]
        regions, returned = [], []
        for number, region in enumerate(op.regions):
            index = self.builder.begin_region(
                RegionKind.BRANCH,
                1,
                name=f"{origin.scope or op.name}[{number}]",
                location=origin.location,
                choice=choice,
            )
            returned.append(self.block(region.blocks[0]) or [selector] * len(op.results))
            self.builder.end_region()
            regions.append(index)
        self.builder.take_heaviest(regions)
        rows = [
            self._value(
                "case.join",
                self.tensor(v),
                [selector, *(r[i] for r in returned)],
                origin,
                OpClass.JOIN,
            )
            for i, v in enumerate(op.results)
        ]
        self._define(op, rows)


_STRUCTURE = {
    "func.call": _Walk.call,
    "sdy.manual_computation": _Walk.nested,
    "sdy.named_computation": _Walk.nested,
    "stablehlo.optimization_barrier": _Walk.barrier,
    "stablehlo.while": _Walk.loop,
    "stablehlo.case": _Walk.choice,
    "stablehlo.if": _Walk.choice,
}
#: Collectives that exist because of the operation that reads them.
_SERVES_CONSUMER = frozenset({"sdy.all_gather", "sdy.all_to_all", "sdy.collective_permute"})


def _is_on_host(attributes: Any) -> bool:
    """Whether an argument lies in the memory of the host."""
    return "mhlo.memory_kind" in attributes and "host" in attributes["mhlo.memory_kind"].value


def _manual_axes(op: Any) -> frozenset[str]:
    if "manual_axes" not in op.attributes:
        return frozenset()
    from jaxlib.mlir.dialects import sdy

    axes = sdy.ManualAxesAttr(op.attributes["manual_axes"])
    return frozenset(axes[i] for i in range(len(axes)))


def _is_scalar_bookkeeping(o: Operation) -> bool:
    """Loop counters and indices: they fuse into whatever uses them and cost nothing."""
    if not o.results or o.results[0].shape or o.name == "stablehlo.custom_call":
        return False
    return all(not t.shape for t in (*o.operands, *o.results))


def _is_scalar_block(walk: _Walk, block: Any) -> bool:
    """Whether a loop's condition computes with scalars only, so that it costs nothing."""
    return all(
        not walk.tensors.make(v.type, ()).shape
        for op in block
        for v in (*op.operation.operands, *op.operation.results)
    )
