"""What goes into a partitioned step and comes out of it: names, shapes and shardings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flint.ir.program import Program
from flint.passes.extract import extract_with_results
from flint.passes.extract.names import parameter_name
from flint.passes.extract.tensors import Tensor, Tensors
from flint.passes.mlir import make_context
from flint.passes.partition.worker import the_worker
from flint.steps.captured import Captured


@dataclass(frozen=True)
class Port:
    """An argument or a result of a step: its name, its tensor, and the row that holds it."""

    name: str
    tensor: Tensor
    row: int


@dataclass(frozen=True, eq=False)
class PoolStep:
    """A step as the program of one device, with its arguments and results in order."""

    program: Program
    arguments: tuple[Port, ...]
    results: tuple[Port, ...]


def partition_pool(captured: Captured) -> PoolStep:
    """Partition with Shardy. Raises FlintError FL401, FL402 or FL403.

    Results are named `result` and their pytree path: `result[1]['k']`.
    """
    _, partitioned = the_worker().request("shardy", captured.module)
    program, rows = extract_with_results(partitioned, captured.mesh, captured.trip_counts)
    arguments, results = _ports(partitioned, Tensors(captured.mesh))
    numbered = range(len(arguments))  # the walk begins with a row for each argument
    return PoolStep(
        program,
        tuple(Port(*a, row) for a, row in zip(arguments, numbered, strict=True)),
        tuple(Port(*r, row) for r, row in zip(results, rows, strict=True)),
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
            (parameter_name(value) or f"arg{i}", _tensor(value.type, attributes, tensors))
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
