"""Kinds of records, each decoded once, as rows of a table of numbers.

`places` says where in a record the values stand in which ranks of one class differ, so that the
file of another rank need not be decoded at all (see `references`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from flint.backends.chakra.reading.reader import Decoder, TraceNode
from flint.backends.chakra.reading.records import TAG_MODULUS, Record, examine
from flint.backends.chakra.schema import VALUE_FIELDS
from flint.ir.program import Int64s

#: Columns of a table of kinds. GROUP is a code of `GroupCodes`; X_AT counts bytes from the end of
#: a record to the value of X, X_WIDTH its bytes, 0 where it is not a plain number.
COLUMNS = (
    "type",
    "kind",
    "comm_bytes",
    "tag",
    "name",
    "group",
    "source",
    "target",
    "is_flagged",
    "group_at",
    "group_width",
    "source_at",
    "source_width",
    "target_at",
    "target_width",
)
TYPE, KIND, COMM_BYTES, TAG, NAME, GROUP, SOURCE, TARGET, IS_FLAGGED = range(9)
GROUP_AT, GROUP_WIDTH, SOURCE_AT, SOURCE_WIDTH, TARGET_AT, TARGET_WIDTH = range(9, 15)

#: Kinds that are kept; a trace in which every node is of its own kind has no use for more.
_MOST_KINDS = 1 << 16
#: Digits of a group's number that stand in its code.
_MOST_DIGITS = 9
#: A rank of more bytes than this is not patched.
_MOST_RANK_BYTES = 4
_GROUP_NUMBER = re.compile(r"[0-9]{1,9}")

GroupName = str | tuple[bool, ...]
#: Attribute name -> (bytes from the value to the end of the record, width).
Places = dict[str, tuple[int, int]]


class GroupCodes:
    """A group's name as one number, equal for equal names.

    Decimal names are their number and how many digits it has; all others are numbered below 0.
    """

    def __init__(self) -> None:
        self._others: list[GroupName] = []
        self._numbers: dict[GroupName, int] = {}

    def code(self, name: GroupName) -> int:
        """The code of `name`."""
        if isinstance(name, str) and _GROUP_NUMBER.fullmatch(name):
            return int(name) << 4 | len(name)
        number = self._numbers.setdefault(name, len(self._others))
        if number == len(self._others):
            self._others.append(name)
        return -1 - number

    def name(self, code: int) -> GroupName:
        """The name that has this code."""
        return self._others[-1 - code] if code < 0 else f"{code >> 4:0{code & 15}d}"


class KindTable:
    """Numbers kinds of records. `has_roofline` is for `examine`."""

    def __init__(self, groups: GroupCodes, has_roofline: bool | None) -> None:
        self.records: list[Record] = []
        self._groups = groups
        self._has_roofline = has_roofline
        self._decoder = Decoder()
        self._numbers: dict[bytes, int] = {}
        self._names: dict[str, int] = {}
        self._rows = np.zeros((1024, len(COLUMNS)), dtype=np.int64)

    @property
    def rows(self) -> Int64s:
        """One line per kind, COLUMNS across."""
        return self._rows[: len(self.records)]

    def shrink(self) -> None:
        """Forget all kinds if they are many. Numbers that were given out mean nothing any more."""
        if max(len(self.records), len(self._numbers)) > _MOST_KINDS:
            self.records.clear()
            self._numbers.clear()

    def number(self, left: bytes) -> int:
        """The kind of a record of which id, dependencies and times were taken out.

        -1 where it is written in an unusual way, so that what was taken out may be wrong.
        """
        known = self._numbers.get(left)
        if known is None:
            node = self._decoder.plain_node(left)
            known = self._numbers[left] = -1 if node is None else self._add(node, _places(left))
        return known

    def decode(self, record: bytes, source: str, offset: int) -> tuple[TraceNode, int]:
        """A whole record, and its kind, which is not looked up again.

        Raises FlintError FL603 for bytes that are no node.
        """
        node = self._decoder.node(record, source, offset)
        return node, self._add(node, {})

    def check_metadata(self, record: bytes, source: str) -> None:
        """Raise FlintError FL603 or FL604 if the first record is not GlobalMetadata."""
        self._decoder.metadata(record, source)

    def _add(self, node: TraceNode, places: Places) -> int:
        record = examine(node, self._has_roofline)
        number = len(self.records)
        if number == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        self.records.append(record)
        self._rows[number] = (
            int(record.type),
            record.kind,
            record.comm_bytes,
            record.tag % TAG_MODULUS,
            self._names.setdefault(record.name, len(self._names)),
            self._groups.code(record.group),
            record.source,
            record.target,
            int(bool(record.problems or record.remarks)),
            *places.get("pg_name", (0, 0)),
            *places.get("comm_src", (0, 0)),
            *places.get("comm_dst", (0, 0)),
        )
        return number


def _places(record: bytes) -> Places:
    """Where pg_name, comm_src and comm_dst stand, if once and as Flint writes them."""
    found: dict[str, list[tuple[int, int]]] = {}
    for field, start, stop in _fields(record, 0, len(record)):
        if field == 10:
            name, at, width = _place(record, start, stop)
            found.setdefault(name, []).append((len(record) - at, width))
    return {n: p[0] for n, p in found.items() if len(p) == 1 and p[0][1]}


def _place(record: bytes, start: int, stop: int) -> tuple[str, int, int]:
    """Name of an attribute, start and width of its value; width 0 where it is another's."""
    name, values = "", list[tuple[int, int, int]]()
    for field, at, end in _fields(record, start, stop):
        if field == 1:
            name = record[at:end].decode(errors="replace")
        else:
            values.append((field, at, end))
    if len(values) != 1:
        return name, 0, 0
    field, at, end = values[0]
    is_text = name == "pg_name" and field == VALUE_FIELDS["string_val"]
    is_rank = name in ("comm_src", "comm_dst") and field == VALUE_FIELDS["int32_val"]
    if is_text and 0 < end - at <= _MOST_DIGITS and record[at:end].isdigit():
        return name, at, end - at
    return name, at, end - at if is_rank and end - at <= _MOST_RANK_BYTES else 0


#: Bytes of a value of these wire types.
_FIXED = {1: 8, 5: 4}


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and stop of each field of a message that is known to be whole."""
    while at < stop:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            end = _varint(data, at)[1]
        elif wire == 2:
            size, at = _varint(data, at)
            end = at + size
        else:
            end = at + _FIXED[wire]
        yield key >> 3, at, end
        at = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
