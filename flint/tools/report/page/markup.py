"""HTML and SVG as text. What is not markup already is escaped, whatever is in it."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from flint.text import one_line

#: Letters of a text of a program that a page shows.
LONGEST = 1000


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """A value as text of a page: nothing in it is markup, moves a cursor or reorders letters."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(one_line(_cut(str(value))), quote=True))


def _cut(value: str) -> str:
    """A text, of a very long one its beginning: a page stays small whatever a program is called."""
    return value if len(value) <= LONGEST else f"{value[:LONGEST]}\N{HORIZONTAL ELLIPSIS}"


def tag(name: str, /, *inside: object, **attributes: object) -> Markup:
    """An element. Underlines in names of attributes are dashes, `cls` is `class`.

    An attribute that is None or False is omitted, one that is True has no value.
    """
    written = "".join(
        f" {_name(key)}"
        if value is True
        else f' {_name(key)}="{html.escape(one_line(str(value)))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{written}>{''.join(map(text, inside))}</{name}>")


def void(name: str, /, **attributes: object) -> Markup:
    """An element that holds nothing and has no end."""
    opened: str = tag(name, **attributes)
    return Markup(opened.removesuffix(f"</{name}>"))


def join(parts: Iterable[object]) -> Markup:
    """Parts one after the other."""
    return Markup("".join(map(text, parts)))


def _name(key: str) -> str:
    return "class" if key == "cls" else key.rstrip("_").replace("_", "-")


class Heading(NamedTuple):
    """The heading of a column; numbers stand on the `right`, `wide` ones may be broken."""

    title: str
    right: bool = False
    wide: bool = False


def heads(titles: str) -> tuple[Heading, ...]:
    """Headings with `|` between them; `>` stands before those of numbers, `+` before wide ones."""
    told = [title.strip() for title in titles.split("|")]
    return tuple(Heading(t.lstrip(">+"), t[:1] == ">", t[:1] == "+") for t in told)


def table(headings: Sequence[Heading], rows: Iterable[Sequence[object]], caption: str) -> Markup:
    """A table with a caption, which may scroll by itself where it is too wide."""
    head = tag("tr", *(tag("th", h.title, scope="col", cls=_cell(h)) for h in headings))
    body = [
        tag("tr", *(tag("td", cell, cls=_cell(h)) for cell, h in zip(row, headings, strict=True)))
        for row in rows
    ]
    inside = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body))
    return tag("div", inside, cls="scroll", tabindex="0", role="group", aria_label=caption)


def _cell(heading: Heading) -> str | None:
    return "number" if heading.right else "wide" if heading.wide else None


def folded(summary: str, *inside: object, is_open: bool = False) -> Markup:
    """What is shown when asked for, and always on paper."""
    return tag("details", tag("summary", summary), *inside, open=is_open)


def data(name: str, value: Any) -> Markup:
    """JSON for a script. No string in it ends the element or begins a comment."""
    written = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    for letter in "<>&":
        written = written.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(f'<script type="application/json" id="{text(name)}">{written}</script>')
