"""The walk: every operation of a partitioned module becomes rows of a Program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Phase, Program, RegionKind
from flint.passes.extract.host_memory import with_host_memory
from flint.passes.extract.phases import with_phases
from flint.passes.extract.plain import RETURNS, PlainOperations
from flint.passes.extract.tensors import NOTHING, axis_refs, show
from flint.passes.locations import NOWHERE, Origin
from flint.passes.mlir import defining_operation, functions_of, make_context
from flint.passes.work.host_copies import ARGUMENT
from flint.steps.trip_counts import TripCounts

# How often a `stablehlo.while` runs, read from its condition.


class LoopCounts:
    """Trip counts of the loops of one module; those that depend on data are numbered."""

    def __init__(self, given: Mapping[str, int] | None) -> None:
        self.given = TripCounts.of(given)
        self.names: list[str] = []
        self._around: list[str] = []  # for each loop that the walk is in, what gave its count

    def of(self, op: Any, origin: Origin) -> int:
        """Trip count of a while operation.

        From the loop's bound when start, bound and step are constants; else from the counts that
        were given, by scope, last part of the scope, `file:line`, or `loopN` (the N-th such loop).
        Raises FlintError FL403, naming the loop, when neither says.
        """
        self._around.append("")
        static = static_trip_count(op)
        if static is not None:
            return static
        self.names.append(f"loop{len(self.names)}")
        known = [origin.scope, origin.scope.rsplit("/", 1)[-1], origin.location, self.names[-1]]
        count = self.given.take(known)
        if count is not None:
            self._around[-1] = next(name for name in known if name and name in self.given)
            self._refuse_two(origin)
            return count
        where = f" in {origin.scope}" if origin.scope else ""
        best = origin.location or self.names[-1]
        hint = nearest(next(iter(self.given), ""), [n for n in known if n]) if self.given else ""
        raise FlintError(
            "FL403",
            f"the trip count of loop {self.names[-1]}{where} depends on data{hint}",
            place=origin.location or None,
            help=f'give its trip count with --trip-count {best}=N (in Python: trip_counts={{"{best}": N}})'
            + _at_most(op),
        )

    def leave(self) -> None:
        """Say that the walk is behind the loop that was asked about last."""
        self._around.pop()

    def _refuse_two(self, origin: Origin) -> None:
        """One count for a loop and for another inside it is a mistake: a library's loops may all be
        written in one line."""
        name, number = self._around[-1], len(self.names) - 1
        if name not in self._around[:-1]:
            return
        raise FlintError(
            "FL403",
            f"the trip count '{name}' matches both loop{number} and a loop around it",
            place=origin.location or None,
            help=f"name them by number: --trip-count loop{number}=N, and likewise for the outer one",
        )


def static_trip_count(op: Any) -> int | None:
    """Trip count from `i < bound` with constant start, bound and step, or None."""
    return _compared(op, _condition(op))


def _condition(op: Any) -> Any:
    return defining_operation(list(op.regions[0].blocks[0])[-1].operation.operands[0])


def _at_most(op: Any) -> str:
    """What a counter says of a loop that data may end earlier. `jnp.logical_and` asks whether each side is not false."""
    decided, counts = [_condition(op)], []
    while decided:
        one = decided.pop()
        if (count := _compared(op, one)) is not None:
            counts.append(count)
        elif one and (one.name in ("stablehlo.and", *_TRANSPARENT) or "NE" in _direction(one)):
            decided += map(defining_operation, one.operands)
    return f"; its counter ends it after {min(counts)}" if counts else ""


def _direction(op: Any) -> str:
    is_one = op is not None and op.name == "stablehlo.compare"
    return str(op.attributes["comparison_direction"]) if is_one else ""


def _compared(op: Any, decided: Any) -> int | None:
    if not (direction := _direction(decided)):
        return None
    left, right = decided.operands
    if constant_of(left) is not None or _invariant(op, left):
        left, right = right, left
        direction = direction.translate(str.maketrans("LG", "GL"))
    if (counter := _argument_number(left)) is None:
        return None
    start, bound = constant_of(op.operands[counter]), _bound(op, right)
    step = _step(op, counter)
    if start is None or bound is None or not step:
        return None
    return _count(start, bound, step, direction)


def _count(start: int, bound: int, step: int, direction: str) -> int | None:
    inclusive = "LE" in direction or "GE" in direction
    if "LT" in direction or "LE" in direction:
        distance = bound - start + inclusive
    elif "GT" in direction or "GE" in direction:
        distance, step = start - bound + inclusive, -step
    elif "NE" in direction:
        distance, step = abs(bound - start), abs(step)
    else:
        return None
    return max(math.ceil(distance / step), 0) if step > 0 else None


def _argument_number(value: Any) -> int | None:
    from jaxlib.mlir import ir

    return int(ir.BlockArgument(value).arg_number) if isinstance(value, ir.BlockArgument) else None


def constant_of(value: Any) -> int | None:
    """The integer that a value always has, seen through conversions and reshapes, or None."""
    op = defining_operation(value)
    while op is not None and op.name in _TRANSPARENT:
        value = op.operands[0]
        op = defining_operation(value)
    if op is None or op.name not in ("stablehlo.constant", "sdy.constant"):
        return None
    from jaxlib.mlir import ir

    try:
        dense = ir.DenseIntElementsAttr(op.attributes["value"])
        return int(dense.get_splat_value().value) if dense.is_splat else None
    except ValueError:
        return None


_TRANSPARENT = frozenset(
    [
        "stablehlo.convert",
        "stablehlo.reshape",
        "stablehlo.broadcast_in_dim",
        "sdy.reshard",
        "stablehlo.optimization_barrier",
    ]
)


def _invariant(op: Any, value: Any) -> bool:
    """Whether a block argument of the condition is carried through the body unchanged."""
    number = _argument_number(value)
    if number is None:
        return False
    body = op.regions[1].blocks[0]
    return bool(list(body)[-1].operation.operands[number] == body.arguments[number])


def _bound(op: Any, value: Any) -> int | None:
    found = constant_of(value)
    if found is not None or not _invariant(op, value):
        return found
    return constant_of(op.operands[_argument_number(value)])


def _step(op: Any, counter: int) -> int | None:
    """Constant that the body adds to a carried counter, or None."""
    body = op.regions[1].blocks[0]
    updated = defining_operation(list(body)[-1].operation.operands[counter])
    if updated is None or updated.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    left, right = updated.operands
    if left != body.arguments[counter]:
        left, right = right, left
    if left != body.arguments[counter]:
        return None
    step = constant_of(right)
    return -step if step is not None and updated.name == "stablehlo.subtract" else step


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


class _Walk(PlainOperations):
    """The operations that hold others or stand for them, beside the plain ones."""

    def __init__(self, mesh: Mesh, functions: dict[str, Any], trips: LoopCounts) -> None:
        super().__init__(mesh)
        self.functions = functions
        self.trips = trips
        self.stamps: dict[tuple[str, Phase], _Stamp] = {}
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
        sharding = self.given(attributes, "sdy.sharding")
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

    def call(self, op: Any) -> None:
        """A function that is called often is walked once; later calls copy its rows.

        Scopes inside begin with that of the call, and what has no phase of its own has the call's.
        """
        self.declare(op)
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
        self.define(op, [r + offset for r in stamp.results])

    def _first_call(self, name: str, scope: str, actual: list[int]) -> _Stamp:
        function = self.functions[name]
        block = function.regions[0].blocks[0]
        attributes = function.attributes.get("arg_attrs", ())
        start, barriers = len(self.builder), self.barriers
        for i, (argument, row) in enumerate(zip(block.arguments, actual, strict=True)):
            given = attributes[i] if i < len(attributes) else {}
            sharding = self.given(given, "sdy.sharding")
            tensor = self.values[argument] = self.tensors.make(argument.type, sharding)
            self.rows[argument] = self.value("func.argument", tensor, [row], NOWHERE)
        results = self.block(block)
        # A result that is an argument of the caller would point outside the copied rows.
        held = self.barriers > barriers
        return _Stamp(start, len(self.builder), len(actual), tuple(results), scope, held)

    def _note_barrier(self) -> None:
        self.barriers += 1
        self.builder.barrier()

    def barrier(self, op: Any) -> None:
        """`optimization_barrier` holds back the compiler, not the device: each value passes."""
        self._note_barrier()
        self.declare(op)
        self.define(op, [self.rows[v] for v in op.operands])

    def nested(self, op: Any) -> None:
        """`sdy.manual_computation` and `sdy.named_computation`: the body runs once, in place.

        As in a call, JAX names what is inside as seen from there: scope and phase begin outside.
        """
        self.declare(op)
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
        self.define(op, self.block(block))
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
        self.declare(op)
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
            here = self.value("while.carry", tensor, [row], origin)
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
            p if p >= start else self.value("while.yield", NOTHING, [p], origin) for p in produced
        ]
        self.builder.end_region(list(zip(carried, produced, strict=True)))
        self.define(op, produced)

    def choice(self, op: Any) -> None:
        """`stablehlo.case` and `if`: every branch is kept, the one with most work is taken."""
        self.declare(op)
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
            self.value(
                "case.join",
                self.tensor(v),
                [selector, *(r[i] for r in returned)],
                origin,
                OpClass.JOIN,
            )
            for i, v in enumerate(op.results)
        ]
        self.define(op, rows)


_STRUCTURE = {
    "func.call": _Walk.call,
    "sdy.manual_computation": _Walk.nested,
    "sdy.named_computation": _Walk.nested,
    "stablehlo.optimization_barrier": _Walk.barrier,
    "stablehlo.while": _Walk.loop,
    "stablehlo.case": _Walk.choice,
    "stablehlo.if": _Walk.choice,
}


def _is_on_host(attributes: Any) -> bool:
    return "mhlo.memory_kind" in attributes and "host" in attributes["mhlo.memory_kind"].value


def _manual_axes(op: Any) -> frozenset[str]:
    if "manual_axes" not in op.attributes:
        return frozenset()
    from jaxlib.mlir.dialects import sdy

    axes = sdy.ManualAxesAttr(op.attributes["manual_axes"])
    return frozenset(axes[i] for i in range(len(axes)))


def _is_scalar_block(walk: _Walk, block: Any) -> bool:
    """Whether a loop's condition computes with scalars only, so that it costs nothing."""
    return all(
        not walk.tensors.make(v.type, ()).shape
        for op in block
        for v in (*op.operation.operands, *op.operation.results)
    )
