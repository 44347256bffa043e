"""Files that equal another but for ranks and groups are not parsed again.

A trace of another rank of the same class has its own comm_src, comm_dst and pg_name in the same
places. So the first file of a length is parsed record by record, and a later one is compared with
it as a whole: where only bytes of those three values differ, they alone are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.program import Int64s

#: Columns of a table of nodes. `id` is the 64-bit pattern, signed; `name` is that of a message.
COLUMNS = (
    "kind",
    "comm_bytes",
    "source",
    "target",
    "tag",
    "type",
    "id",
    "group",
    "shape",
    "has_problem",
    "name",
)
(KIND, COMM_BYTES, SOURCE, TARGET, TAG, TYPE, ID, GROUP, SHAPE, HAS_PROBLEM, NAME) = range(
    len(COLUMNS)
)


#: Files of one length that are kept to compare with.
MAX_REFERENCES = 8

#: Node.attr comm_src or comm_dst as a varint int32_val, and pg_name as a string_val of digits.
_RANK_FIELD = re.compile(rb"R.\n\x08comm_(src|dst)8([\x80-\xff]{0,4}[\x00-\x7f])", re.DOTALL)
_GROUP_FIELD = re.compile(rb"R.\n\x07pg_name\xea\x01.([0-9]{1,9})", re.DOTALL)


class Loaded(NamedTuple):
    """One file: `numbers` of its records in the table, and their columns for this rank."""

    numbers: Int64s
    columns: Int64s
    metadata: dict[str, Any]


#: (places of the nodes in the file, column, value of each: numbers, or text for GROUP)
FieldValues = tuple[Int64s, int, NDArray[Any]]


class _Fields(NamedTuple):
    """Values of one column and one width: `positions` (count, width) are their bytes."""

    column: int
    nodes: Int64s
    positions: Int64s


@dataclass(frozen=True, eq=False)
class Reference:
    """A parsed file, and which of its bytes may differ in a file of the same structure."""

    loaded: Loaded
    content: NDArray[np.uint8]
    is_free: NDArray[np.bool_]
    fields: tuple[_Fields, ...]

    def values_in(self, content: NDArray[np.uint8]) -> list[FieldValues] | None:
        """What stands in the free places of another file; None if it differs elsewhere."""
        if ((content != self.content) & ~self.is_free).any():
            return None
        values: list[FieldValues] = []
        for column, nodes, positions in self.fields:
            digits = content[positions]
            if column == GROUP:
                if ((digits < ord("0")) | (digits > ord("9"))).any():
                    return None
                width = positions.shape[1]
                text = np.ascontiguousarray(digits).view(f"S{width}").reshape(-1).astype(str)
                values.append((nodes, column, text))
                continue
            if not (digits[:, -1] < 0x80).all() or not (digits[:, :-1] >= 0x80).all():
                return None
            shifts = 7 * np.arange(positions.shape[1])
            values.append((nodes, column, ((digits & 0x7F).astype(np.int64) << shifts).sum(axis=1)))
        return values


def make_reference(
    data: bytes, spans: Int64s, loaded: Loaded, groups: Mapping[str | tuple[bool, ...], int]
) -> Reference:
    """Find the places in `data` whose value is known to be a rank or a group.

    `spans` are the records, metadata first; `groups` numbers the names in column GROUP. A place counts only if the record was decoded to that
    very value and has no second place like it.
    """
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for match in _RANK_FIELD.finditer(data):
        column = SOURCE if match[1] == b"src" else TARGET
        value = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(match[2]))
        _note(found, spans, loaded, (column, *match.span(2)), value)
    for match in _GROUP_FIELD.finditer(data):
        number = groups.get(match[1].decode(), -1)
        _note(found, spans, loaded, (GROUP, *match.span(1)), number)
    by_width: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (node, column), places in found.items():
        if len(places) == 1:
            start, stop = places[0]
            by_width.setdefault((column, stop - start), []).append((node, start))
    content = np.frombuffer(data, dtype=np.uint8)
    is_free = np.zeros(len(data), dtype=np.bool_)
    fields = []
    for (column, width), places in by_width.items():
        table = np.array(places, dtype=np.int64)
        positions = table[:, 1:] + np.arange(width)
        is_free[positions] = True
        fields.append(_Fields(column, table[:, 0], positions))
    return Reference(loaded, content, is_free, tuple(fields))


def _note(
    found: dict[tuple[int, int], list[tuple[int, int]]],
    spans: Int64s,
    loaded: Loaded,
    place: tuple[int, int, int],
    value: int,
) -> None:
    column, start, stop = place
    node = int(np.searchsorted(spans[:, 1], start, side="right")) - 1
    if node >= 0 and loaded.columns[node, column] == value:
        found.setdefault((node, column), []).append((start, stop))
