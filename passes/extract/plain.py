"""Operations that hold no other that runs: a row for each, and for the communication that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind
from flint.passes.extract.collectives import (
    Communication,
    communication_of,
    parts_before,
    slice_group,
)
from flint.passes.extract.consistency import RULE, Axes, doubt_about, examine
from flint.passes.extract.host_memory import placement
from flint.passes.extract.implied import (
    Implied,
    implied_communication,
    implied_on_results,
    may_imply,
)
from flint.passes.extract.op_classes import class_of, value_class
from flint.passes.extract.products import turned_operands
from flint.passes.extract.tensors import NOTHING, Operation, Sharding, Tensor, Tensors, show
from flint.passes.extract.work import RULES, work_of
from flint.passes.locations import Origin, Origins
from flint.passes.mlir import defining_operation, target_of
from flint.passes.work.host_copies import OPCODES
from flint.passes.work.work import Work

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
#: Collectives that exist because of the operation that reads them.
_SERVES_CONSUMER = frozenset({"sdy.all_gather", "sdy.all_to_all", "sdy.collective_permute"})
_NO_AXES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Alike:
    """What is the same for operations of one name, one sharding rule and the same tensors.

    `work` is None where it depends on other attributes too. `read` and `written` are the bytes of
    all operands and all results, `split_over` the axes that shard any of them. `disagreement` says
    what is wrong between the tensors, `summed` over which axes they are summed. `implies` says
    whether they may need communication that Shardy does not spell out.
    """

    rule: Any
    work: Work | None
    read: int
    written: int
    split_over: frozenset[str]
    disagreement: str
    summed: Axes
    implies: bool


class Alikes:
    """Finds what operations have in common, once for all that are alike.

    A model that writes out its layers has thousands of operations of a few hundred sorts.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._known: dict[tuple[Any, ...], Alike] = {}

    def of(self, o: Operation) -> Alike:
        """What `o` has in common with all that are like it. Tensors are compared by identity."""
        rule = o.op.attributes.get(RULE, None)
        key = (o.name, rule, o.operands, o.results)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(o, rule)
        return found

    def _find(self, o: Operation, rule: Any) -> Alike:
        tensors = (*o.operands, *o.results)
        disagreement, summed = examine(o, rule, self.mesh)
        return Alike(
            rule=rule,
            work=None if o.name in RULES else work_of(o),
            read=sum(t.num_bytes for t in o.operands),
            written=sum(t.num_bytes for t in o.results),
            split_over=_NO_AXES.union(*(t.split_over for t in tensors)),
            disagreement=disagreement,
            summed=summed,
            implies=may_imply(o),
        )


class PlainOperations:
    """State of one extraction: the builder, and which row holds each MLIR value."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.builder = ProgramBuilder(mesh)
        self.tensors = Tensors(mesh)
        self.alikes = Alikes(mesh)
        self.origins = Origins()
        self.rows: dict[Any, int] = {}
        self.values: dict[Any, Tensor] = {}
        self.splits: dict[int, frozenset[str]] = {}
        self.reached: dict[int, frozenset[str]] = {}  # axes of rows that know of other devices

    def tensor(self, value: Any) -> Tensor:
        """The local tensor of an MLIR value."""
        found = self.values.get(value)
        return self.tensors.make(value.type, ()) if found is None else found

    def define(self, op: Any, rows: Sequence[int]) -> None:
        """Note the rows of the results of an operation."""
        for value, row in zip(op.results, rows, strict=True):
            self.rows[value] = row

    def declare(self, op: Any) -> tuple[Tensor, ...]:
        """Note the tensors of the results of an operation, and return them."""
        results = list(op.results)
        tensors = self.tensors.of_results(op, results)
        self.values.update(zip(results, tensors, strict=True))
        return tensors

    def value(
        self,
        opcode: str,
        tensor: Tensor,
        deps: Sequence[int],
        origin: Origin,
        op: OpClass = OpClass.VALUE,
    ) -> int:
        """Append a row that holds a value and does nothing."""
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

    def plain(self, op: Any) -> None:
        """One operation that holds no other that runs: one row, after what it makes necessary."""
        operands = list(op.operands)
        operation = Operation(op.name, op, tuple(map(self.tensor, operands)), self.declare(op))
        origin = self.origins.of(op.location)
        deps = [self.rows[v] for v in operands]
        communication = communication_of(operation, self.mesh)
        if communication is not None:
            row = self._communicate(operation, communication, deps, origin)
        elif op.name in FREE or _is_scalar_bookkeeping(operation):
            result = operation.results[0] if operation.results else NOTHING
            row = self.value(op.name, result, deps, origin, value_class(op.name))
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
            return self.value(o.name, o.results[0], deps, origin)
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
                self.declare(owner)  # an operand may come after the collective that is explained
        operands = ", ".join(show(self.tensor(v).sharding) for v in served.operands)
        return f"{change} {word} {served.name} of {operands}{rule}"

    def _consumer_origin(self, op: Any) -> Origin | None:
        """Where the first user of a gathered value comes from: its reason to exist."""
        for use in op.results[0].uses:
            user = use.owner.operation
            if user.name in _SERVES_CONSUMER or user.name == "sdy.all_slice":
                return self._consumer_origin(user)  # a step of the same reshard
            if user.name not in RETURNS:
                return self.origins.of(user.location)
        return None

    def given(self, attributes: Any, key: str) -> Sharding:
        """The sharding that an attribute of this name holds."""
        return self.tensors.parse(attributes[key]) if key in attributes else ()


def _is_scalar_bookkeeping(o: Operation) -> bool:
    """Loop counters and indices: they fuse into whatever uses them and cost nothing."""
    if not o.results or o.results[0].shape or o.name == "stablehlo.custom_call":
        return False
    return all(not t.shape for t in (*o.operands, *o.results))
