"""Which element types may be read for each slot of a template: what strict rules say of types."""

from __future__ import annotations

from collections.abc import Sequence

from flint.ir.op_class import DATA_MOVEMENT, LAYOUT, OpClass
from flint.ir.program import Kind
from flint.tools.share.rules.elementwise import MORE, ONE, TWO
from flint.tools.share.synth.codec.template import Template
from flint.tools.share.synth.codec.value_type import ValueType

_ONE_TYPE = (ONE | TWO) - {OpClass.CONVERT, OpClass.COMPARE}
_COPIES = (LAYOUT | DATA_MOVEMENT) - {OpClass.UNPACK, OpClass.MOVE}
_BOOL = "bool"


def type_fits(t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
    """Whether an operand of this element type may follow those that are chosen."""
    first = not chosen
    if t.kind is Kind.COLLECTIVE or t.op is OpClass.REDUCE or t.is_carry:
        return candidate.dtype == t.dtype
    if t.op in _ONE_TYPE:
        return candidate.dtype == t.dtype
    if t.op is OpClass.COMPARE:
        return first or candidate.dtype == chosen[0].dtype
    if t.op in MORE:
        return _of_choice(t, chosen, candidate)
    if t.op in _COPIES:
        return not first or candidate.dtype == t.dtype
    if t.op is OpClass.MATMUL:
        return _multiplies(t, chosen, candidate)
    return True


def _of_choice(t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
    """Of functions of several operands: truth values, and values of the result's type."""
    if t.dtype == _BOOL:
        return not chosen or candidate.dtype in (_BOOL, chosen[0].dtype)
    if not chosen:
        return candidate.dtype == t.dtype
    return candidate.dtype in (t.dtype, _BOOL)


def _multiplies(t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
    """One of the operands has the type that is multiplied."""
    base = t.product.split(":")[0].split(",")[0]
    is_last = len(chosen) + 1 == t.arity
    return not is_last or base in (candidate.dtype, *(c.dtype for c in chosen))
