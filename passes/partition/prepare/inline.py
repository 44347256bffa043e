"""Inline function calls before propagation, so that sharding and CSE see through them.

A big function that is called more than once, such as one layer of an unrolled model under
`jax.jit`, stays a call: Shardy propagates through it, and everything after handles it once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flint.errors import FlintError
from flint.passes.call_graph import MOST_OPERATIONS
from flint.passes.jax_private import inlined_call
from flint.passes.mlir import functions_of, operations_named

#: A function called twice or more with at least this many operations stays a call.
KEEP_FROM_OPERATIONS = 100
_HELD = "called_computations"


@dataclass(frozen=True)
class _FunctionBody:
    """A function: how many operations it has, those inside others too, and its calls."""

    operations: int
    calls: list[Any]

    @cached_property
    def callees(self) -> Counter[str]:
        """How often it calls which functions."""
        return Counter(map(_callee, self.calls))


def inline_calls(module: Any, *, keep: bool = True) -> None:
    """Replace calls by the bodies of their functions, in place, and drop what is unused; all calls, unless `keep`.

    MLIR's own `inline` pass does nothing here: the func dialect's inliner interface is not
    registered in jaxlib. Raises FlintError FL402 for calls that multiply beyond what memory holds.
    """
    functions = functions_of(module)
    bodies = {name: _body(f) for name, f in functions.items()}
    order = _callees_first({name: body.callees for name, body in bodies.items()})
    often = _kept(bodies, order)
    kept = {"main", *(often if keep else ()), *_compared_with(module)}
    for name in order:  # what is inlined holds no calls to inline any more
        for call in bodies[name].calls:
            if _callee(call) not in kept:
                _inline(call, functions[_callee(call)])
    for name, function in functions.items():
        if name not in kept:
            function.erase()


def _compared_with(module: Any) -> list[str]:
    """Functions that custom calls hold: they compare by them (`ApproxTopK`)."""
    held = [
        op.attributes.get(_HELD, ()) for op in operations_named(module, "stablehlo.custom_call")
    ]
    return [str(name.value) for names in held for name in names]


def _kept(bodies: dict[str, _FunctionBody], order: list[str]) -> list[str]:
    """The functions that stay calls. `order` has each after all that it calls."""
    times = _executions(order, {name: body.callees for name, body in bodies.items()})
    weights: dict[str, int] = {}
    for name in order:
        body = bodies[name]
        weights[name] = body.operations + sum(n * weights[c] for c, n in body.callees.items())
        if weights[name] > MOST_OPERATIONS:
            raise FlintError(
                "FL402",
                f"function '{name}' is {weights[name]:.3g} operations with its calls written out",
                help=f"at most {MOST_OPERATIONS:,} are followed: call less often, or in a loop",
            )
    return [n for n in order if times[n] > 1 and weights[n] >= KEEP_FROM_OPERATIONS]


def _body(function: Any) -> _FunctionBody:
    from jaxlib.mlir import ir

    calls: list[Any] = []
    operations = 0

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal operations
        operations += 1
        if op.name == "func.call":
            calls.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return _FunctionBody(operations - 1, calls)  # the function itself is visited too


def _callee(call: Any) -> str:
    return str(call.attributes["callee"].value)


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


def _inline(call: Any, function: Any) -> None:
    from jaxlib.mlir import ir

    with call.location, ir.InsertionPoint(call):
        results = inlined_call(function, list(call.operands))
    for old, new in zip(call.results, results, strict=True):
        old.replace_all_uses_with(new)
    call.erase()
