"""The functions and calls of an MLIR module, for `call_graph`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from flint.errors import FlintError
from flint.passes.call_graph import MOST_NESTED, check_call_graph
from flint.passes.mlir import functions_of


def check_calls(module: Any, code: str, name: str) -> None:
    """Raise FlintError `code` unless all that is called is there, and `check_call_graph` holds.

    `name` names the module.
    """
    bodies = {f: op for f, op in functions_of(module).items() if len(op.regions[0].blocks)}
    calls: dict[str, Counter[str]] = {f: Counter() for f in bodies}
    sizes = {f: _read(op, calls[f], code, name) for f, op in bodies.items()}
    for caller, found in (("", {"main": 1}), *calls.items()):
        missing = next((c for c in found if c not in calls), None)
        if missing is not None:
            wrong = f", which '{caller}' calls," if caller else ""
            help_ = "the file has to hold the body of every function that is called"
            raise FlintError(code, f"{name}: function '{missing}'{wrong} has no body", help=help_)
    check_call_graph(calls, sizes, code, name)


def _read(function: Any, calls: Counter[str], code: str, name: str) -> int:
    """Count a function's calls; returns how many operations it has, those inside others too."""
    count = 0
    todo = [(op.operation, 1) for block in function.regions[0] for op in block]
    while todo:
        op, depth = todo.pop()
        count += 1
        if depth > MOST_NESTED:
            raise FlintError(
                code, f"{name} has operations inside more than {MOST_NESTED} others ({op.name})"
            )
        if op.name == "func.call":
            calls[op.attributes["callee"].value] += 1
        for region in op.regions:
            for block in region:
                todo += [(inner.operation, depth + 1) for inner in block]
    return count
