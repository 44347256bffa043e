"""What the fields of a record may hold, said once beside the record and checked when it is made.

def __post_init__(self) -> None:
    check_fields(self, "FL219", fn=FUNCTION, args=SEQUENCE, name=TEXT)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flint.errors import FlintError

#: More of anything than this is a typing error.
MOST = 2**31


@dataclass(frozen=True)
class Allowed:
    """What a field may hold: in words, as a test, and how to write it (for the help line)."""

    words: str
    holds: Callable[[Any], bool]
    example: str = ""


def check_fields(record: object, code: str, /, **allowed: Allowed) -> None:
    """Raise FlintError `code` for the first field of `record` that does not hold what it may."""
    for name, rule in allowed.items():
        check_value(getattr(record, name), rule, code, f"{name} of flint.{type(record).__name__}")


def check_value(value: object, rule: Allowed, code: str, what: str) -> None:
    """Raise FlintError `code` unless `value`, called `what`, is as `rule` says."""
    if not rule.holds(value):
        from flint.io.user_places import calling_place  # asks for the folders of Python

        raise FlintError(
            code,
            f"{what} is {shown(value)}, not {rule.words}",
            place=calling_place(),
            help=f"write {rule.example}" if rule.example else None,
        )


def shown(value: object) -> str:
    """A plain value as Python writes it, shortened; of others the type."""
    if value is None or isinstance(value, str | bool | int | float):
        text = repr(value)
    elif isinstance(value, list | tuple) and len(value) < 16:
        text = ", ".join(map(shown, value))
        text = f"[{text}]" if isinstance(value, list) else f"({text}{',' * (len(value) == 1)})"
    else:
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."


# --- what there is --------------------------------------------------------------------------------


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _all(values: Any, holds: Callable[[Any], bool]) -> bool:
    return _is_sequence(values) and all(map(holds, values))


def _maps(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and holds(item) for name, item in value.items()
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _pairs_text(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_text, value))


def optional(rule: Allowed) -> Allowed:
    """The rule, or None."""
    return Allowed(f"{rule.words} or None", lambda v: v is None or rule.holds(v), rule.example)


def count(least: int, most: int = MOST - 1) -> Allowed:
    """A whole number from `least` to `most`."""
    end = f"{least:,} to {most:,}" if most < MOST - 1 else f"at least {least}"
    return Allowed(f"a whole number of {end}", lambda v: _is_whole(v) and least <= v <= most)


def each(rule: Allowed, words: str, example: str = "") -> Allowed:
    """A list or tuple of what `rule` says, `words` together."""
    return Allowed(words, lambda v: _all(v, rule.holds), example)


def one_of(*rules: Allowed) -> Allowed:
    """Whatever one of the rules allows."""
    words = ", ".join(r.words for r in rules[:-1]) + f" or {rules[-1].words}"
    return Allowed(words, lambda v: any(r.holds(v) for r in rules))


def instance(words: str, kind: type | tuple[type, ...], example: str = "") -> Allowed:
    """An instance of a class."""
    return Allowed(words, lambda v: isinstance(v, kind), example)


FUNCTION = Allowed("a function", callable)
TEXT = Allowed("text", _is_text)
BOOLEAN = Allowed("True or False", lambda v: isinstance(v, bool))
SEQUENCE = Allowed("a list or tuple", _is_sequence)
TEXTS = each(TEXT, "a list or tuple of texts")
NAMED = Allowed("a mapping from names", lambda v: _maps(v, lambda _: True))
#: Patterns of names, and the plan of a model over an axis: ("tp_plan", "model").
PLACEMENTS = Allowed(
    "a mapping from patterns of names",
    lambda v: isinstance(v, Mapping) and all(_is_text(k) or _pairs_text(k) for k in v),
    '{"layers.*.weight": ("data", None), ("tp_plan", "model"): plan}',
)
POSITIVE = Allowed("a number above 0", lambda v: _is_number(v) and v > 0)
#: `donate_argnums` and `static_argnums`, as JAX takes them.
POSITIONS = Allowed(
    "the position of an argument or several positions",
    lambda v: _is_whole(v) or _all(v, _is_whole),
    "0 or (0, 1)",
)
TRIP_COUNTS = Allowed(
    "a mapping from names of loops to whole numbers of at least 0",
    lambda v: _maps(v, lambda n: _is_whole(n) and n >= 0),
    '{"decode_loop": 128}',
)
#: A sharding, or a tree of them. What is inside is checked where JAX is there to tell.
SHARDINGS = Allowed(
    "a PartitionSpec, a NamedSharding or a tree of them",
    lambda v: not isinstance(v, str | bytes | bool | int | float | complex),
    'jax.sharding.PartitionSpec("data")',
)
ANYTHING = Allowed("anything", lambda _: True)
