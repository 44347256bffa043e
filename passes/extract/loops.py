"""How often a `stablehlo.while` runs, read from its condition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flint.errors import FlintError, nearest
from flint.passes.locations import Origin
from flint.passes.mlir import defining_operation
from flint.steps.trip_counts import TripCounts


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
            help=f'give its trip count with --trip-count {best}=N (in Python: trip_counts={{"{best}": N}})',
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
    condition = op.regions[0].blocks[0]
    decided = defining_operation(list(condition)[-1].operation.operands[0])
    if decided is None or decided.name != "stablehlo.compare":
        return None
    direction = str(decided.attributes["comparison_direction"])
    left, right = decided.operands
    if constant_of(left) is not None or _invariant(op, left):
        left, right = right, left
        direction = direction.translate(str.maketrans("LG", "GL"))
    counter = _argument_number(left)
    if counter is None:
        return None
    start = constant_of(op.operands[counter])
    bound = _bound(op, right)
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
