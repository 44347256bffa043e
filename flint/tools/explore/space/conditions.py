"""`--where`: conditions that points, or what came of them, have to meet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flint.errors import FlintError, nearest
from flint.tools.explore.space.expression import (
    Arithmetic,
    CannotTell,
    Compared,
    ConstantExpression,
    Expression,
    JoinedExpression,
    Measure,
    Name,
    Negated,
    Not,
    OneOf,
    Values,
    names_in,
    parse_expression,
    parts_of,
)
from flint.tools.explore.space.names import RESULTS, Scope

_PLAIN = "a plain number"
_ANY: frozenset[str] = frozenset((Measure.BYTES, Measure.NS, _PLAIN))
#: Values by option: what a word without quotes may be beside the option's name.
Words = Mapping[str, Collection[str]]


@dataclass(frozen=True, slots=True)
class Condition:
    """What has to be true. `of_results`: it needs what came of a point, not the point alone."""

    text: str
    expression: Expression
    of_results: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it has."""
        return names_in(self.expression)

    def holds(self, names: Values) -> bool:
        """Whether it is true. Raises FlintError FL861 where that cannot be told."""
        try:
            found = self.expression.value(names)
        except CannotTell as error:
            where = ", ".join(f"{n}={names[n]}" for n in self.names if n in names)
            raise FlintError(
                "FL861", f"--where '{self.text}' cannot be evaluated: {error}", place=where or None
            ) from None
        if not isinstance(found, bool):
            raise _not_a_condition(self.text)
        return found


def parse_conditions(
    texts: Sequence[str], scope: Scope, words: Words | None = None
) -> tuple[Condition, ...]:
    """Conditions on names of `scope`. `remat == full` needs no quotes where `words` has the value.

    Raises FlintError FL861 for what cannot be read, names that are not known or stand for several
    things, and sizes compared with times.
    """
    return tuple(_condition(text, scope, words or {}) for text in texts)


def _condition(text: str, scope: Scope, words: Words) -> Condition:
    known = scope.known
    found = _quoted(parse_expression(text, "--where"), known, words)
    if not isinstance(found, Compared | OneOf | JoinedExpression | Not | Name):
        raise _not_a_condition(text)
    names = names_in(found)
    for name in names:
        _require_known(name, text, scope, words)
    _measures(found, text, known)
    plain = [n for n in names if n in RESULTS or n.startswith("result.")]
    return Condition(text, found, bool(plain))


def _require_known(name: str, text: str, scope: Scope, words: Words) -> None:
    known = scope.known
    if name in known:
        return
    if name in scope.ambiguous:
        meant = [k for k in known if k.endswith(f".{name}")]
        raise FlintError(
            "FL861", f"--where '{text}': '{name}' is ambiguous", help="write " + " or ".join(meant)
        )
    values = [value for of_option in words.values() for value in of_option]
    raise FlintError(
        "FL861",
        f"--where '{text}': unknown name '{name}'{nearest(name, [*known, *values])}",
        help="names are " + ", ".join(n for n in known if "." not in n) + '; quote texts: "full"',
    )


def _not_a_condition(text: str) -> FlintError:
    return FlintError(
        "FL861",
        f"--where '{text}' is neither true nor false",
        help="compare: microbatches * data == 256, mfu >= 0.4",
    )


def _quoted(found: Expression, known: Mapping[str, object], words: Words) -> Expression:
    """`found` with texts for words that are no names, but values of the option beside them."""

    def text(side: Expression, beside: Expression) -> Expression:
        if isinstance(side, Name) and isinstance(beside, Name) and side.name not in known:
            values = words.get(beside.name.removeprefix("set."), ())
            return ConstantExpression(side.name) if side.name in values else side
        return side

    match found:
        case Compared(first, ((symbol, second),)):
            return Compared(text(first, second), ((symbol, text(second, first)),))
        case OneOf(inner, choices):
            return replace(found, choices=tuple(text(c, inner) for c in choices))
        case JoinedExpression(_, parts):
            return replace(found, parts=tuple(_quoted(p, known, words) for p in parts))
        case Not(inner):
            return Not(_quoted(inner, known, words))
    return found


def _measures(found: Expression, text: str, known: Mapping[str, Measure | None]) -> frozenset[str]:
    """What an expression may be of. Raises FlintError FL861 where two sides have nothing in common."""
    sides = [_measures(part, text, known) for part in parts_of(found)]
    match found:
        case Name(name):
            return _measures_of_name(name, known)
        case ConstantExpression(constant, measure):
            if measure is None and constant and isinstance(constant, int | float):
                return frozenset((_PLAIN,))
            return frozenset((measure,)) if measure else _ANY
        case Negated():
            return sides[0]
        case Arithmetic(symbol):
            return _common(sides, text) if symbol in "+-%" else _scaled(sides, symbol)
        case Compared() | OneOf():
            for one, other in pairwise(sides):
                _common([one, other], text)
    return _ANY


def _measures_of_name(name: str, known: Mapping[str, Measure | None]) -> frozenset[str]:
    measure = known[name]
    if measure is None:
        is_count = name in RESULTS or name.startswith("mesh.") or f"mesh.{name}" in known
        return frozenset((_PLAIN,)) if is_count else _ANY
    ends_in_unit = name.endswith(f"_{measure.value}")
    return frozenset((measure, _PLAIN) if ends_in_unit else (measure,))


def _common(sides: Sequence[frozenset[str]], text: str) -> frozenset[str]:
    found = sides[0] & sides[1]
    if not found:
        one, other = (" or ".join(sorted(side)) for side in sides)
        raise FlintError(
            "FL861",
            f"--where '{text}' has {one} beside {other}",
            help="write the unit: memory <= 70GiB, time <= 2s",
        )
    return found


def _scaled(sides: Sequence[frozenset[str]], symbol: str) -> frozenset[str]:
    """Of a product or quotient: that of the side that is not a plain number."""
    plain = frozenset((_PLAIN,))
    if sides[1] == plain and symbol != "**":
        return sides[0]
    return sides[1] if sides[0] == plain and symbol == "*" else _ANY
