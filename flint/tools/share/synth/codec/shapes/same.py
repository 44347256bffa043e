"""The result has the shape of an operand: element by element, carried values, updates in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flint.ir.op_class import ELEMENTWISE, OpClass
from flint.ir.program import Kind
from flint.tools.share.rules.shapes import is_within, spreads
from flint.tools.share.synth.codec.scene import Scene
from flint.tools.share.synth.codec.shapes.rule import Read, Reading, Seen, first_then_rest
from flint.tools.share.synth.codec.template import Template
from flint.tools.share.synth.codec.value_type import Shape, ValueType

#: Classes whose rows may have the shape of what they read.
_LIKE_OPERANDS = ELEMENTWISE | {
    *(OpClass.VALUE, OpClass.REVERSE, OpClass.COPY, OpClass.BROADCAST, OpClass.SORT),
    *(OpClass.SCAN, OpClass.REDUCE_PRECISION, OpClass.UNKNOWN, OpClass.OTHER, OpClass.SOLVE),
}


@dataclass(frozen=True)
class Same:
    """As the first operand; others spread to it. Arguments: (dimensions,)."""

    name: str = "same"

    def read(self, row: Seen) -> Reading | None:
        first = _of_shape(row)
        if row.op not in _LIKE_OPERANDS and row.kind is not Kind.COLLECTIVE:
            return None
        if first is None or not all(spreads(r.type.shape, row.result.shape) for r in row.reads):
            return None
        return Reading((row.result.rank,), first_then_rest(row, first))

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        if not chosen:
            return bool(candidate.rank == t.arguments[0])
        return spreads(candidate.shape, chosen[0].shape)

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        return chosen[0].shape if chosen else None


@dataclass(frozen=True)
class Updated:
    """An array, a part that is written into it, and where. Arguments: (dimensions, of the part)."""

    name: str = "updated"

    def read(self, row: Seen) -> Reading | None:
        first = _of_shape(row)
        if first is None or row.op is not OpClass.UPDATE_SLICE:
            return None
        parts = [r for r in row.reads if r.step != first.step and _is_part(r.type, row.result)]
        parts = [r for r in parts if r.type.num_bytes == row.written_bytes and not r.type.is_index]
        if not parts:
            return None
        part = parts[0]
        where = tuple(r for r in row.reads if r.step not in (first.step, part.step))
        if not where or not all(r.type.is_index for r in where):
            return None
        return Reading((row.result.rank,), (first, part, *where))

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        if not chosen:
            return candidate.rank == t.arguments[0] and not candidate.is_index
        if len(chosen) == 1:
            is_part = _is_part(candidate, chosen[0]) and candidate.dtype == chosen[0].dtype
            return is_part and not candidate.is_index
        return candidate.is_index

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        return chosen[0].shape if len(chosen) > 1 else None


@dataclass(frozen=True)
class Scattered:
    """An array, indices, and rows of elements for them. Arguments: (dimensions, numbers an index)."""

    name: str = "written"

    def read(self, row: Seen) -> Reading | None:
        first = _of_shape(row)
        if first is None or row.op is not OpClass.SCATTER or len(row.reads) != 3:
            return None
        _, rows, _, reduced = row.dims
        rest = [r for r in row.reads if r.step != first.step]
        for index, rows_of in (rest, rest[::-1]):
            if rows and rows_of.type.elements == rows * reduced and _divides(rows, index.type):
                numbers = index.type.elements // rows
                return Reading((row.result.rank, numbers), (first, index, rows_of))
        return None

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        if not chosen:
            return candidate.rank == t.arguments[0] and not candidate.is_index
        if len(chosen) == 1:
            whole = candidate.dtype.lstrip("us").startswith("int")
            return whole and candidate.elements % t.arguments[1] == 0
        rows = chosen[1].elements // t.arguments[1]
        fits = candidate.elements % rows == 0 and candidate.num_bytes <= chosen[0].num_bytes
        return fits and candidate.dtype == chosen[0].dtype

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        return chosen[0].shape if len(chosen) == 3 else None


def _divides(rows: int, index: ValueType) -> bool:
    return index.elements % rows == 0 and index.elements // rows <= 8


def _is_part(part: ValueType, whole: ValueType) -> bool:
    """Whether it fits inside, and is less than the whole."""
    return is_within(whole.shape, part.shape) and part.elements < whole.elements


def _of_shape(row: Seen) -> Read | None:
    """The latest operand of the result's shape, of its type if there is one."""
    found = [r for r in row.reads if r.type.shape == row.result.shape]
    same = [r for r in found if r.type.dtype == row.result.dtype]
    return next(iter(same or found), None)
