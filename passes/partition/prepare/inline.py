"""Inline function calls before propagation, so that sharding and CSE see through them.

A big function that is called more than once, such as one layer of an unrolled model under
`jax.jit`, stays a call: Shardy propagates through it, and everything after handles it once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from flint.errors import FlintError
from flint.passes.call_graph import MOST_OPERATIONS
from flint.passes.jax_private import inlined_call
from flint.passes.mlir import functions_of

#: A function called twice or more with at least this many operations stays a call.
KEEP_FROM_OPERATIONS = 100


def inline_calls(module: Any) -> None:
    """Replace calls by the bodies of their functions, in place, and drop what is unused.

    MLIR's own `inline` pass does nothing here: the func dialect's inliner interface is not
    registered in jaxlib. Raises FlintError FL402 for calls that multiply beyond what memory holds.
    """
    functions = functions_of(module)
    callees = {name: _callees(f) for name, f in functions.items()}
    order = _callees_first(callees)
    times = _executions(order, callees)
    weights: dict[str, int] = {}
    kept = {"main"}
    for name in order:
        own = sum(_operations(block) for block in functions[name].regions[0])
        weights[name] = own + sum(n * weights[c] for c, n in callees[name].items())
        if weights[name] > MOST_OPERATIONS:
            raise FlintError(
                "FL402",
                f"function '{name}' is {weights[name]:.3g} operations with its calls written out",
                help=f"at most {MOST_OPERATIONS:,} are followed: call less often, or in a loop",
            )
        if times[name] > 1 and weights[name] >= KEEP_FROM_OPERATIONS:
            kept.add(name)
    for name in order:
        for block in functions[name].regions[0]:
            _inline_block(block, functions, kept)
    for name, function in functions.items():
        if name not in kept:
            function.erase()


def _callees(function: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for block in function.regions[0]:
        _count_calls(block, found)
    return found


def _count_calls(block: Any, found: Counter[str]) -> None:
    for op in block:
        if op.operation.name == "func.call":
            found[op.operation.attributes["callee"].value] += 1
        for region in op.operation.regions:
            for inner in region:
                _count_calls(inner, found)


def _callees_first(callees: dict[str, Counter[str]]) -> list[str]:
    """Function names so that each comes after all that it calls."""
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in order:
            for callee in callees[name]:
                visit(callee)
            order[name] = None

    for name in callees:
        visit(name)
    return list(order)


def _executions(order: list[str], callees: dict[str, Counter[str]]) -> Counter[str]:
    """How many instances of each function there would be after inlining everything."""
    times: Counter[str] = Counter({"main": 1})
    for name in reversed(order):
        for callee, count in callees[name].items():
            times[callee] += count * times[name]
    return times


def _operations(block: Any) -> int:
    total = 0
    for op in block:
        total += 1
        for region in op.operation.regions:
            total += sum(_operations(inner) for inner in region)
    return total


def _inline_block(block: Any, functions: dict[str, Any], kept: set[str]) -> None:
    """Inline calls in one block; their functions hold no calls to inline any more."""
    from jaxlib.mlir import ir

    for op in [op.operation for op in block]:
        if op.name == "func.call" and op.attributes["callee"].value not in kept:
            callee = functions[op.attributes["callee"].value]
            with op.location, ir.InsertionPoint(op):
                results = inlined_call(callee, list(op.operands))
            for old, new in zip(op.results, results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()
            continue
        for region in op.regions:
            for inner in region:
                _inline_block(inner, functions, kept)
