"""Expressions over the names of a point: `microbatches * micro_batch * data == 256`.

Texts are parsed by `expression_text.py`; nothing is ever evaluated as Python.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

#: What a name stands for, and what an expression gives.
Value: TypeAlias = bool | int | float | str | None
Values: TypeAlias = Mapping[str, Value]
#: Bases and exponents of `**` beyond which numbers would be of no use.
MOST_EXPONENT = 64
MOST_BASE = 2**64


class CannotTell(Exception):
    """An expression has no value for the values of its names; the text says why."""


class Measure(StrEnum):
    """What a number is of."""

    BYTES = "bytes"
    NS = "ns"


@dataclass(frozen=True, slots=True)
class ConstantExpression:
    """A number or a text. `measure` is that of its unit: numbers are in bytes or ns then."""

    constant: Value
    measure: Measure | None = None

    def value(self, names: Values) -> Value:
        """The constant."""
        return self.constant


@dataclass(frozen=True, slots=True)
class Name:
    """An axis, an option, a result."""

    name: str

    def value(self, names: Values) -> Value:
        """What `names` has for it, numbers for texts that spell one."""
        try:
            return number_or_text(names[self.name])
        except KeyError:
            raise CannotTell(f"'{self.name}' is not known") from None


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`left` and `right` joined by + - * / // % or **."""

    symbol: str
    left: Expression
    right: Expression

    def value(self, names: Values) -> Value:
        """A number. Raises CannotTell for texts, a division by 0 and powers without end."""
        left, right = (_number(side, names, self.symbol) for side in (self.left, self.right))
        if self.symbol == "**" and (abs(left) > MOST_BASE or abs(right) > MOST_EXPONENT):
            raise CannotTell(f"{left} ** {right} is too large")
        try:
            found = ARITHMETIC[self.symbol](left, right)
        except ZeroDivisionError:
            raise CannotTell(f"{left} {self.symbol} 0 is a division by 0") from None
        except OverflowError:
            found = math.inf
        if isinstance(found, complex) or (isinstance(found, float) and not math.isfinite(found)):
            raise CannotTell(f"{left} {self.symbol} {right} is not a number")
        return found


@dataclass(frozen=True, slots=True)
class Negated:
    """`-inner`."""

    inner: Expression

    def value(self, names: Values) -> Value:
        """A number. Raises CannotTell for a text."""
        return -_number(self.inner, names, "-")


@dataclass(frozen=True, slots=True)
class Compared:
    """`first < second <= third`: each with the next one."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]

    def value(self, names: Values) -> Value:
        """True or False. Raises CannotTell where a number would be ordered among texts."""
        left = number_or_text(self.first.value(names))
        for symbol, side in self.rest:
            right = number_or_text(side.value(names))
            if symbol not in _EQUALITY and not (_is_number(left) and _is_number(right)):
                raise CannotTell(
                    f"{_shown(left)} {symbol} {_shown(right)} does not compare numbers"
                )
            if not COMPARISONS[symbol](left, right):
                return False
            left = right
        return True


@dataclass(frozen=True, slots=True)
class OneOf:
    """`inner in ("1f1b", "zb-h1")`, or with `not`."""

    inner: Expression
    choices: tuple[Expression, ...]
    negated: bool = False

    def value(self, names: Values) -> Value:
        """True or False."""
        found = number_or_text(self.inner.value(names))
        choices = (number_or_text(choice.value(names)) for choice in self.choices)
        return any(found == choice for choice in choices) != self.negated


@dataclass(frozen=True, slots=True)
class JoinedExpression:
    """`and` or `or` of several."""

    symbol: str
    parts: tuple[Expression, ...]

    def value(self, names: Values) -> Value:
        """True or False; parts after the one that decides are not looked at."""
        found = (_truth(p, names) for p in self.parts)
        return all(found) if self.symbol == "and" else any(found)


@dataclass(frozen=True, slots=True)
class Not:
    """`not inner`."""

    inner: Expression

    def value(self, names: Values) -> Value:
        """True or False."""
        return not _truth(self.inner, names)


Expression: TypeAlias = (
    ConstantExpression | Name | Arithmetic | Negated | Compared | OneOf | JoinedExpression | Not
)

ARITHMETIC: Mapping[str, Callable[[int | float, int | float], int | float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_EQUALITY: Mapping[str, Callable[[Value, Value], bool]] = {"==": operator.eq, "!=": operator.ne}
COMPARISONS: Mapping[str, Callable[..., bool]] = {
    **_EQUALITY,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def parts_of(expression: Expression) -> tuple[Expression, ...]:
    """What an expression is made of, one level down."""
    match expression:
        case Arithmetic(_, left, right):
            return left, right
        case Negated(inner) | Not(inner):
            return (inner,)
        case Compared(first, rest):
            return first, *(side for _, side in rest)
        case OneOf(inner, choices):
            return inner, *choices
        case JoinedExpression(_, parts):
            return parts
        case _:
            return ()


def names_in(expression: Expression) -> tuple[str, ...]:
    """The names that an expression has, in the order of its text, each once."""
    if isinstance(expression, Name):
        return (expression.name,)
    return tuple(dict.fromkeys(n for part in parts_of(expression) for n in names_in(part)))


def number_or_text(value: Value) -> Value:
    """A text that spells a number, true, false or None as what it spells; else the value itself."""
    if not isinstance(value, str) or value == "None":
        return None if value == "None" else value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return int(value)
    except ValueError:
        pass
    try:
        found = float(value)
    except ValueError:
        return value
    return found if math.isfinite(found) else value


def _number(side: Expression, names: Values, symbol: str) -> int | float:
    found = side.value(names)
    if not _is_number(found):
        raise CannotTell(f"{_shown(found)} beside {symbol} is not a number")
    assert isinstance(found, int | float), "checked above"
    return found


def _truth(side: Expression, names: Values) -> bool:
    found = side.value(names)
    if not isinstance(found, bool):
        raise CannotTell(f"{_shown(found)} is neither true nor false")
    return found


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Value) -> str:
    return repr(value) if isinstance(value, str) else str(value)
