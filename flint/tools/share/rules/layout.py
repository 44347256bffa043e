"""Rules of what copies elements: their number, their order, their type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.dims import ReductionDims
from flint.ir.op_class import DATA_MOVEMENT, LAYOUT, OpClass
from flint.tools.share.rules.view import (
    ProgramView,
    Rule,
    Shape,
    Told,
    has_equal_elements,
    is_broadcast,
    is_equal,
    is_joined,
    is_padded,
    is_permuted,
    is_within,
)

#: Classes whose result is made of elements of the operand.
_COPIES = (LAYOUT | DATA_MOVEMENT) - {OpClass.UNPACK, OpClass.MOVE}


def _of_one(op: OpClass, holds: Callable[[Shape, Shape], bool]) -> Callable[[ProgramView], Told]:
    """The rule that the one operand of a class has a shape that fits to that of the result."""

    def tell(view: ProgramView) -> Told:
        about = view.of(op) & view.all_plain & ~view.launched & view.is_plain
        about &= ~_takes_bits(view)
        links = view.links_of(about)
        return Told(about, (view.arity == 1) & view.every(~links | view.related(holds, links)))

    return tell


def _takes_bits(view: ProgramView) -> Mask:
    """Values that are the same bits as another type: their elements need not be as many."""
    p = view.program
    other = p.dtype[view.read] != p.dtype[view.owner]
    return view.some(other) & view.of(OpClass.RESHAPE)


def _some(op: OpClass, holds: Callable[[Shape, Shape], bool]) -> Callable[[ProgramView], Told]:
    """The rule that one operand of a class has a shape that fits to that of the result."""

    def tell(view: ProgramView) -> Told:
        about = view.of(op) & view.works & view.all_plain & ~view.launched & view.is_plain
        links = view.links_of(about)
        return Told(about, view.some(view.related(holds, links)))

    return tell


def _concatenates(view: ProgramView) -> Told:
    """An operand that is there twice is one link: then the bytes that are read tell.

    A rotation over several devices is one as well: there parts are rounded up.
    """
    p = view.program
    about = view.of(OpClass.CONCATENATE) & view.all_plain & ~view.launched & (view.arity > 0)
    about &= ~view.exchanges
    links = view.links_of(about)
    fits = view.every(~links | view.related(is_joined, links))
    whole = (view.summed(view.elements) == view.elements) | (p.operand_bytes == view.type_bytes)
    return Told(about, fits & whole & (view.summed(view.elements) <= view.elements))


def _types(view: ProgramView) -> Told:
    p = view.program
    about = view.of(_COPIES) & view.all_plain & (view.arity > 0) & view.is_plain
    about &= ~(view.launched & view.of(OpClass.COPY))
    same = p.dtype[view.read] == p.dtype[view.owner]
    return Told(about & ~_is_view_of_bits(view), view.some(same))


def _is_view_of_bits(view: ProgramView) -> Mask:
    """A row of VALUE kind whose operand has other types: a bit cast."""
    return ~view.works & view.of(OpClass.RESHAPE)


def _parts_read(view: ProgramView) -> Told:
    p = view.program
    about = view.of(frozenset({OpClass.SLICE, OpClass.DYNAMIC_SLICE})) & view.works & view.is_plain
    return Told(about & ~view.launched, p.operand_bytes == p.result_bytes)


def _whole_read(view: ProgramView) -> Told:
    p = view.program
    classes = frozenset({OpClass.TRANSPOSE, OpClass.REVERSE, OpClass.BROADCAST, OpClass.PAD})
    about = view.of(classes) & view.works & view.all_plain & ~view.launched & (view.arity > 0)
    read = view.summed(view.type_bytes)
    return Told(about, p.operand_bytes == read)


def _updates(view: ProgramView) -> Told:
    """Written are the elements of an operand, which are read as well."""
    p = view.program
    about = view.of(OpClass.UPDATE_SLICE) & view.works & view.all_plain & ~view.launched
    part = view.type_bytes[view.read] == p.result_bytes[view.owner]
    links = view.links_of(about)
    whole = view.some(view.related(is_equal, links))
    return Told(about, whole & view.some(part) & (p.operand_bytes == p.result_bytes))


def _gathers(view: ProgramView) -> Told:
    """Rows of elements and indices are read, at most as much as is returned and one index each."""
    p = view.program
    about = view.of(OpClass.GATHER) & view.works & view.all_plain & ~view.launched
    indices = p.operand_bytes - p.result_bytes
    index = view.some(view.type_bytes[view.read] == indices[view.owner])
    return Told(about & (p.result_bytes > 0), index)


def _indices(view: ProgramView) -> Told:
    """A part of an array is where whole numbers say: the other operands, of one element each."""
    p = view.program
    places = view.of(frozenset({OpClass.DYNAMIC_SLICE, OpClass.UPDATE_SLICE}))
    about = places & view.works & view.all_plain & ~view.launched & (not view.is_pipelined)
    needed = np.where(view.of(OpClass.UPDATE_SLICE), 2, 1)
    whole = [d.lstrip("us").startswith("int") for d in p.dtypes]
    is_index = (view.elements == 1) & np.array(whole, dtype=np.bool_)[p.dtype]
    others = view.summed((~is_index).astype(np.int64))
    return Told(about, (others <= needed) & (view.arity > needed))


def _index_sizes(view: ProgramView) -> Told:
    """Look-ups return rows of elements."""
    d = ReductionDims.of(view.program.dims)
    about = view.of(OpClass.GATHER) & view.works & (d.rows > 0) & view.is_plain
    return Told(about, d.rows * d.reduced == view.elements)


def _scatters(view: ProgramView) -> Told:
    """Rows of elements are written: they are an operand, and so are the indices that are read."""
    p = view.program
    d = ReductionDims.of(p.dims)
    about = view.of(OpClass.SCATTER) & view.works & (d.rows > 0) & view.all_plain & ~view.launched
    written = view.some(view.elements[view.read] == (d.rows * d.reduced)[view.owner])
    indices = p.operand_bytes - 2 * p.result_bytes
    return Told(about, written & view.some(view.type_bytes[view.read] == indices[view.owner]))


RULES = (
    Rule(
        "reshape",
        "a reshape keeps the number of elements",
        _of_one(OpClass.RESHAPE, has_equal_elements),
    ),
    Rule("transpose", "a transpose permutes dimensions", _of_one(OpClass.TRANSPOSE, is_permuted)),
    Rule("reverse", "a reverse keeps the shape", _of_one(OpClass.REVERSE, is_equal)),
    Rule(
        "broadcast",
        "a broadcast keeps dimensions other than 1, in order",
        _of_one(OpClass.BROADCAST, is_broadcast),
    ),
    Rule("slice", "a slice is inside of its operand", _of_one(OpClass.SLICE, is_within)),
    Rule(
        "dynamic-slice",
        "a dynamic slice is inside of an operand",
        _some(OpClass.DYNAMIC_SLICE, is_within),
    ),
    Rule("pad", "a pad is around an operand, or cuts it", _some(OpClass.PAD, is_padded)),
    Rule("concatenate", "parts of a concatenation sum to it along one dimension", _concatenates),
    Rule("copied-types", "what copies elements keeps their type", _types),
    Rule("parts-read", "a slice reads what it returns", _parts_read),
    Rule("whole-read", "a copy reads its operand", _whole_read),
    Rule("updates", "an update writes an operand into an array of the result's shape", _updates),
    Rule("indices", "a part of an array is where whole numbers say", _indices),
    Rule("look-ups", "look-ups return rows of elements", _index_sizes),
    Rule("scatters", "what is written by index is an operand, and so are indices", _scatters),
    Rule("gathers", "look-ups read what they return, and indices", _gathers),
)
