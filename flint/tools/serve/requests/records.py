"""The records of a file of CSV, JSON lines or one JSON array, read as a stream."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from flint.errors import FlintError, Malformed
from flint.io.files import open_regular

#: No line and no element of an array is longer: a file without line breaks is no log.
_MOST_CHARACTERS = 1 << 24


class LogRecord(NamedTuple):
    """One record: its line (of an array: its number), and its values by the names of columns."""

    line: int
    values: Mapping[str, object]


def records(path: Path) -> Iterator[LogRecord]:
    """Records of `path`, one after another.

    Raises FlintError FL884 for a file that cannot be opened or is empty, FL886 for one that breaks.
    """
    line = [0]
    try:
        with open_regular(path) as file:
            for record in _records(file, path):
                line[0] = record.line
                yield record
    except OSError as error:
        raise FlintError("FL884", f"cannot read {path}: {error.strerror or error}") from error
    except RecursionError as error:
        raise bad_row(path, line[0] + 1, "it is nested too deeply") from error
    except (Malformed, csv.Error, ValueError) as error:  # numbers of thousands of digits, too
        raise bad_row(path, line[0] + 1, str(error)) from error


def bad_row(path: Path | str, line: int, why: str) -> FlintError:
    """The error FL886 of a row that cannot be used."""
    return FlintError("FL886", f"a row cannot be read: {why}", place=f"{path}:{line}")


def _records(file: BinaryIO, path: Path) -> Iterator[LogRecord]:
    text = io.TextIOWrapper(file, "utf-8-sig")
    start = text.read(1)
    while start.isspace():
        start = text.read(1)
    if start == "[":
        return _array(text)
    if not start:
        raise FlintError("FL884", f"{path} is empty")
    lines = _lines(text, start)
    return _json_lines(lines) if start == "{" else _table(lines)


def _lines(text: io.TextIOWrapper, start: str) -> Iterator[str]:
    line = start + text.readline(_MOST_CHARACTERS)
    while line:
        if len(line) >= _MOST_CHARACTERS:
            raise Malformed(f"a line has more than {_MOST_CHARACTERS:,} characters")
        yield line
        line = text.readline(_MOST_CHARACTERS)


def _table(lines: Iterator[str]) -> Iterator[LogRecord]:
    reader = csv.reader(lines)
    names = [name.strip() for name in next(reader)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Malformed(f"two columns are called '{twice[:40]}'")
    for cells in reader:
        if len(cells) == len(names):
            yield LogRecord(reader.line_num, dict(zip(names, cells, strict=True)))
        elif any(cells):
            raise Malformed(f"it has {len(cells)} cells, and the header {len(names)}")


def _json_lines(lines: Iterator[str]) -> Iterator[LogRecord]:
    for at, line in enumerate(lines, 1):
        if line.strip():
            yield LogRecord(at, _object(json.loads(line)))


def _array(text: io.TextIOWrapper) -> Iterator[LogRecord]:
    """Elements of an array whose `[` is read, each decoded as soon as it is whole."""
    decode = json.JSONDecoder().raw_decode
    rest, count = "", 0
    while piece := text.read(1 << 20):
        rest += piece
        at = 0
        while True:
            while at < len(rest) and rest[at] in ", \t\r\n":
                at += 1
            if at == len(rest) or rest[at] == "]":
                break
            try:
                value, at = decode(rest, at)
            except json.JSONDecodeError:
                break  # it goes on in the next piece
            count += 1
            yield LogRecord(count, _object(value))
        rest = rest[at:]
        if len(rest) > _MOST_CHARACTERS:
            raise Malformed(f"an element has more than {_MOST_CHARACTERS:,} characters")
    if rest.strip() != "]":
        raise Malformed("the array does not end, or an element is no JSON")


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise Malformed("it is no JSON object")
    return value
