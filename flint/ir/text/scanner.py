"""One line of text, taken apart from left to right."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NoReturn

from flint.errors import FlintError, nearest
from flint.ir.program import MOST_INT64

_BLANK = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.+\-/]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_LABEL = re.compile(r"%([A-Za-z0-9_.]+)")
_NAME = re.compile(r"[A-Za-z0-9_]+")


class Scanner:
    """Takes tokens of a line; blanks between them are skipped.

    All that ends badly raises FlintError FL307 with file, line and column.
    """

    def __init__(self, text: str, source: str, line: int) -> None:
        self._text = text
        self._source = source
        self._line = line
        self._at = 0

    def fail(self, message: str, help: str | None = None) -> NoReturn:
        """Raise FlintError FL307 at this place."""
        place = f"{self._source}:{self._line}:{self._at + 1}"
        raise FlintError("FL307", message, place=place, help=help)

    def takes(self, token: str) -> bool:
        """Whether the line goes on with `token`, which is taken then."""
        at = self._skipped()
        found = self._text.startswith(token, at)
        if found:
            self._at = at + len(token)
        return found

    def expect(self, token: str) -> None:
        """Take `token`."""
        if not self.takes(token):
            self.fail(f"expected {token!r}, found {self._rest()}")

    def ahead(self, token: str) -> bool:
        """Whether the line goes on with `token`."""
        return self._text.startswith(token, self._skipped())

    def ahead_number(self) -> bool:
        """Whether the line goes on with a whole number."""
        return _NUMBER.match(self._text, self._skipped()) is not None

    def at_end(self) -> bool:
        """Whether the line or a comment at its end is all that is left."""
        at = self._skipped()
        return at == len(self._text) or self._text.startswith("//", at)

    def end(self) -> None:
        """Take the end of the line."""
        if not self.at_end():
            self.fail(f"expected the end of the line, found {self._rest()}")

    def word(self) -> str:
        """A bare word, or a string."""
        return self.string() if self.ahead('"') else self._match(_WORD, "a name")[0]

    def string(self) -> str:
        """A string in quotes."""
        start = self._skipped()
        text = self._match(_STRING, "a string in quotes")[0]
        try:
            return str(json.loads(text))
        except ValueError:
            self._at = start
            self.fail(f"{text[:40]} is not a JSON string")

    def number(self) -> int:
        """A whole number."""
        found = int(self._match(_NUMBER, "a whole number")[0])
        if abs(found) > MOST_INT64:
            self.fail(f"numbers are at most {MOST_INT64:,}")
        return found

    def label(self) -> str:
        """The name of a row, without its `%`."""
        return self._match(_LABEL, "a row (%12)")[1]

    def name(self) -> str:
        """The name of a group or route, without its `#`."""
        return self._match(_NAME, "a name (#0)")[0]

    def one_of(self, what: str, known: Collection[str]) -> str:
        """A bare word that is one of `known`."""
        start = self._skipped()
        found = self._match(_WORD, f"a {what}")[0]
        if found not in known:
            self._at, names = start, tuple(known)
            close = nearest(found, names)
            self.fail(f"'{found}' is not a known {what}{close}", help=f"one of {', '.join(names)}")
        return found

    def _skipped(self) -> int:
        found = _BLANK.match(self._text, self._at)
        return found.end() if found else self._at

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._skipped())
        if found is None:
            self.fail(f"expected {what}, found {self._rest()}")
        self._at = found.end()
        return found

    def _rest(self) -> str:
        rest = self._text[self._skipped() :]
        return repr(rest[:20]) if rest else "the end of the line"
