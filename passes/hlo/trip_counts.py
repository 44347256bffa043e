"""How often a while loop runs: from what XLA wrote down, or from its counter.

The counter analysis evaluates the condition and the body on symbols: a value is a known integer,
an element of the loop's tuple plus a known integer, a comparison of two such, or unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flint.errors import FlintError, Malformed, nearest
from flint.passes.hlo.calls import backend_config
from flint.passes.hlo.collectives import collective_kind
from flint.passes.hlo.module import Computation, HloModule, Instruction
from flint.steps.trip_counts import TripCounts


@dataclass(frozen=True, slots=True)
class Carried:
    """Element `index` of the loop's tuple at the start of an iteration, plus `offset`."""

    index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Comparison:
    """`left direction right`, as the condition of a loop."""

    direction: str
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class _Both:
    """All of these hold."""

    values: tuple[Value, ...]


#: An int, a Carried, a comparison, several that all hold, a tuple of these, or None for what is not known.
Value = Any
#: Instructions that pass their first operand on, as far as integers go.
_TRANSPARENT = ("copy", "bitcast", "convert", "reshape", "opt-barrier", "optimization-barrier")
_KNOWN = (
    *("parameter", "constant", "tuple", "get-tuple-element", "add", "subtract", "compare", "and"),
    *("fusion", "call"),
)
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}
_LITERALS = ("s32s", "s64s", "u32s", "u64s")


class InstructionEvaluator:
    """Evaluates instructions of one computation, given its parameters."""

    def __init__(self, module: HloModule, computation: Computation, arguments: list[Value]) -> None:
        self.module = module
        self.computation = computation
        self.arguments = arguments
        self._known: dict[int, Value] = {}

    def __call__(self, instruction: Instruction) -> Value:
        """The value of `instruction`, or None if it is not known.

        Operands are visited with a stack of their own: chains can be longer than Python's.
        """
        todo = [instruction]
        while todo:
            here = todo[-1]
            waiting = [
                o
                for o in self.module.operands(self.computation, here)
                if o.id not in self._known and _matters(here)
            ]
            if waiting:
                todo += waiting
                continue
            self._known[todo.pop().id] = self._evaluate(here)
        return self._known[instruction.id]

    def _evaluate(self, i: Instruction) -> Value:
        if not _matters(i):
            return None
        values = [self._known[o] for o in i.operand_ids]
        if i.opcode == "parameter":
            inside = i.parameter_number < len(self.arguments)
            return self.arguments[i.parameter_number] if inside else None
        if i.opcode == "constant":
            return _integer(i)
        if i.opcode == "tuple":
            return tuple(values)
        if i.opcode == "get-tuple-element":
            whole = values[0]
            known = isinstance(whole, tuple) and i.tuple_index < len(whole)
            return whole[i.tuple_index] if known else None
        if i.opcode == "and":
            return _Both(tuple(values))
        if i.opcode in ("add", "subtract"):
            return _sum(values[0], values[1], 1 if i.opcode == "add" else -1)
        if i.opcode == "compare":
            return _Comparison(i.comparison_direction, values[0], values[1])
        if i.opcode in ("fusion", "call"):
            called = self.module.called(i)[0]
            return InstructionEvaluator(self.module, called, values)(self.module.root(called))
        return values[0]


def known_trip_count(loop: Instruction) -> int | None:
    """The trip count that the compiler wrote into the loop's backend configuration. Raises Malformed."""
    found = backend_config(loop).get("known_trip_count")
    count = found.get("n") if isinstance(found, dict) else None
    if isinstance(count, str) and re.fullmatch(r"-?[0-9]{1,18}", count):
        return int(count)
    if count is not None and type(count) is not int:
        raise Malformed(f"loop '{loop.name}' runs {str(count)[:40]!r} times")
    return count


def counted_trips(loop: Instruction, initial: Value, module: HloModule) -> tuple[int | None, bool]:
    """Iterations of a loop whose condition compares a counter with a constant, None of any other.

    `initial` is the value of the loop's operand. The second is whether that alone ends the loop: if not, data may
    end it earlier.
    """
    body, condition = module.called(loop)[:2]
    start = initial if isinstance(initial, tuple) else ()
    symbols = [tuple(Carried(k) for k in range(len(loop.shape.tuple_shapes)))]
    after = InstructionEvaluator(module, body, symbols)(module.root(body))
    holds = InstructionEvaluator(module, condition, symbols)(module.root(condition))
    if not isinstance(after, tuple):
        return None, False
    asked, counts = [holds], []
    while asked:
        one = asked.pop()
        asked += one.values if isinstance(one, _Both) else ()
        count = _compared(one, start, after) if isinstance(one, _Comparison) else None
        counts += [] if count is None else [count]
    return min(counts, default=None), isinstance(holds, _Comparison)


def _compared(holds: _Comparison, start: tuple[Value, ...], after: tuple[Value, ...]) -> int | None:
    """Iterations until a comparison ends them."""
    invariant = {k: start[k] for k, v in enumerate(after) if v == Carried(k) and k < len(start)}
    left, right = (_settle(v, invariant) for v in (holds.left, holds.right))
    direction = holds.direction
    if isinstance(left, int) and isinstance(right, Carried):
        left, right, direction = right, left, _MIRRORED.get(direction, "")
    if not isinstance(left, Carried) or not isinstance(right, int) or left.index >= len(start):
        return None
    step = after[left.index]
    first = start[left.index]
    if not isinstance(step, Carried) or step.index != left.index or not isinstance(first, int):
        return None
    return _iterations(first + left.offset, right, step.offset, direction)


def body_arguments(loop: Instruction, initial: Value, module: HloModule) -> list[Value]:
    """What is known of the loop's tuple in every iteration: elements that the body returns as is."""
    body = module.called(loop)[0]
    symbols = tuple(Carried(k) for k in range(len(loop.shape.tuple_shapes)))
    after = InstructionEvaluator(module, body, [symbols])(module.root(body))
    start = initial if isinstance(initial, tuple) else ()
    if not isinstance(after, tuple):
        return [None]
    same = (v == Carried(k) and k < len(start) for k, v in enumerate(after))
    return [tuple(start[k] if keep else None for k, keep in enumerate(same))]


def _iterations(first: int, bound: int, step: int, direction: str) -> int | None:
    if direction in ("GT", "GE"):
        first, bound, step = -first, -bound, -step
        direction = "LT" if direction == "GT" else "LE"
    if direction == "LE":
        bound, direction = bound + 1, "LT"
    if direction == "LT" and first >= bound:
        return 0
    if direction == "LT" and step > 0:
        return -(-(bound - first) // step)
    if direction == "NE" and step and (bound - first) % step == 0 and (bound - first) // step >= 0:
        return (bound - first) // step
    return None


def _matters(i: Instruction) -> bool:
    return i.opcode in _KNOWN or i.opcode in _TRANSPARENT


def _integer(constant: Instruction) -> int | None:
    literal = constant.literal
    for name in _LITERALS:
        numbers = getattr(literal, name)
        if len(numbers) == 1:
            return int(numbers[0])
    return None


def _sum(left: Value, right: Value, sign: int) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        return left + sign * right
    if isinstance(left, Carried) and isinstance(right, int):
        return Carried(left.index, left.offset + sign * right)
    if isinstance(left, int) and isinstance(right, Carried) and sign == 1:
        return Carried(right.index, right.offset + left)
    return None


def _settle(value: Value, invariant: dict[int, Value]) -> Value:
    if isinstance(value, Carried) and isinstance(invariant.get(value.index), int):
        return invariant[value.index] + value.offset
    return value


def compares_counters(condition: Computation) -> bool:
    """Whether the condition of a loop does no more than that: it costs nothing."""
    given = ("parameter", "get-tuple-element", "constant")
    return not any(
        collective_kind(i.opcode) or (i.shape.dimensions and i.opcode not in given)
        for i in condition.instructions
    )


class AskedLoops:
    """Loops whose count depends on data: they are numbered, and the user gives their counts.

    `around` has a name for each loop that the walk is in: what gave its count, "" if nothing had to.
    """

    def __init__(self, given: TripCounts) -> None:
        self._given = given
        self._seen = 0
        self.around: list[str] = []

    def count(self, names: Sequence[str], scope: str, place: str, at_most: int | None) -> int:
        """The count of the innermost loop, by any of its names or its number.

        `at_most` is after how many iterations its counter ends it, if it has one.
        Raises FlintError FL403 for a loop without one, or with that of a loop around it.
        """
        numbered = f"loop{self._seen}"
        self._seen += 1
        known = [name for name in (*names, numbered) if name]
        count = self._given.take(known)
        if count is None:
            raise self._unknown(known, scope, place, at_most)
        used = next(name for name in known if name in self._given)
        if used in self.around:
            raise FlintError(
                "FL403",
                f"the trip count '{used}' matches both {numbered} and a loop around it",
                place=place,
                help=f"name them by number: --trip-count {numbered}=N, and likewise for the outer one",
            )
        self.around[-1] = used
        return count

    def _unknown(
        self, known: Sequence[str], scope: str, place: str, at_most: int | None
    ) -> FlintError:
        bound = "" if at_most is None else f"; its counter ends it after {at_most}"
        best = next((name for name in known if ":" in name), known[0])
        given = next(iter(self._given), "")
        named = "" if known[0] in (scope, place, known[-1]) else f" ({known[0]})"
        return FlintError(
            "FL403",
            f"the trip count of loop {known[-1]}{named}{f' in {scope}' if scope else ''} depends on data"
            + (nearest(given, list(known)) if given else ""),
            place=place,
            help=f'give its trip count with --trip-count {best}=N (in Python: trip_counts={{"{best}": N}})'
            + bound,
        )
