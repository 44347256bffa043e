"""Whole names for operations of `shard_map` bodies, before XLA makes one function of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flint.passes.locations import split_name_stack
from flint.passes.mlir import functions_of, make_context, write_bytecode

_BODY, _CALL = "sdy.manual_computation", "func.call"


def with_whole_names(bytecode: bytes) -> bytes:
    """A StableHLO module in which bodies of `sdy.manual_computation` are named from outside.

    JAX names what is in such a body as seen from there (`dot_general`), as in a function. XLA adds
    the name of a call to those of the function that it inlines, but none to those of a body: what
    it writes would say neither the scope nor the phase.
    """
    if b"manual_computation" not in bytecode:
        return bytecode
    from jaxlib.mlir import ir

    with make_context():
        module = ir.Module.parse(bytecode)
        functions = functions_of(module)
        callers: dict[str, str] = {}
        _find_callers("main", "", functions, callers)
        for name, prefix in callers.items():
            _name_bodies(functions[name], prefix)
        return write_bytecode(module)


def _find_callers(name: str, prefix: str, functions: dict[str, Any], found: dict[str, str]) -> None:
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


def _name_bodies(function: Any, prefix: str) -> None:
    from jaxlib.mlir import ir

    named = [(op, outer) for op, outer in _operations(function, prefix) if outer != prefix]
    for op, outer in named:
        own = _own_name(op) or op.name.rpartition(".")[2]
        child = op.location.child_loc if isinstance(op.location, ir.NameLoc) else op.location
        op.location = ir.Location.name(_joined(outer, own), child)


def _operations(op: Any, outer: str) -> Iterator[tuple[Any, str]]:
    """Operations inside `op`, and what their names begin with but do not say."""
    for inner in (o.operation for region in op.regions for block in region for o in block):
        yield inner, outer
        inside = outer
        if inner.name == _BODY:
            inside = _joined(outer, _own_name(inner)).rpartition("/")[0]
        yield from _operations(inner, inside)


def _phase(name: str) -> int:
    return int(split_name_stack(f"{name}/call")[1])


def _joined(outer: str, inner: str) -> str:
    """A name inside another, unless it says the whole already."""
    if not outer or inner.startswith(f"{outer}/"):
        return inner
    return f"{outer}/{inner}"


def _own_name(op: Any) -> str:
    from jaxlib.mlir import ir

    return str(op.location.name_str) if isinstance(op.location, ir.NameLoc) else ""
