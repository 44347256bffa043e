"""Expressions over the names of a point: `microbatches * micro_batch * data == 256`.

Texts are parsed by `expression_text.py`; nothing is ever evaluated as Python.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from flint.errors import FlintError

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


# From text to an expression, by Python's own parser: what is no condition is refused, not run.

#: A condition is a line, not a program.
MOST_LETTERS = 2_000
_DEEPEST = 50
_UNITS: dict[str, tuple[float, Measure | None]] = {
    **{f"{p}iB": (2.0 ** (10 * i), Measure.BYTES) for i, p in enumerate(" KMGTP") if i},
    **{f"{p}B": (1000.0**i, Measure.BYTES) for i, p in enumerate(" kMGTP") if i},
    "B": (1.0, Measure.BYTES),
    "ns": (1.0, Measure.NS),
    "us": (1e3, Measure.NS),
    "ms": (1e6, Measure.NS),
    "s": (1e9, Measure.NS),
    **{p: (1000.0**i, None) for i, p in enumerate(" kMGT") if i},
}
_TOKEN = re.compile(
    r"""(?P<text>"[^"]*"|'[^']*')|(?P<name>[^\W\d]\w*)
    |(?P<number>(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)(?P<unit>[^\W\d]\w*)?""",
    re.VERBOSE,
)
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_WORDS = {"true": True, "false": False, "none": None}
_HELP = (
    'write names, numbers (256, 70GiB, 2s), texts in quotes, + - * / // % **, == != < <= > >=, in ("a", "b"), '
    "and, or, not"
)


def parse_expression(text: str, option: str) -> Expression:
    """The expression that a text is. `option` is what messages call it: "--where".

    Names may have a dot (`mesh.seq`, `set.seq`). Numbers may have a unit; sizes are in bytes then,
    times in ns. Raises FlintError FL861 for what cannot be read.
    """
    if len(text) > MOST_LETTERS:
        raise FlintError("FL861", f"{option} has more than {MOST_LETTERS:,} letters")
    constants: dict[str, ConstantExpression] = {}
    try:
        tree = ast.parse(_without_units(text.strip(), option, constants), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        help_ = "== compares, = does not" if re.search(r"(?<![=<>!])=(?!=)", text) else _HELP
        raise FlintError("FL861", f"{option} '{text}' cannot be read", help=help_) from None
    return _Reader(text, option, constants).read(tree.body, 0)


def _without_units(text: str, option: str, constants: dict[str, ConstantExpression]) -> str:
    """`text` with a name for each number that has a unit; `constants` gets what it stands for."""

    def replaced(found: re.Match[str]) -> str:
        number, unit = found["number"], found["unit"]
        if not unit:
            return found[0]
        if unit not in _UNITS:
            raise FlintError(
                "FL861",
                f"{option} '{text}': '{number}{unit}' has an unknown unit",
                help="units are " + ", ".join(_UNITS),
            )
        factor, measure = _UNITS[unit]
        value = float(number.replace("_", "")) * factor
        name = f"_number_{len(constants)}_"
        constants[name] = ConstantExpression(int(value) if value.is_integer() else value, measure)
        return name

    return _TOKEN.sub(replaced, text)


class _Reader:
    """Python's tree of a text, made into an expression."""

    def __init__(self, text: str, option: str, constants: dict[str, ConstantExpression]) -> None:
        self.text, self.option, self.constants = text, option, constants

    def read(self, node: ast.expr, depth: int) -> Expression:
        if depth > _DEEPEST:
            raise self.refused("is nested too deeply")
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return ConstantExpression(value)
            case ast.Name(id=name):
                return self.constants.get(name) or self.name(name)
            case ast.Attribute():
                return Name(self.dotted(node))
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                sides = self.read(left, depth + 1), self.read(right, depth + 1)
                return Arithmetic(_ARITHMETIC[type(op)], *sides)
            case ast.UnaryOp(ast.USub(), inner):
                return Negated(self.read(inner, depth + 1))
            case ast.UnaryOp(ast.UAdd(), inner):
                return self.read(inner, depth + 1)
            case ast.UnaryOp(ast.Not(), inner):
                return Not(self.read(inner, depth + 1))
            case ast.BoolOp(op, parts):
                symbol = "and" if isinstance(op, ast.And) else "or"
                return JoinedExpression(symbol, tuple(self.read(p, depth + 1) for p in parts))
            case ast.Compare():
                return self.compared(node, depth + 1)
            case _:
                raise self.refused(
                    f"has '{self.written(node)}', which cannot be part of a condition"
                )

    def name(self, name: str) -> Expression:
        return ConstantExpression(_WORDS[name.lower()]) if name in ("true", "false") else Name(name)

    def compared(self, node: ast.Compare, depth: int) -> Expression:
        first = self.read(node.left, depth)
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
            choices = node.comparators[0]
            if not isinstance(choices, ast.Tuple | ast.List | ast.Set):
                raise self.refused('has an "in" without a list: schedule in ("1f1b", "zb-h1")')
            found = tuple(self.read(c, depth) for c in choices.elts)
            return OneOf(first, found, isinstance(node.ops[0], ast.NotIn))
        rest = []
        for op, side in zip(node.ops, node.comparators, strict=True):
            if type(op) not in _COMPARISONS:
                raise self.refused("has 'is' or a chain of 'in': write ==")
            rest.append((_COMPARISONS[type(op)], self.read(side, depth)))
        return Compared(first, tuple(rest))

    def dotted(self, node: ast.expr) -> str:
        match node:
            case ast.Attribute(value, attr):
                return f"{self.dotted(value)}.{attr}"
            case ast.Name(id=name) if name not in self.constants:
                return name
            case _:
                raise self.refused(f"has '{self.written(node)}', which is not a name")

    def written(self, node: ast.expr) -> str:
        """A part of the condition as it was typed."""
        said = ast.unparse(node)
        for name, constant in self.constants.items():
            said = said.replace(name, str(constant.constant))
        return said

    def refused(self, said: str) -> FlintError:
        return FlintError("FL861", f"{self.option} '{self.text}' {said}", help=_HELP)
