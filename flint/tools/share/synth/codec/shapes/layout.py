"""Results that are an operand laid out otherwise, parts of it, or several joined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from flint.ir.op_class import OpClass
from flint.tools.share.synth.codec.scene import Scene
from flint.tools.share.synth.codec.shapes.rule import Reading, Seen, first_then_rest
from flint.tools.share.synth.codec.template import Arguments, Template
from flint.tools.share.synth.codec.value_type import Shape, ValueType

#: A dimension as it is in the operand.
_AS_IT_IS = "="
#: Parts of dimensions up to an eighth are fractions.
_MOST_PARTS = 8
#: Dimensions beyond which no order is searched.
_MOST_RANK = 6


@dataclass(frozen=True)
class Order:
    """The dimensions of the operand in another order. Arguments: the order."""

    name: str = "order"

    def read(self, row: Seen) -> Reading | None:
        if len(row.reads) != 1 or row.op is not OpClass.TRANSPOSE or row.result.rank > _MOST_RANK:
            return None
        shape = row.reads[0].type.shape
        for order in permutations(range(len(shape))):
            moved = order != tuple(range(len(shape)))
            if moved and tuple(shape[i] for i in order) == row.result.shape:
                return Reading(order, row.reads)
        return None

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        return candidate.rank == len(t.arguments)

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        return tuple(chosen[0].shape[i] for i in t.arguments)


@dataclass(frozen=True)
class Ones:
    """Dimensions of 1 come and go. Arguments: for each dimension of the result whether it is 1."""

    name: str = "ones"

    def read(self, row: Seen) -> Reading | None:
        if len(row.reads) != 1 or row.op is not OpClass.RESHAPE:
            return None
        if _without_ones(row.reads[0].type.shape) != _without_ones(row.result.shape):
            return None
        return Reading(tuple(d == 1 for d in row.result.shape), row.reads)

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        return len(_without_ones(candidate.shape)) == t.arguments.count(False)

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        left = iter(_without_ones(chosen[0].shape))
        return tuple(1 if is_one else next(left) for is_one in t.arguments)


@dataclass(frozen=True)
class Merged:
    """Neighbouring dimensions become one. Arguments: how many each dimension of the result is of."""

    name: str = "merged"

    def read(self, row: Seen) -> Reading | None:
        if len(row.reads) != 1 or row.op is not OpClass.RESHAPE:
            return None
        widths = _merges(row.reads[0].type.shape, row.result.shape)
        return Reading(widths, row.reads) if widths else None

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        return candidate.rank == sum(t.arguments)

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        left = iter(chosen[0].shape)
        return tuple(math.prod(next(left) for _ in range(width)) for width in t.arguments)


@dataclass(frozen=True)
class Part:
    """A part of the operand, where further operands say. Arguments: for each dimension "=" (whole),
    1, or a divisor (2 for a half) with a minus sign."""

    name: str = "part"

    def read(self, row: Seen) -> Reading | None:
        if row.op not in (OpClass.SLICE, OpClass.DYNAMIC_SLICE) or not row.reads:
            return None
        for read in row.reads:
            arguments = _parts(read.type.shape, row.result.shape)
            rest = [r for r in row.reads if r.step != read.step]
            if arguments and not read.type.is_index and all(r.type.is_index for r in rest):
                return Reading(arguments, first_then_rest(row, read))
        return None

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        if chosen:
            return candidate.is_index
        if candidate.rank != len(t.arguments) or candidate.is_index:
            return False
        pairs = zip(candidate.shape, t.arguments, strict=True)
        return all(_can_be_part(size, part) for size, part in pairs)

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        pairs = zip(chosen[0].shape, t.arguments, strict=True)
        return tuple(
            size if part == _AS_IT_IS else (1 if part == 1 else size // -part)
            for size, part in pairs
        )


@dataclass(frozen=True)
class Joined:
    """Operands behind each other along a dimension. Arguments: (dimensions, the dimension)."""

    name: str = "joined"

    def read(self, row: Seen) -> Reading | None:
        if row.op is not OpClass.CONCATENATE or not row.reads or not row.result.rank:
            return None
        shapes = [r.type.shape for r in row.reads]
        if any(len(s) != row.result.rank for s in shapes):
            return None
        for at in range(row.result.rank):
            others = {_without(s, at) for s in (*shapes, row.result.shape)}
            if len(others) == 1 and sum(s[at] for s in shapes) == row.result.shape[at]:
                return Reading((row.result.rank, at), row.reads)
        return None

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        rank, at = t.arguments
        if candidate.rank != rank:
            return False
        fits = not chosen or _without(candidate.shape, at) == _without(chosen[0].shape, at)
        return fits and candidate.dtype == t.dtype

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        at = t.arguments[1]
        whole = sum(c.shape[at] for c in chosen)
        return (*chosen[0].shape[:at], whole, *chosen[0].shape[at + 1 :])


def _without(shape: Shape, at: int) -> Shape:
    return (*shape[:at], *shape[at + 1 :])


def _without_ones(shape: Shape) -> Shape:
    return tuple(d for d in shape if d != 1)


def _merges(shape: Shape, result: Shape) -> Arguments:
    """How many dimensions of `shape` each dimension of `result` is of; () if it is not so."""
    widths, at = [], 0
    for size in result:
        product, start = 1, at
        while at < len(shape) and (product < size or at == start):
            product *= shape[at]
            at += 1
        if product != size:
            return ()
        widths.append(at - start)
    return tuple(widths) if at == len(shape) else ()


def _parts(shape: Shape, result: Shape) -> Arguments:
    if len(shape) != len(result):
        return ()
    found: list[str | int] = []
    for size, part in zip(shape, result, strict=True):
        if part == size:
            found.append(_AS_IT_IS)
        elif part == 1:
            found.append(1)
        elif part and size % part == 0 and size // part <= _MOST_PARTS:
            found.append(-(size // part))
        else:
            return ()
    return tuple(found)


def _can_be_part(size: int, part: str | int) -> bool:
    if part == _AS_IT_IS:
        return True
    return size > 1 if part == 1 else size % -int(part) == 0 and size > -int(part)
