"""Globs over dotted names (`layers.*.attention.wq.weight`) and what to say when one matches none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from flint.errors import FlintError, nearest


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The names that `pattern` matches, in their order.

    `*` stands for any characters within one part of a dotted name and `?` for one of them; a part
    `**` stands for any number of parts, none included. Brackets are ordinary characters:
    `cache[0]` is a name.
    """
    expression = _compiled(pattern)
    return [name for name in names if expression.fullmatch(name)]


def no_match(pattern: str, names: Sequence[str], what: str, where: str) -> FlintError:
    """FL221: `pattern`, written in `where`, matches none of `names`, which are names of `what`."""
    shown = ", ".join(_shortened(names))
    return FlintError(
        "FL221",
        f"'{pattern}' matches no {what}{_suggestion(pattern, names)}",
        place=where,
        help=f"there are: {shown}" if shown else f"the module has no {what}",
    )


def without_numbers(name: str) -> str:
    """A name with stars for the numbers of layers: `layers.*.norm.weight`."""
    return re.sub(r"(?<=\.)\d+(?=\.|\Z)", "*", name)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    *front, last = pattern.split(".")
    text = "".join(r"(?:[^.]+\.)*" if p == "**" else _part(p) + r"\." for p in front)
    if last != "**":
        text += _part(last)
    elif text.endswith(r"\."):
        text = text.removesuffix(r"\.") + r"(?:\.[^.]+)*"
    else:
        text += ".*"
    return re.compile(text, re.DOTALL)


def _part(part: str) -> str:
    return re.escape(part).replace(r"\*", "[^.]*").replace(r"\?", "[^.]")


def _suggestion(pattern: str, names: Sequence[str]) -> str:
    """The nearest name, its numbers as stars where the pattern has stars."""
    general = {without_numbers(name): name for name in reversed(names)}
    if "*" in pattern:
        return nearest(pattern, list(reversed(general)))
    return nearest(pattern, list(names))


def _shortened(names: Sequence[str], limit: int = 12) -> list[str]:
    """Names with the numbers of layers as stars, each once, at most `limit`."""
    general = list(dict.fromkeys(map(without_numbers, names)))
    return general[:limit] + (["..."] if len(general) > limit else [])
