"""From text to an expression, by Python's own parser: what is no condition is refused, not run."""

from __future__ import annotations

import ast
import re

from flint.errors import FlintError
from flint.tools.explore.space.expression import (
    Arithmetic,
    Compared,
    ConstantExpression,
    Expression,
    JoinedExpression,
    Measure,
    Name,
    Negated,
    Not,
    OneOf,
)

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
