"""Whole names for operations, before XLA makes one function of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flint.passes.locations import (
    Locations,
    as_written,
    kept_by_xla,
    split_name_stack,
    written_place,
)
from flint.passes.mlir import functions_of, rewritten

if TYPE_CHECKING:
    from jaxlib.mlir import ir

_BODY, _CALL = "sdy.manual_computation", "func.call"


def with_whole_names(bytecode: bytes) -> bytes:
    """A StableHLO module in which names say scope and phase as XLA hands them on.

    JAX names what is in a body of `sdy.manual_computation` as seen from there (`dot_general`), as in
    a function. XLA adds the name of a call to those of the function that it inlines, but none to
    those of a body, which are named from outside here. Names of a PyTorch program are in several
    pieces, of which XLA takes the last.
    """
    if not any(mark in bytecode for mark in (b"manual_computation", b"/@")):
        return bytecode
    return rewritten(bytecode, _name_whole)


def _name_whole(module: ir.Module) -> None:
    _join_names(module)
    functions = functions_of(module)
    callers: dict[str, str] = {}
    _find_callers("main", "", functions, callers)
    for name, prefix in callers.items():
        _name_bodies(functions[name], prefix)


def _join_names(module: ir.Module) -> None:
    """Names of PyTorch programs in one piece."""
    from jaxlib.mlir import ir

    locations = Locations()

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = locations.decode(op.location)[0]
        if written_place(name) is not None:
            op.location = ir.Location.name(kept_by_xla(name), _behind_name(op))
        return ir.WalkResult.ADVANCE

    for function in functions_of(module).values():
        function.walk(visit)


def _find_callers(
    name: str, prefix: str, functions: dict[str, ir.Operation], found: dict[str, str]
) -> None:
    """Names of the calls of all functions that `name` calls; "" where they differ in phase."""
    if name not in functions:
        return
    if name in found:
        if _phase(found[name]) != _phase(prefix):
            found[name] = ""
        return
    found[name] = prefix
    for op, outer in _operations(functions[name], prefix):
        if op.name == _CALL:
            callee = op.attributes["callee"].value
            _find_callers(callee, _joined(outer, _own_name(op)), functions, found)


def _name_bodies(function: ir.Operation, prefix: str) -> None:
    from jaxlib.mlir import ir

    named = [(op, outer) for op, outer in _operations(function, prefix) if outer != prefix]
    for op, outer in named:
        own = _own_name(op) or op.name.rpartition(".")[2]
        op.location = ir.Location.name(_joined(outer, own), _behind_name(op))


def _operations(op: ir.Operation, outer: str) -> Iterator[tuple[ir.Operation, str]]:
    """Operations inside `op`, and what their names begin with but do not say."""
    for inner in (o.operation for region in op.regions for block in region for o in block):
        yield inner, outer
        inside = outer
        if inner.name == _BODY:
            inside = _joined(outer, _own_name(inner)).rpartition("/")[0]
        yield from _operations(inner, inside)


def _phase(name: str) -> int:
    return int(split_name_stack(as_written(f"{name}/call"))[1])


def _joined(outer: str, inner: str) -> str:
    """A name inside another, unless it says the whole already, or what of it the function says."""
    if not outer or inner.startswith(f"{outer}/"):
        return inner
    head, _, last = inner.rpartition("/")
    is_said = written_place(as_written(inner)) is not None and outer.endswith(f"/{head}")
    return f"{outer}/{last if is_said else inner}"


def _behind_name(op: ir.Operation) -> ir.Location:
    from jaxlib.mlir import ir

    return op.location.child_loc if isinstance(op.location, ir.NameLoc) else op.location


def _own_name(op: ir.Operation) -> str:
    from jaxlib.mlir import ir

    return str(op.location.name_str) if isinstance(op.location, ir.NameLoc) else ""
