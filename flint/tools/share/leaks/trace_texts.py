"""Texts of a Chakra trace's bytes: names of nodes and attributes, and every value that is text.

The bytes are walked as protobuf, whatever the schema says of a field: a text in a field that no
reader asks for is in the file too. Traces of other ranks of a class differ in few numbers, so a
file of a length that was seen is compared with the first, and walked only if texts differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.reading.reader import records

#: Shorter runs are no text: a few packed numbers may look printable.
LEAST_TEXT = 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NODE_NAME, _VERSION, _METADATA_ATTRIBUTE, _NODE_ATTRIBUTE = 2, 1, 2, 10
_PACKED = (4, 5)  # dependencies of a node
_ATTRIBUTE_NAME = 1


class TraceText(NamedTuple):
    """A text of a trace and what it is: a node's name, an attribute's name, or a value."""

    role: str
    text: str


class _Span(NamedTuple):
    start: int
    stop: int
    is_text: bool


@dataclass(frozen=True, eq=False)
class TraceContent:
    """What a file holds, and for each byte whether it is of a text (1), a number (2), or neither."""

    texts: frozenset[TraceText]
    content: NDArray[np.uint8]
    of: NDArray[np.uint8]

    def has_texts_of(self, other: NDArray[np.uint8]) -> bool:
        """Whether another file of this length has no other text, but for digits in place of digits.

        Numbers may differ where they keep their width; nothing else may.
        """
        places = np.flatnonzero(self.content != other)
        if not len(places):
            return True
        of, before, after = self.of[places], self.content[places], other[places]
        digits = (of == 1) & _is_digit(before) & _is_digit(after)
        numbers = (of == 2) & (((before ^ after) & 0x80) == 0)
        return bool((digits | numbers).all())


class TraceTexts:
    """Texts of many traces, equal ones once."""

    def __init__(self) -> None:
        self._seen: dict[int, list[TraceContent]] = {}

    def of(self, data: bytes, source: str) -> frozenset[TraceText]:
        """Texts of a trace that none before had. Raises FlintError FL603 for broken framing."""
        content = np.frombuffer(data, dtype=np.uint8)
        known = self._seen.setdefault(len(data), [])
        if any(k.has_texts_of(content) for k in known):
            return frozenset()
        found = trace_content(data, source)
        known.append(found)
        return found.texts


def trace_content(data: bytes, source: str) -> TraceContent:
    """Walk a whole trace (not compressed)."""
    texts: set[TraceText] = set()
    of = np.zeros(len(data), dtype=np.uint8)
    for number, (start, stop) in enumerate(records(data, source)):
        walk = _metadata(data, start, stop) if number == 0 else _node(data, start, stop)
        for role, span in walk:
            of[span.start : span.stop] = 1 if span.is_text else 2
            if span.is_text:
                texts.add(TraceText(role, _decoded(data[span.start : span.stop])))
    return TraceContent(frozenset(texts), np.frombuffer(data, dtype=np.uint8), of)


def _metadata(data: bytes, start: int, stop: int) -> Iterator[tuple[str, _Span]]:
    for field, kind, span in _fields(data, start, stop):
        if field == _METADATA_ATTRIBUTE and kind == _BYTES:
            yield from _attribute(data, *span)
        else:
            yield from _leaf(data, kind, *span)


def _node(data: bytes, start: int, stop: int) -> Iterator[tuple[str, _Span]]:
    for field, kind, span in _fields(data, start, stop):
        if kind == _BYTES and field == _NODE_ATTRIBUTE:
            yield from _attribute(data, *span)
        elif kind == _BYTES and field == _NODE_NAME:
            yield "node", _Span(*span, is_text=True)
        elif kind == _BYTES and field in _PACKED:
            yield "number", _Span(*span, is_text=False)
        else:
            yield from _leaf(data, kind, *span)


def _attribute(data: bytes, start: int, stop: int) -> Iterator[tuple[str, _Span]]:
    for field, kind, span in _fields(data, start, stop):
        if field == _ATTRIBUTE_NAME and kind == _BYTES:
            yield "attribute", _Span(*span, is_text=True)
        else:
            yield from _leaf(data, kind, *span)


def _leaf(data: bytes, kind: int, start: int, stop: int) -> Iterator[tuple[str, _Span]]:
    """A number, or bytes: a text if they can be read as one."""
    is_text = kind == _BYTES and stop - start >= LEAST_TEXT and _reads(data[start:stop])
    yield "value" if is_text else "number", _Span(start, stop, is_text)


def _fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Number, wire type and span of the value of each field. What is no protobuf is one value."""
    at = start
    while at < stop:
        tag, at = _varint(data, at, stop)
        kind = tag & 7
        if kind == _VARINT:
            _, end = _varint(data, at, stop)
        elif kind == _BYTES:
            length, at = _varint(data, at, stop)
            end = at + length
        else:
            end = at + {_FIXED64: 8, _FIXED32: 4}.get(kind, stop)
        if end > stop:
            yield 0, _BYTES, (start, stop)
            return
        yield tag >> 3, kind, (at, end)
        at = end


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while at < stop:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return stop, stop + 1  # it does not end: the caller sees a value beyond the record


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _reads(data: bytes) -> bool:
    """Whether at least half of the bytes are printable ASCII, or all are printable UTF-8."""
    text = _decoded(data)
    if text.isprintable() and "\ufffd" not in text:
        return True
    return 2 * sum(32 <= b < 127 for b in data) >= len(data)


def _is_digit(values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return (values >= ord("0")) & (values <= ord("9"))
