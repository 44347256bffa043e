"""Rules of what is computed element by element: operands, shapes, types, work."""

from __future__ import annotations

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.op_class import ELEMENTWISE, OpClass
from flint.ir.program import Flag
from flint.tools.share.rules.view import (
    ProgramView,
    Rule,
    Told,
    has_equal_elements,
    is_equal,
    spreads,
)

ONE = frozenset(
    {
        OpClass.NEGATE,
        OpClass.CONVERT,
        OpClass.REDUCE_PRECISION,
        OpClass.EXPONENTIAL,
        OpClass.LOGARITHM,
        OpClass.TRIGONOMETRIC,
    }
)
TWO = frozenset(
    {
        OpClass.ADD,
        OpClass.SUBTRACT,
        OpClass.MULTIPLY,
        OpClass.DIVIDE,
        OpClass.MAXIMUM,
        OpClass.MINIMUM,
        OpClass.COMPARE,
        OpClass.POWER,
    }
)
#: More operands than these are lists.
MOST_OPERANDS = 4
MORE = frozenset({OpClass.ARITHMETIC, OpClass.FUNCTION})
_FREE_OF_ARITHMETIC = frozenset({OpClass.CONVERT, OpClass.REDUCE_PRECISION})


def _arity(view: ProgramView) -> Told:
    holds = np.zeros(len(view), dtype=np.bool_)
    for classes, most in ((ONE, 1), (TWO, 2), (MORE, 3)):
        holds |= view.of(classes) & (view.arity >= 1) & (view.arity <= most)
    return Told(view.of(ELEMENTWISE) & ~view.launched, holds)


def _shapes(view: ProgramView) -> Told:
    """A framework's row is one operation on what it depends on if the bytes that it reads say so."""
    exact = view.program.operand_bytes == view.summed(view.type_bytes)
    about = view.of(ELEMENTWISE) & view.all_plain & (view.arity > 0) & (~view.launched | exact)
    about &= ~view.launched | (view.is_plain & ~view.flagged(Flag.IN_PLACE))
    about &= ~_takes_bits(view)
    links = view.links_of(about)
    fits = ~links | view.related(spreads, links)
    fits |= view.launched[view.owner] & view.related(has_equal_elements, links)
    whole = view.launched | view.some(view.related(is_equal, links))
    return Told(about, view.every(fits) & whole)


def _takes_bits(view: ProgramView) -> Mask:
    """Views of the same bytes as another type, of which there may be more or fewer elements."""
    other = view.program.dtype[view.read] != view.program.dtype[view.owner]
    same = view.type_bytes[view.read] == view.type_bytes[view.owner]
    is_view = view.flagged(Flag.VIEW) & (view.arity == 1) & view.every(other & same)
    return np.asarray(~view.works & is_view)


def _dtypes(view: ProgramView) -> Told:
    """Frameworks promote types, and gradients are summed in a wider one; others have one type."""
    p = view.program
    same = p.dtype[view.read] == p.dtype[view.owner]
    about = view.of((ONE | TWO) - {OpClass.CONVERT, OpClass.COMPARE}) & view.all_plain
    sums = view.some(p.op[view.read] == OpClass.ACCUMULATOR)
    holds = np.where(view.launched | sums, view.some(same), view.every(same))
    return Told(about & (view.arity > 0), holds)


def _chosen(view: ProgramView) -> Told:
    """Other functions choose by truth values; what they are of has the result's type.

    Complex numbers are made of real ones, and real ones are parts of them.
    """
    p = view.program
    same = p.dtype[view.read] == p.dtype[view.owner]
    about = view.of(MORE) & view.all_plain & ~view.launched & (view.arity > 0) & ~_is_bool(view)
    about &= ~_takes_bits(view) & ~view.is_complex & ~view.some(view.is_complex[view.read])
    return Told(about, view.every(same | _is_bool(view)[view.read]) & view.some(same))


def _compared(view: ProgramView) -> Told:
    p = view.program
    about = view.of(OpClass.COMPARE) & view.all_plain & ~view.launched & (view.arity == 2)
    types = p.dtype.astype(np.int64) + 1
    twice = view.summed(types)
    return Told(about, view.every(2 * types[view.read] == twice[view.owner]))


def _is_bool(view: ProgramView) -> Mask:
    names = [d in ("bool", "pred", "i1") for d in view.program.dtypes]
    return np.asarray(np.array(names, dtype=np.bool_)[view.program.dtype])


def _compare(view: ProgramView) -> Told:
    return Told(view.of(OpClass.COMPARE), _is_bool(view))


def _flops(view: ProgramView) -> Told:
    p = view.program
    about = view.of(ELEMENTWISE - _FREE_OF_ARITHMETIC) & view.works & view.is_plain
    elements = np.maximum(view.elements, 1)
    return Told(about, (p.flops > 0) & (p.flops % elements == 0) | (view.elements == 0))


def _operand_bytes(view: ProgramView) -> Told:
    """Operands that are read twice are one link: then bytes of one of them come on top."""
    p = view.program
    about = view.of(ELEMENTWISE) & view.works & view.all_plain & ~view.launched
    over = p.operand_bytes - view.summed(view.type_bytes)
    again = view.type_bytes[view.read] == over[view.owner]
    return Told(about, (over == 0) | view.some(again))


def _launched_bytes(view: ProgramView) -> Told:
    """What a framework's operation reads are some of the rows that it depends on."""
    p = view.program
    about = view.launched & view.works & view.of(ELEMENTWISE | {OpClass.MATMUL}) & view.is_plain
    about &= view.all_plain & (view.arity > 0) & (view.arity <= MOST_OPERANDS)
    about &= ~view.flagged(Flag.IN_PLACE | Flag.INDEXED)
    holds = np.ones(len(p), dtype=np.bool_)
    for row in np.flatnonzero(about).tolist():
        sums = {0}
        for read in p.dependencies(row).tolist():
            sums |= {s + times * int(view.type_bytes[read]) for s in sums for times in (1, 2)}
        holds[row] = int(p.operand_bytes[row]) in sums
    return Told(about, holds)


RULES = (
    Rule("arity", "an operation element by element has as many operands as its class", _arity),
    Rule(
        "elementwise-shapes",
        "operands element by element spread to the result, one has its shape",
        _shapes,
    ),
    Rule("elementwise-types", "a result has the type of an operand", _dtypes),
    Rule("choices", "what is chosen or computed of several operands has their type", _chosen),
    Rule("compared", "what is compared has one type", _compared),
    Rule("compare", "comparisons give truth values", _compare),
    Rule("elementwise-flops", "FLOPs are a whole number for each element", _flops),
    Rule("launched-bytes", "what is read are some of the operands", _launched_bytes),
    Rule("elementwise-bytes", "what is read are the operands, each once or twice", _operand_bytes),
)
