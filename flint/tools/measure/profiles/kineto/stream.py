"""A JSON document, a value at a time: gigabytes pass through a buffer of a megabyte."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any

from pydantic_core import from_json

from flint.errors import FlintError
from flint.tools.measure.profiles.source import Unpacked

_PIECE_BYTES = 1 << 20
#: Characters that one value, an event or what is beside the events, may have.
_MOST_CHARACTERS = 1 << 25
_SPACE = re.compile(r"\s*").match
_COMMA = re.compile(r"\s*,\s*").match
#: Where an object ends and another begins; in an array of objects perhaps, or in a text.
_BORDER = re.compile(r"\}\s*,\s*(?=\{)").search
_BATCH_CHARACTERS = 1 << 13
#: Numbers as C prints them where JSON has none.
_NO_NUMBER = re.compile(r"(:\s*)-?(?:inf|nan)(?=\s*[,}\]])")


class JsonStream:
    """Walks a document from left to right. `num_values` counts elements of arrays so far."""

    def __init__(self, source: Unpacked) -> None:
        self._source = source
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._text = ""
        self._at = 0
        self._ended = False
        decoder: Any = JSONDecoder(strict=False)
        self._scan = decoder.scan_once
        self.num_values = 0

    def peek(self) -> str:
        """The next character that is not a space, "" at the end."""
        while True:
            self._at = _SPACE(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def take(self, character: str) -> bool:
        """Go past a character, if it is the next one."""
        if self.peek() != character:
            return False
        self._at += 1
        return True

    def expect(self, character: str) -> None:
        """Go past a character. Raises FlintError FL803 if another is there."""
        if not self.take(character):
            raise self.damaged(f"'{character}' is missing")

    def value(self) -> Any:
        """The next value, whole."""
        self.peek()
        while True:
            try:
                found, end = self._scan(self._text, self._at)
            except (StopIteration, ValueError, RecursionError) as error:
                self._extend(error)
                continue
            if end == len(self._text) and self._more():
                continue  # a number may go on
            self._at = end
            return found

    def elements(self) -> Iterator[Any]:
        """Elements of the array that begins here, one by one."""
        self.expect("[")
        if self.take("]"):
            return
        while True:
            yield from self._whole_elements()
            yield self.value()
            self.num_values += 1
            if self.take("]"):
                return
            self.expect(",")
            self.peek()

    def _whole_elements(self) -> Iterator[Any]:
        """Those that lie in the buffer with the comma behind them.

        Some at a time, up to where an object ends and another begins, as one array: that is twice as
        fast as one by one, by a parser that is less tolerant. Where that was no border of elements, they come one by one.
        """
        text = self._text
        while True:
            border = _BORDER(text, self._at + _BATCH_CHARACTERS)
            if border is None:
                yield from self._single_elements(len(text))
                return
            found = self._array(self._at, border.start() + 1)
            if found is None:
                single_to = border.end()
                yield from self._single_elements(single_to)
                if self._at < single_to:
                    return
                continue
            self._at = border.end()
            self.num_values += len(found)
            yield from found

    def _array(self, start: int, stop: int) -> list[Any] | None:
        """Elements that are a part of the buffer, None if that is not whole elements."""
        try:
            found: list[Any] = from_json(f"[{self._text[start:stop]}]", cache_strings="keys")
        except ValueError:
            return None
        return found

    def _single_elements(self, stop: int) -> Iterator[Any]:
        """Those that begin before `stop`, as far as they are whole."""
        scan, text, at = self._scan, self._text, self._at
        try:
            while at < stop:
                found, end = scan(text, at)
                comma = _COMMA(text, end)
                if comma is None:
                    return
                at = self._at = comma.end()
                self.num_values += 1
                yield found
        except (StopIteration, ValueError, RecursionError):
            return

    def members(self) -> Iterator[str]:
        """Keys of the object that begins here; the caller takes each one's value."""
        self.expect("{")
        if self.take("}"):
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise self.damaged("a key is not a text")
            self.expect(":")
            yield key
            if self.take("}"):
                return
            self.expect(",")

    def damaged(self, why: str) -> FlintError:
        """The FlintError FL803, with how far the document was read."""
        cut = why == _CUT or (self._ended and self._at >= len(self._text))
        left = 0 if cut else len(self._text) - self._at
        what = "ends too early" if cut else "is not JSON any more"
        return FlintError(
            "FL803",
            f"{self._source.path} {what} after {self.num_values:,} events and about "
            f"{self._source.num_bytes - left:,} bytes" + ("" if cut else f": {why}"),
            help="copy the whole file again; a killed profiler does not finish its file",
        )

    def _extend(self, error: Exception) -> None:
        """More text, for a value that does not end in what is there."""
        if len(self._text) - self._at > _MOST_CHARACTERS:
            raise self.damaged(_reason(error)) from error
        if self._more():
            return
        rest = self._text[self._at :]
        mended = _NO_NUMBER.sub(r"\1null", rest)
        if mended == rest:
            raise self.damaged(_reason(error) if self._breaks(error) else _CUT) from error
        self._text, self._at = mended, 0

    def _breaks(self, error: Exception) -> bool:
        """Whether the text is wrong before its end, rather than cut there."""
        position = getattr(error, "pos", None)
        message = str(error)
        if isinstance(error, StopIteration):
            position = error.value
        if position is None:
            return True
        return int(position) < len(self._text.rstrip()) and "Unterminated" not in message

    def _more(self) -> bool:
        """Read on, dropping what was taken. False at the end."""
        if self._ended:
            return False
        rest = self._text[self._at :]
        piece = self._source.read(max(_PIECE_BYTES, len(rest)))
        self._ended = not piece
        self._text, self._at = rest + self._decode(piece, not piece), 0
        return True


_CUT = "cut"


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(getattr(error, "msg", "")) or "a value is missing"
