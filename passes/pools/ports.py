"""What goes into a partitioned step and comes out of it, and where it makes and reads a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program, RegionKind
from flint.passes.compilers.positions.cut_module import with_shardings
from flint.passes.locations import decode_location
from flint.passes.mlir import make_context
from flint.passes.partition.worker import the_worker
from flint.passes.partition.xla import position_with_results
from flint.passes.pipeline.split.reach import outermost_region
from flint.passes.tensors import Tensor, Tensors
from flint.steps.captured import Captured, Positions


@dataclass(frozen=True)
class TensorPort:
    """An argument or a result of a step: its name, its tensor, and the row that holds it."""

    name: str
    tensor: Tensor
    row: int


@dataclass(frozen=True, eq=False)
class PoolStep:
    """A step as the program of one device, with its arguments and results in order."""

    program: Program
    arguments: tuple[TensorPort, ...]
    results: tuple[TensorPort, ...]


def partition_pool(captured: Captured, axis: str) -> PoolStep:
    """Partition for a position of the pools' `axis`. Raises what `position_with_results` does.

    Results are named `result` and their pytree path: `result[1]['k']`. Those without a sharding have
    the one that Shardy propagates.
    """
    facts, _ = the_worker().request("result-shardings", captured.module)
    module = with_shardings(captured.module, 0, facts["shardings"], results=True)
    return pool_step(
        module, *position_with_results(replace(captured, module=module), axis, Positions.POOLS)
    )


def pool_step(module: bytes, program: Program, rows: Sequence[int]) -> PoolStep:
    """A step whose arguments and results are those of `module`: `rows` hold the results."""
    arguments, results = _ports(module, Tensors(program.mesh))
    numbered = range(len(arguments))  # the walk begins with a row for each argument
    return PoolStep(
        program,
        tuple(TensorPort(*a, row) for a, row in zip(arguments, numbered, strict=True)),
        tuple(TensorPort(*r, row) for r, row in zip(results, rows, strict=True)),
    )


def _ports(
    bytecode: bytes, tensors: Tensors
) -> tuple[list[tuple[str, Tensor]], list[tuple[str, Tensor]]]:
    from jaxlib.mlir import ir

    with make_context():
        module = ir.Module.parse(bytecode)
        main = next(
            f.operation
            for f in module.body
            if f.operation.name == "func.func" and f.attributes["sym_name"].value == "main"
        )
        block = main.regions[0].blocks[0]
        types = ir.FunctionType(main.attributes["function_type"].value).results
        given = _attributes(main, "arg_attrs", len(block.arguments))
        arguments = [
            (
                decode_location(value.location)[0] or f"arg{i}",
                _tensor(value.type, attributes, tensors),
            )
            for i, (value, attributes) in enumerate(zip(block.arguments, given, strict=True))
        ]
        given = _attributes(main, "res_attrs", len(types))
        results = [
            (_result_name(attributes, i), _tensor(of, attributes, tensors))
            for i, (of, attributes) in enumerate(zip(types, given, strict=True))
        ]
    return arguments, results


def _attributes(function: Any, name: str, count: int) -> list[Any]:
    """One dictionary for each argument or result; a function of which none has any has no list."""
    return list(function.attributes[name]) if name in function.attributes else [{}] * count


def _tensor(value_type: Any, attributes: Any, tensors: Tensors) -> Tensor:
    given = "sdy.sharding" in attributes
    return tensors.make(value_type, tensors.parse(attributes["sdy.sharding"]) if given else ())


def _result_name(attributes: Any, number: int) -> str:
    if "jax.result_info" not in attributes:
        return f"result[{number}]"
    path = str(attributes["jax.result_info"].value)
    return path if path.startswith("result") else f"result{path}"  # JAX before 0.6: the path alone


@dataclass(frozen=True)
class PortPlace:
    """A point between rows: before row `before`, inside `region` (-1: at the outermost level).

    `readers` are the rows that read what is there first.
    """

    before: int
    region: int
    readers: tuple[int, ...] = ()


@dataclass(frozen=True)
class MadeResult:
    """A result: `row` holds it, or its newest layer if a loop over `layers` fills it (else 0)."""

    row: int
    layers: int
    place: PortPlace


def where_made(program: Program, port: TensorPort, *, stacked: bool) -> MadeResult:
    """Where the result `port` is complete, or each of its layers, if it may be `stacked` by a loop.

    A stack is filled by a `dynamic_update_slice` with one entry of dimension 0 in each iteration.
    """
    row = _behind_views(program, port.row)
    region = int(program.region[row])
    layers = _trips_of_layers(program, region, port) if stacked else 0
    if layers and program.op[row] == OpClass.UPDATE_SLICE:
        layer = (1, *port.tensor.shape[1:])
        if any(_shape(program, int(d)) == layer for d in program.dependencies(row)):
            return MadeResult(row, layers, PortPlace(row + 1, region))
    after = max(row, _last_parameter(program)) + 1
    if region >= 0:
        after = program.regions[outermost_region(program, region)].stop
    return MadeResult(row, 0, PortPlace(after, -1))


def where_read(program: Program, port: TensorPort, layers: int) -> tuple[PortPlace, bool]:
    """Where the argument `port` is read first, and whether that is a layer at a time.

    It is read a layer at a time if the loop over `layers` that carries it does nothing with it but
    take slices of one entry of dimension 0, and write such entries.
    """
    readers = _readers_of(program)
    first = readers(port.row)
    if layers and len(first) == 1:
        found = _reads_in_loop(program, first[0], port, layers, readers)
        if found:
            return PortPlace(found[0], int(program.region[first[0]]), tuple(found)), True
    rows = first or [len(program) - 1]  # an argument that nothing reads: at the step's return
    region = int(program.region[rows[0]])
    before = rows[0] if region < 0 else program.regions[outermost_region(program, region)].start
    return PortPlace(before, -1, tuple(rows)), False


def _reads_in_loop(
    program: Program, carry: int, port: TensorPort, layers: int, readers: Callable[[int], list[int]]
) -> list[int]:
    """Rows that read or write single layers of the stack that `carry` is; none if others do."""
    region = int(program.region[carry])
    if _trips_of_layers(program, region, port) != layers:
        return []
    if carry not in {c for c, _ in program.regions[region].carries}:
        return []
    layer = (1, *port.tensor.shape[1:])
    stop = program.regions[region].stop
    found: list[int] = []
    same = [carry]
    for value in same:
        for row in (r for r in readers(value) if r < stop):
            if program.op[row] == OpClass.UPDATE_SLICE and int(program.alias[row]) == value:
                same.append(row)
            elif program.op[row] != OpClass.DYNAMIC_SLICE or _shape(program, row) != layer:
                return []
            if int(program.region[row]) != region:
                return []
            found.append(row)
    return sorted(set(found))


def _trips_of_layers(program: Program, region: int, port: TensorPort) -> int:
    """The trip count of an outermost loop if it goes once over dimension 0 of the port, else 0."""
    tensor = port.tensor
    if region < 0 or not tensor.global_shape or tensor.sharding[0]:
        return 0
    loop = program.regions[region]
    fits = loop.kind is RegionKind.LOOP and loop.parent < 0
    return loop.trip_count if fits and loop.trip_count == tensor.global_shape[0] else 0


def _behind_views(program: Program, row: int) -> int:
    """The row whose value `row` passes on unchanged."""
    while (
        program.kind[row] == Kind.VALUE
        and program.flags[row] & Flag.VIEW
        and _shape(program, row) == _shape(program, int(program.alias[row]))
        and program.region[row] == program.region[program.alias[row]]
    ):
        row = int(program.alias[row])
    return row


def _shape(program: Program, row: int) -> tuple[int, ...]:
    return program.shapes[program.shape[row]]


def _last_parameter(program: Program) -> int:
    rows = np.flatnonzero(program.kind == Kind.PARAMETER)
    return int(rows[-1]) if len(rows) else -1


def _readers_of(program: Program) -> Callable[[int], list[int]]:
    from flint.ir.columns import consumers

    start, rows = consumers(program)
    return lambda row: sorted(rows[start[row] : start[row + 1]].tolist())
