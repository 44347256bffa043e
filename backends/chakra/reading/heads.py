"""Ids and dependencies of many records at once, and the bytes of each that are left.

Serializers write the fields of a message in ascending order, so one walk over the fields reads all
records side by side: an array of places goes from field to field, and each step is numpy's. What is
left of a record (name and type, inputs and attributes) is the same for many, and decoded once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import UInt8s, UInt64s
from flint.ir.program import Int64s

# The first byte of each field of Node: its number << 3 | wire type (0 number, 2 bytes).
_ID, _NAME, _TYPE = 0x08, 0x12, 0x18
_CTRL_DEPS, _DATA_DEPS = 0x22, 0x2A
_START, _DURATION = 0x30, 0x38
#: A varint of 64 bits has at most this many bytes.
_LONGEST = 10


@dataclass(frozen=True, eq=False)
class Heads:
    """Records in columns. `owner` and `value` of a dependency: who waits, for which id.

    `name` and `rest` are the spans (count, 2) around id, dependencies and times. Where `is_plain`
    is false a record is written in another way, and the other columns say nothing of it.
    """

    ids: UInt64s
    data_owner: Int64s
    data_value: UInt64s
    ctrl_owner: Int64s
    ctrl_value: UInt64s
    name: Int64s
    rest: Int64s
    is_plain: NDArray[np.bool_]


def read_heads(content: UInt8s, spans: Int64s) -> Heads:
    """The heads of the records at `spans`, (count, 2) places in `content`."""
    walk = _FieldWalk(content, spans)
    ids = walk.numbers(_ID)
    name_start = walk.at.copy()
    walk.skip_bytes(_NAME)
    walk.numbers(_TYPE)
    name = np.stack((name_start, walk.at), axis=1)
    ctrl_owner, ctrl_value = walk.packed(_CTRL_DEPS)
    data_owner, data_value = walk.packed(_DATA_DEPS)
    walk.numbers(_START)
    walk.numbers(_DURATION)
    plain = walk.is_plain
    in_ctrl, in_data = plain[ctrl_owner], plain[data_owner]
    return Heads(
        ids=ids,
        data_owner=data_owner[in_data],
        data_value=data_value[in_data],
        ctrl_owner=ctrl_owner[in_ctrl],
        ctrl_value=ctrl_value[in_ctrl],
        name=name,
        rest=np.stack((walk.at, spans[:, 1]), axis=1),
        is_plain=plain,
    )


class _FieldWalk:
    """One place in each record. A record whose bytes make no sense is no longer plain."""

    def __init__(self, content: UInt8s, spans: Int64s) -> None:
        self.content = content
        self.at = spans[:, 0].copy()
        self.stop = spans[:, 1]
        self.is_plain = np.ones(len(spans), dtype=np.bool_)

    def numbers(self, field: int) -> UInt64s:
        """Values of a number, 0 where the next field is another; moves past it."""
        result = np.zeros(len(self.at), dtype=np.uint64)
        which, values = self._varints(field)
        result[which] = values
        return result

    def skip_bytes(self, field: int) -> None:
        """Move past a field of bytes."""
        self._spans(field)

    def packed(self, field: int) -> tuple[Int64s, UInt64s]:
        """Owners and values of a packed list of numbers; moves past it."""
        which, start = self._spans(field)
        stop = self.at[which]
        ends_well = (stop == start) | (self.content[np.maximum(stop - 1, 0)] < 0x80)
        self.is_plain[which[~ends_well]] = False
        which, start, stop = which[ends_well], start[ends_well], stop[ends_well]
        owner, values, is_long = _unpack(self.content, start, stop - start)
        self.is_plain[which[owner[is_long]]] = False
        return which[owner], values

    def _having(self, field: int) -> Int64s:
        inside = np.flatnonzero(self.is_plain & (self.at < self.stop))
        found: Int64s = inside[self.content[self.at[inside]] == field]
        return found

    def _varints(self, field: int) -> tuple[Int64s, UInt64s]:
        which = self._having(field)
        values, after = _varints(self.content, self.at[which] + 1, self.stop[which])
        whole = after >= 0
        self.is_plain[which[~whole]] = False
        which = which[whole]
        self.at[which] = after[whole]
        return which, values[whole]

    def _spans(self, field: int) -> tuple[Int64s, Int64s]:
        """Records with the field, and where its bytes start; they end where the walk now is."""
        which, sizes = self._varints(field)
        start = self.at[which].copy()
        fits = sizes <= (self.stop[which] - start).astype(np.uint64)
        self.is_plain[which[~fits]] = False
        which, start = which[fits], start[fits]
        self.at[which] = start + sizes[fits].astype(np.int64)
        return which, start


def _varints(content: UInt8s, at: Int64s, stop: Int64s) -> tuple[UInt64s, Int64s]:
    """The numbers at `at`, and the places after them: -1 where one does not end before `stop`."""
    values = np.zeros(len(at), dtype=np.uint64)
    after = np.full(len(at), -1, dtype=np.int64)
    going = np.arange(len(at))
    for i in range(_LONGEST):
        going = going[at[going] + i < stop[going]]
        byte = content[at[going] + i]
        values[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * i)
        ends = byte < 0x80
        after[going[ends]] = at[going[ends]] + i + 1
        going = going[~ends]
        if not len(going):
            break
    return values, after


def _unpack(
    content: UInt8s, start: Int64s, size: Int64s
) -> tuple[Int64s, UInt64s, NDArray[np.bool_]]:
    """Numbers of packed lists, each of which ends with one: (list, value, is too long)."""
    before = np.cumsum(size) - size
    byte = content[np.repeat(start - before, size) + np.arange(int(size.sum()))]
    ends = np.flatnonzero(byte < 0x80)
    first = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1] + 1))[: len(ends)]
    if not len(ends):
        return ends, np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.bool_)
    lengths = ends + 1 - first
    shift = np.minimum(np.arange(len(byte)) - np.repeat(first, lengths), _LONGEST - 1)
    bits = (byte & 0x7F).astype(np.uint64) << (7 * shift).astype(np.uint64)
    owner = np.repeat(np.arange(len(size)), size)[ends]
    return owner, np.bitwise_or.reduceat(bits, first), lengths > _LONGEST
