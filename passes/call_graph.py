"""Functions that call one another, bounded before any call is written out."""

from __future__ import annotations

from collections.abc import Mapping

from flint.errors import FlintError

#: Operations of a module at most, with every call written out: more fill the memory.
MOST_OPERATIONS = 1 << 21
#: Functions that call one another, and operations inside operations: code that follows them calls
#: itself for each.
MOST_NESTED = 100


def check_call_graph(
    calls: Mapping[str, Mapping[str, int]], sizes: Mapping[str, int], code: str, name: str
) -> None:
    """Raise FlintError `code` unless calls end, and soon enough.

    `calls` says how often each function calls which others, all of them keys; `sizes` how many
    operations each has; `name` names the module. Functions that call themselves have no end, and
    thirty that each call the next twice are a thousand million operations.
    """
    depths: dict[str, int] = {}
    whole: dict[str, int] = {}
    for function in _callees_first(calls, code, name):
        found = calls[function]
        depths[function] = 1 + max((depths[c] for c in found), default=0)
        whole[function] = sizes[function] + sum(n * whole[c] for c, n in found.items())
        wrong = ""
        if whole[function] > MOST_OPERATIONS:
            wrong = f"is {whole[function]:.3g} operations with its calls written out"
        elif depths[function] > MOST_NESTED:
            wrong = f"begins a chain of {depths[function]} calls"
        if wrong:
            help_ = f"at most {MOST_OPERATIONS:,} operations and {MOST_NESTED} calls are followed"
            raise FlintError(code, f"{name}: function '{function}' {wrong}", help=help_)


def _callees_first(calls: Mapping[str, Mapping[str, int]], code: str, name: str) -> list[str]:
    """Functions so that each comes after all that it calls. Raises FlintError `code` for a cycle."""
    order: dict[str, None] = {}
    for first in calls:
        path: dict[str, list[str]] = {} if first in order else {first: list(calls[first])}
        while path:
            function, waiting = next(reversed(path.items()))
            if not waiting:
                order[function] = None
                del path[function]
                continue
            callee = waiting.pop()
            if callee in path:
                names = [*list(path)[list(path).index(callee) :], callee]
                shown = " -> ".join(names if len(names) < 9 else [*names[:8], "..."])
                raise FlintError(
                    code,
                    f"the functions of {name} call one another without end: {shown}",
                    help="StableHLO and HLO have no recursion",
                )
            if callee not in order:
                path[callee] = list(calls[callee])
    return list(order)
