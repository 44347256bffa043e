"""Which arguments of a Triton kernel its source writes to, and which it reads."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

_STORES = ("store", "atomic_add", "atomic_max", "atomic_min", "atomic_xchg", "atomic_cas")
_LOADS = ("load", *_STORES[1:])


class Accesses(NamedTuple):
    """Names of parameters; None where the source does not tell."""

    read: frozenset[str] | None
    written: frozenset[str] | None


def accesses_of(function: Callable[..., Any]) -> Accesses:
    """What a kernel's loads and stores reach, through what pointers are calculated from."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return Accesses(None, None)
    definition = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)
    if definition is None:
        return Accesses(None, None)
    parameters = {a.arg for a in (*definition.args.args, *definition.args.kwonlyargs)}
    sources = _assigned(definition)
    read = _reached(definition, _LOADS, sources) & parameters
    written = _reached(definition, _STORES, sources) & parameters
    return Accesses(frozenset(read) or None, frozenset(written) or None)


def _assigned(definition: ast.FunctionDef) -> dict[str, set[str]]:
    """For each local name, the names that its values are calculated from."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign):
            targets: Iterable[ast.expr] = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if node.value is None or _is_load(node.value):
            continue  # what was loaded is not a pointer
        for target in targets:
            for name in _names(target):
                found.setdefault(name, set()).update(_names(node.value))
    return found


def _is_load(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _called(value) == "load"


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _reached(
    definition: ast.FunctionDef, calls: Iterable[str], sources: dict[str, set[str]]
) -> set[str]:
    """Names that lead to the pointer of a load or store."""
    pending: list[str] = []
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and _called(node) in calls and node.args:
            pending += _names(node.args[0])
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += sources.get(name, ())
    return found
