"""Requests of a log: Azure's, BurstGPT's, Mooncake's, Vidur's, ShareGPT's, and plain tables."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from flint.errors import FlintError, Malformed
from flint.text import plural
from flint.tools.serve.requests.formats import LogColumns, columns_of
from flint.tools.serve.requests.records import LogRecord, bad_row, records
from flint.tools.serve.requests.table import Ints, Prefixes, Requests

#: More tokens of one request are a mistake.
_MOST_TOKENS = 2**31
#: Characters of a token where a text has no count of tokens: OpenAI's rule of thumb for English,
#: help.openai.com "What are tokens and how to count them?".
CHARACTERS_A_TOKEN = 4
#: Seconds since 1970 reach this in the year 5138: it is a time in milliseconds or nanoseconds.
_NO_SECONDS = 1e11
_Hashes = list[int] | None
_AT_ONCE = "the file says no times of arrival: all requests arrive at once"


def read_log(
    path: Path, *, n: int | None = None, speed: float = 1.0, strict: bool = False
) -> Requests:
    """The requests of a log, sorted by arrival, the first at 0 s.

    `n` takes the first rows only, and `speed` 2 lets them come twice as fast. Rows without output
    tokens (requests that failed) or input tokens are left out and counted in a note. Raises FlintError FL884 for an
    unknown format, FL885 for rows out of order if `strict`, FL886 for a row that is no request, FL887
    if none is left.
    """
    rows = _Rows(path)
    for record in records(path):
        rows.add(record)
        if n is not None and len(rows.inputs) >= n:
            break
    if not rows.inputs:
        raise FlintError(
            "FL887",
            f"{path} has no request with input and output tokens",
            help="; ".join(rows.notes()) or None,
        )
    return _sorted(rows, speed, strict)


@dataclass
class _Rows:
    """The rows of a log as they are read."""

    path: Path
    columns: LogColumns | None = None
    names: set[str] = field(default_factory=set)
    arrivals: array[float] = field(default_factory=lambda: array("d"))
    inputs: array[int] = field(default_factory=lambda: array("q"))
    outputs: array[int] = field(default_factory=lambda: array("q"))
    priorities: array[int] = field(default_factory=lambda: array("q"))
    hashes: dict[int, list[int]] = field(default_factory=dict)  #: of rows that have some
    left_out: Counter[str] = field(default_factory=Counter)
    said: dict[str, None] = field(default_factory=dict)

    def add(self, record: LogRecord) -> None:
        """Take a record, or leave it out with a reason."""
        try:
            if "conversations" in record.values:
                self._add_conversation(record.values["conversations"])
            else:
                self._add_row(record.values)
        except Malformed as error:
            raise bad_row(self.path, record.line, str(error)) from error

    def _add_row(self, values: Mapping[str, object]) -> None:
        if values.keys() != self.names:
            self._see([*values])
        columns = self.columns
        assert columns is not None, "its names were seen"
        arrival_s = 0.0
        if columns.arrival:
            arrival_s = _seconds(values.get(columns.arrival), columns.unit_s, columns.arrival)
        else:
            self.said[_AT_ONCE] = None
        tokens = _tokens(values.get(columns.input), columns.input)
        priority = _whole(values.get(columns.priority), "priority") if columns.priority else 0
        hashes = values.get(columns.hashes, []) if columns.hashes else []
        output = _tokens(values.get(columns.output), columns.output)
        full = tokens // columns.format.block_tokens
        self._take(arrival_s, tokens, output, priority, _hashes(hashes)[:full])

    def _see(self, names: list[str]) -> None:
        """Names of a row that the row before does not have: those of JSON lines may come and go."""
        new, old = columns_of(names, str(self.path)), self.columns
        if old and (new.format, new.arrival) != (old.format, old.arrival):
            raise Malformed("other fields than in the rows above say what it is and when it came")
        self.names, self.columns = set(names), new

    def _add_conversation(self, turns: object) -> None:
        """The first two turns are prompt and answer, as `vllm bench serve` takes them."""
        self.said[_AT_ONCE] = None
        if not isinstance(turns, list):
            raise Malformed("conversations is no list")
        if len(turns) < 2:
            self.left_out["with fewer than two turns"] += 1
        else:
            self._take(0.0, self._turn(turns[0]), self._turn(turns[1]))

    def _turn(self, turn: object) -> int:
        given = turn if isinstance(turn, dict) else {}
        for name in ("tokens", "num_tokens"):
            if name in given:
                return _tokens(given[name], name)
        text = given.get("value", given.get("content"))
        if not isinstance(text, str):
            raise Malformed("a turn has neither tokens nor a value")
        self.said[f"tokens of texts are characters / {CHARACTERS_A_TOKEN}: an assumption"] = None
        return math.ceil(len(text) / CHARACTERS_A_TOKEN)

    def _take(
        self, arrival_s: float, inputs: int, outputs: int, priority: int = 0, hashes: _Hashes = None
    ) -> None:
        if not inputs or not outputs:
            self.left_out[f"without {'output' if inputs else 'input'} tokens"] += 1
            return
        if hashes:
            self.hashes[len(self.inputs)] = hashes
        self.arrivals.append(arrival_s)
        self.inputs.append(inputs)
        self.outputs.append(outputs)
        self.priorities.append(priority)

    def notes(self) -> tuple[str, ...]:
        """What was assumed and left out."""
        left = (f"left out: {plural(n, 'request')} {why}" for why, n in self.left_out.items())
        return (*self.said, *left)


def _sorted(rows: _Rows, speed: float, strict: bool) -> Requests:
    arrival_s = np.array(rows.arrivals)
    notes = rows.notes()
    order = np.argsort(arrival_s, kind="stable")
    moved = int(np.count_nonzero(arrival_s[1:] < arrival_s[:-1]))
    if moved and strict:
        first = int(np.flatnonzero(arrival_s[1:] < arrival_s[:-1])[0]) + 2
        raise FlintError(
            "FL885",
            f"{rows.path}: request {first} arrives before the one above it",
            help="sort the file, or let Flint sort it: leave out strict",
        )
    if moved:
        notes += (f"sorted by arrival: {moved:,} rows stood before an earlier one",)
    return Requests(
        str(rows.path) if speed == 1.0 else f"{rows.path}, {speed:g} x as fast",
        (arrival_s[order] - arrival_s[order[0]]) / speed,
        np.array(rows.inputs, np.int64)[order],
        np.array(rows.outputs, np.int64)[order],
        np.array(rows.priorities, np.int64)[order],
        prefixes=_prefixes(rows, order),
        notes=notes,
    )


def _prefixes(rows: _Rows, order: Ints) -> Prefixes | None:
    if rows.columns is None or not rows.hashes:
        return None
    lists = [rows.hashes.get(row, []) for row in order.tolist()]
    hashes = np.array([h for one in lists for h in one], np.int64)
    return Prefixes(np.cumsum([0, *map(len, lists)]), hashes, rows.columns.format.block_tokens)


def _hashes(value: object) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(h, int) for h in value):
        raise Malformed("hash_ids is no list of whole numbers")
    return [h & (2**63 - 1) for h in value]


def _tokens(value: object, name: str) -> int:
    count = _whole(value, name)
    if not 0 <= count < _MOST_TOKENS:
        raise Malformed(f"{name} is {count}")
    return count


def _whole(value: object, name: str) -> int:
    found = _number(value, name)
    if found != int(found) or abs(found) >= 1 << 53:
        raise Malformed(f"{name} is {found:g}, not a whole number")
    return int(found)


def _number(value: object, name: str) -> float:
    """A finite number, or a text of one."""
    found = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            found = float(value)
    if not math.isfinite(found):
        raise Malformed(f"{name} is {str(value)[:40]!r}, not a number")
    return found


def _seconds(value: object, unit_s: float | None, name: str) -> float:
    """A time of arrival in seconds; a date counts in UTC where it says no zone."""
    if unit_s is not None or "-" not in str(value)[1:]:
        number = _number(value, name)
        if unit_s is None and number > _NO_SECONDS:
            raise Malformed(f"{name} is no time in seconds: name it arrival_ms or arrival_time_ns")
        return number * (unit_s or 1.0)
    try:
        found = datetime.fromisoformat(str(value).strip())
    except ValueError:
        return _number(value, name)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
