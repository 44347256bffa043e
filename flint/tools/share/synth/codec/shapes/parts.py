"""Shapes put together of dimensions of earlier steps, of the depth, of axes, and of new sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from flint.ir.op_class import OpClass
from flint.ir.program import Kind
from flint.tools.share.rules.shapes import is_around, is_broadcast, is_within
from flint.tools.share.synth.codec.lenders import Lenders
from flint.tools.share.synth.codec.scene import Scene, Symbols
from flint.tools.share.synth.codec.shapes.rule import Reading, Seen
from flint.tools.share.synth.codec.template import Template
from flint.tools.share.synth.codec.value_type import Shape, ValueType

#: ("one",), ("number", n), ("depth",), ("axis", number), ("run", pointer, start, stop, rank) or
#: ("size", octave).
PartOf: TypeAlias = tuple[str | int, ...]
#: Sizes up to this one are numbers of their own; larger ones that nothing gives are new sizes.
MOST_NUMBER = 16
#: Steps that lend dimensions to one shape.
MOST_POINTERS = 3
#: Classes whose result is made of nothing, or of scalars.
_MADE = frozenset({OpClass.CONSTANT, OpClass.IOTA, OpClass.FILL, OpClass.RANDOM, OpClass.VALUE})
#: Classes that look up rows, or arrange elements: what they read has the result's type.
_LOOKS_UP = frozenset({OpClass.GATHER, OpClass.TOP_K, OpClass.SORT, OpClass.REDUCE_SCATTERED})


@dataclass(frozen=True)
class Parts:
    """Arguments: the parts in order. Pointers follow the operands."""

    name: str = "parts"

    def parts_of(
        self, shape: Shape, lenders: Lenders, scene: Scene, symbols: Symbols
    ) -> tuple[tuple[PartOf, ...], tuple[int, ...]] | None:
        """The parts of a shape and the steps that lend; sizes that are new are added to `symbols`."""
        parts: list[PartOf] = []
        pointers: list[int] = []
        at = 0
        while at < len(shape):
            loan = lenders.longest(shape[at:])
            width = loan.stop - loan.start if loan else 0
            if width < 2 and (simple := _simple(shape[at], at, scene)):
                parts.append(simple)
                at += 1
            elif loan is not None:
                parts.append(("run", len(pointers), loan.start, loan.stop, loan.rank))
                pointers.append(loan.step)
                at += width
            else:
                parts.append(("size", shape[at].bit_length() - 1))
                symbols.taken.append(shape[at])
                at += 1
        if len(pointers) > MOST_POINTERS:
            return None
        return tuple(parts), tuple(pointers)

    def read(self, row: Seen) -> Reading | None:
        return None  # it needs the lenders: see `parts_of`

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        if len(chosen) < t.arity:
            return True
        pointer = len(chosen) - t.arity
        runs = {p[1]: p for p in t.arguments if p[0] == "run"}
        if candidate.rank != runs[pointer][4]:
            return False
        if pointer + 1 < t.pointers or any(p[0] in ("size", "depth", "axis") for p in t.arguments):
            return True
        shape = _shape(t, (*chosen, candidate))
        return shape is not None and could_be(t, chosen[: t.arity], ValueType(t.dtype, shape))

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        return self.shape_with(t, chosen, scene, ())

    def shape_with(
        self, t: Template, chosen: Sequence[ValueType], scene: Scene, sizes: Sequence[int]
    ) -> Shape | None:
        """The shape, with new sizes; None where the class could not give it."""
        shape = _shape(t, chosen, scene, sizes)
        if shape is None or not could_be(t, chosen[: t.arity], ValueType(t.dtype, shape)):
            return None
        return shape

    @staticmethod
    def octaves(t: Template) -> tuple[int, ...]:
        """Octaves of the new sizes that a template needs."""
        return tuple(int(p[1]) for p in t.arguments if p[0] == "size")


def could_be(t: Template, operands: Sequence[ValueType], result: ValueType) -> bool:
    """Whether rows of this class may have such a result: what strict rules say, before it is made."""
    if result.elements < 1:
        return False
    if t.kind is Kind.PARAMETER or (t.op in _MADE and not operands):
        return not operands
    if t.op is OpClass.BROADCAST:
        return len(operands) == 1 and is_broadcast(operands[0].shape, result.shape)
    if t.op is OpClass.RESHAPE:
        return len(operands) == 1 and operands[0].elements == result.elements
    if t.op in (OpClass.SLICE, OpClass.DYNAMIC_SLICE):
        rest = operands[1:]
        is_inside = is_within(operands[0].shape, result.shape) and not operands[0].is_index
        return is_inside and all(o.is_index for o in rest) and _is_dynamic(t) == bool(rest)
    if t.op is OpClass.PAD:
        return any(is_around(o.shape, result.shape) for o in operands)
    if t.op in _LOOKS_UP:
        return _looks_up(t, operands, result)
    if t.op is OpClass.CONVOLUTION:
        return _convolves(t, operands, result)
    return False


def _convolves(t: Template, operands: Sequence[ValueType], result: ValueType) -> bool:
    """Operands of as many dimensions, among them those that sizes are taken from."""
    _, features_at, operand, without = t.sizes
    ranks = [o.rank for o in operands]
    there = features_at < result.rank and operand < len(ranks) and without < ranks[operand]
    return there and all(rank == result.rank for rank in ranks)


def _is_dynamic(t: Template) -> bool:
    return t.op is OpClass.DYNAMIC_SLICE


def _looks_up(t: Template, operands: Sequence[ValueType], result: ValueType) -> bool:
    """Look-ups: the rows of the first operand, where whole numbers say. Others: any."""
    if t.op is not OpClass.GATHER:
        return bool(operands)
    if len(operands) != 2 or not operands[1].dtype.lstrip("us").startswith("int"):
        return False
    index, numbers = operands[1].elements, t.sizes[0]
    return index % numbers == 0 and result.elements % (index // numbers) == 0


def _simple(size: int, at: int, scene: Scene) -> PartOf | None:
    if size == 1:
        return ("one",)
    if at == 0 and size == scene.depth:
        return ("depth",)
    if size in scene.mesh.sizes:
        return ("axis", scene.mesh.sizes.index(size))
    return ("number", size) if size <= MOST_NUMBER else None


def _shape(
    t: Template, chosen: Sequence[ValueType], scene: Scene | None = None, sizes: Sequence[int] = ()
) -> Shape | None:
    found: list[int] = []
    left = iter(sizes)
    for part in t.arguments:
        what = part[0]
        if what == "one":
            found.append(1)
        elif what == "number":
            found.append(int(part[1]))
        elif what == "run":
            _, pointer, start, stop, rank = part
            lender = chosen[t.arity + pointer].shape
            if len(lender) != rank:
                return None
            found.extend(lender[start:stop])
        elif scene is None:
            return None
        elif what == "depth":
            found.append(scene.depth)
        elif what == "axis":
            found.append(scene.group_size((int(part[1]),)))
        else:
            size = next(left, None)
            if size is None:
                return None
            found.append(size)
    return tuple(found) if math.prod(found) < 1 << 50 else None
