"""Which numbers a value holds, where they are equally spaced along one dimension.

`jnp.arange` reaches an index through broadcasts, reshapes, conversions, and a choice for negative
indices of which one side is never taken. XLA's compilers simplify these before they partition; here
they are followed, and a comparison is decided where it comes out the same for every element. A number that is computed of constants alone (the place of a median) is known, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flint.passes.mlir import defining_operation, shape_of

#: Operations that are followed before a value counts as unknown.
_DEPTH = 24
#: Types of constants that are read: numpy has none of four bits.
_READ = {"i1", "f32", *(f"{sign}i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
#: Elements of a constant that are looked at.
_MOST_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class IndexLine:
    """`start`, and `step` more for each of `count` positions of a dimension; constant: step 0."""

    start: float
    step: float = 0
    dimension: int = 0
    count: int = 1

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest number."""
        last = self.start + self.step * (self.count - 1)
        return min(self.start, last), max(self.start, last)

    @property
    def is_iota(self) -> bool:
        """Whether each position holds its own number."""
        return self.start == 0 and self.step == 1 and self.count > 1


def line_of(value: Any, depth: int = _DEPTH) -> IndexLine | None:
    """The line that a value of numbers (or truths) is; None: it is not known to be one."""
    from jaxlib.mlir import ir

    if depth == 0 or not isinstance(value.type, ir.RankedTensorType):
        return None
    if isinstance(value, ir.BlockArgument):
        outside = _unchanged_by_loop(value)
        return None if outside is None else line_of(outside, depth - 1)
    maker = defining_operation(value)
    reader = _READERS.get(maker.name)
    found = None if reader is None else reader(maker, depth - 1)
    return found if found is not None and _is_held(found, value) else None


#: The largest whole number up to which a type of floats holds all.
_WHOLE = {"bf16": 1 << 8, "f16": 1 << 11, "f32": 1 << 24, "f64": 1 << 53}


def _is_held(line: IndexLine, value: Any) -> bool:
    """Whether the type of a value holds all numbers of a line, without wrapping or rounding."""
    from jaxlib.mlir import ir

    name = str(ir.RankedTensorType(value.type).element_type)
    low, high = line.ends
    if name == "f32" and not line.step:
        return True
    whole = re.fullmatch(r"(u?)i(\d+)", name)
    if whole is None:
        most = _WHOLE.get(name, 0)
        return -most <= low and high <= most
    bits = int(whole[2])
    is_unsigned = bool(whole[1]) or bits == 1
    least, most = (0, 1 << bits) if is_unsigned else (-1 << bits - 1, 1 << bits - 1)
    return least <= low and high < most


def _unchanged_by_loop(argument: Any) -> Any | None:
    """What an argument of a loop's body or condition begins as, if every turn leaves it alone."""
    owner = argument.owner.owner
    loop = getattr(owner, "operation", owner)
    if loop.name != "stablehlo.while":
        return None
    body = loop.regions[1].blocks[0]
    number = argument.arg_number
    returned = list(body.operations)[-1].operands[number]
    return loop.operands[number] if returned == body.arguments[number] else None


# operations ---------------------------------------------------------------------------------------


def _constant(op: Any, depth: int) -> IndexLine | None:
    from jaxlib.mlir import ir

    kind = ir.RankedTensorType(op.results[0].type)
    held = op.attributes["value"]
    name = str(kind.element_type)
    if name not in _READ or not isinstance(held, ir.DenseElementsAttr):
        return None
    if held.is_splat:
        number = held.get_splat_value()
        return IndexLine(number.value) if hasattr(number, "value") else None
    if name == "f32":
        return None
    shape = tuple(kind.shape)
    long = [d for d, size in enumerate(shape) if size > 1]
    if len(long) != 1 or math.prod(shape) > _MOST_ELEMENTS:
        return None
    numbers = np.array(held).reshape(-1).astype(np.int64)
    steps = set(np.diff(numbers).tolist())
    return (
        IndexLine(int(numbers[0]), steps.pop(), long[0], numbers.size) if len(steps) == 1 else None
    )


def _iota(op: Any, depth: int) -> IndexLine | None:
    from jaxlib.mlir import ir

    dimension = int(ir.IntegerAttr(op.attributes["iota_dimension"]).value)
    size = shape_of(op.results[0])[dimension]
    return IndexLine(0, 1, dimension, size) if size > 1 else IndexLine(0)


def _same(op: Any, depth: int) -> IndexLine | None:
    return line_of(op.operands[0], depth)


def _convert(op: Any, depth: int) -> IndexLine | None:
    """Whole numbers are without what is behind the point."""
    found = line_of(op.operands[0], depth)
    kind = _element(op)
    if found is None or kind == "f32" or all(float(n).is_integer() for n in found.ends):
        return found
    return IndexLine(int(found.start)) if kind[:1] in "iu" and not found.step else None


def _rounding(change: Callable[[float], int]) -> Callable[[Any, int], IndexLine | None]:
    """Of one number."""

    def read(op: Any, depth: int) -> IndexLine | None:
        found = line_of(op.operands[0], depth)
        return None if found is None or found.step else IndexLine(change(found.start))

    return read


def _element(op: Any) -> str:
    from jaxlib.mlir import ir

    return str(ir.RankedTensorType(op.results[0].type).element_type)


def _broadcast(op: Any, depth: int) -> IndexLine | None:
    found = line_of(op.operands[0], depth)
    if found is None or not found.step:
        return found
    return replace(
        found, dimension=int(list(op.attributes["broadcast_dimensions"])[found.dimension])
    )


def _transpose(op: Any, depth: int) -> IndexLine | None:
    found = line_of(op.operands[0], depth)
    if found is None or not found.step:
        return found
    return replace(found, dimension=list(op.attributes["permutation"]).index(found.dimension))


def _reshape(op: Any, depth: int) -> IndexLine | None:
    """The dimension goes on where one of its size has as many elements before it."""
    found = line_of(op.operands[0], depth)
    if found is None or not found.step:
        return found
    before = shape_of(op.operands[0])
    after = shape_of(op.results[0])
    major = math.prod(before[: found.dimension])
    for d, size in enumerate(after):
        if size == found.count and math.prod(after[:d]) == major:
            return replace(found, dimension=d)
    return None


def _arithmetic(combine: Callable[[float, float], float], *, scales: bool = False) -> Any:
    """Of two lines of which one is constant, or of which both run along one dimension.

    Numbers of 32 bits are rounded as a device does.
    """

    def read(op: Any, depth: int) -> IndexLine | None:
        first, second = (line_of(v, depth) for v in op.operands)
        if first is None or second is None:
            return None
        along = first if first.step else second
        if first.step and second.step and (scales or first.dimension != second.dimension):
            return None
        start = combine(first.start, second.start)
        if _element(op) == "f32":
            return None if along.step else IndexLine(float(np.float32(start)))
        step = combine(first.start + first.step, second.start + second.step) - start
        return replace(along, start=start, step=step)

    return read


def _compare(op: Any, depth: int) -> IndexLine | None:
    """1 or 0 where all elements compare alike."""
    first, second = (line_of(v, depth) for v in op.operands)
    if first is None or second is None:
        return None
    direction = str(op.attributes["comparison_direction"]).split()[-1].rstrip(">")
    (low, high), (other_low, other_high) = first.ends, second.ends
    below, reaches = high < other_low, low < other_high
    least, most = low <= other_low and high <= other_low, low <= other_high
    decided = {
        "LT": (below, not reaches),
        "GE": (not reaches, below),
        "LE": (least, not most),
        "GT": (not most, least),
    }.get(direction)
    return IndexLine(int(decided[0])) if decided is not None and any(decided) else None


def _select(op: Any, depth: int) -> IndexLine | None:
    chosen = line_of(op.operands[0], depth)
    if chosen is None or chosen.step:
        return None
    return line_of(op.operands[1 if chosen.start else 2], depth)


def _clamp(op: Any, depth: int) -> IndexLine | None:
    """The middle operand where nothing of it is cut off; of one number what is left."""
    low, found, high = (line_of(v, depth) for v in op.operands)
    if low is None or found is None or high is None:
        return None
    if not (low.step or found.step or high.step):
        return IndexLine(min(max(found.start, low.start), high.start))
    inside = low.ends[1] <= found.ends[0] and found.ends[1] <= high.ends[0]
    return found if inside else None


def _chosen(choose: Callable[[float, float], float]) -> Callable[[Any, int], IndexLine | None]:
    """The larger or smaller of two numbers."""

    def read(op: Any, depth: int) -> IndexLine | None:
        first, second = (line_of(v, depth) for v in op.operands)
        if first is None or second is None or first.step or second.step:
            return None
        return IndexLine(choose(first.start, second.start))

    return read


_READERS: dict[str, Callable[[Any, int], IndexLine | None]] = {
    "stablehlo.constant": _constant,
    "sdy.constant": _constant,
    "stablehlo.iota": _iota,
    "stablehlo.convert": _convert,
    "stablehlo.floor": _rounding(math.floor),
    "stablehlo.ceil": _rounding(math.ceil),
    "sdy.reshard": _same,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.transpose": _transpose,
    "stablehlo.reshape": _reshape,
    "stablehlo.add": _arithmetic(lambda a, b: a + b),
    "stablehlo.subtract": _arithmetic(lambda a, b: a - b),
    "stablehlo.multiply": _arithmetic(lambda a, b: a * b, scales=True),
    "stablehlo.compare": _compare,
    "stablehlo.select": _select,
    "stablehlo.clamp": _clamp,
    "stablehlo.maximum": _chosen(max),
    "stablehlo.minimum": _chosen(min),
}
