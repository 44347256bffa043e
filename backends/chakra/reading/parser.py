"""UInt8s of a trace -> its class, and the groups and ranks that stand in it."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.checking.findings import MAX_PER_CODE, Collected
from flint.backends.chakra.reading import kinds
from flint.backends.chakra.reading.kinds import GroupCodes, KindTable, Record, Remark
from flint.backends.chakra.reading.reader import records
from flint.backends.chakra.reading.trace_class import (
    Structure,
    TraceClass,
    TraceNodes,
    build_structure,
)
from flint.backends.chakra.schema import NodeType
from flint.ir.arrays import UInt8s, UInt64s
from flint.ir.program import Int64s

# Ids and dependencies of many records at once, and the bytes of each that are left.
#
# Serializers write the fields of a message in ascending order, so one walk over the fields reads all
# records side by side: an array of places goes from field to field, and each step is numpy's. What is
# left of a record (name and type, inputs and attributes) is the same for many, and decoded once.

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


# Files that equal another except for ranks and groups are not parsed again.
#
# A trace of another rank of the same class has its own comm_src, comm_dst and pg_name in the same
# places. So the first file of a length is parsed, and a later one is compared with it as a whole:
# where only bytes of those three values differ, they alone are read.

#: UInt8s of files that are kept to compare with. A larger file has no reference.
_MOST_BYTES = 256 << 20
#: Files of one length that are kept.
_MOST_OF_A_LENGTH = 8


class Field(NamedTuple):
    """Where values of one width stand in a file: `value` among its values, `start` in its bytes."""

    value: Int64s
    start: Int64s
    width: int
    is_text: bool

    @property
    def positions(self) -> Int64s:
        """(count, width) places of their bytes."""
        return self.start[:, None] + np.arange(self.width)

    def read(self, content: NDArray[np.uint8]) -> Int64s | None:
        """The values in another file; None if something else stands there."""
        digits = content[self.positions]
        if self.is_text:
            if ((digits < ord("0")) | (digits > ord("9"))).any():
                return None
            powers = 10 ** np.arange(self.width - 1, -1, -1)
            numbers: Int64s = (digits.astype(np.int64) - ord("0")) @ powers
            return numbers << 4 | self.width
        if (digits[:, -1] >= 0x80).any() or (digits[:, :-1] < 0x80).any():
            return None
        shifts = 7 * np.arange(self.width)
        ranks: Int64s = ((digits & 0x7F).astype(np.int64) << shifts).sum(axis=1)
        return ranks


@dataclass(frozen=True, eq=False)
class Reference:
    """A parsed file, its values, and where in its bytes they stand.

    `computing` are the records of computations, (start, stop) each.
    """

    trace_class: TraceClass
    content: NDArray[np.uint8]
    values: Int64s
    fields: tuple[Field, ...]
    computing: Int64s

    @cached_property
    def times(self) -> bytes:
        """Equal where all computations are: classes do not say what these take."""
        hashed = hashlib.sha256()
        for start, stop in self.computing.tolist():
            hashed.update(self.content[start:stop].data)
        return hashed.digest()

    @cached_property
    def _free(self) -> Int64s:
        """Places whose bytes may differ, ascending, and one beyond all."""
        places = [f.positions.reshape(-1) for f in self.fields]
        return np.sort(np.concatenate([*places, [len(self.content)]]))

    def values_in(self, content: NDArray[np.uint8]) -> Int64s | None:
        """The values of another file of this length; None if it differs elsewhere."""
        differs = np.flatnonzero(content != self.content)
        if (self._free[np.searchsorted(self._free, differs)] != differs).any():
            return None
        values = self.values.copy()
        for one in self.fields:
            found = one.read(content)
            if found is None:
                return None
            values[one.value] = found
        return values


class References:
    """The files that later ones are compared with, the last first."""

    def __init__(self) -> None:
        self._by_length: dict[int, deque[Reference]] = {}
        self._bytes = 0

    def find(self, content: NDArray[np.uint8]) -> tuple[Reference, Int64s] | None:
        """The file that was kept and is like this one, and the values of this."""
        for reference in self._by_length.get(len(content), ()):
            values = reference.values_in(content)
            if values is not None:
                return reference, values
        return None

    def keep(self, reference: Reference) -> None:
        """Compare later files with this one, and with no others if they would take the memory."""
        size = len(reference.content)
        if size > _MOST_BYTES:
            return
        if self._bytes + size > _MOST_BYTES:
            self._by_length.clear()
            self._bytes = 0
        same = self._by_length.setdefault(size, deque(maxlen=_MOST_OF_A_LENGTH))
        self._bytes += 0 if len(same) == _MOST_OF_A_LENGTH else size
        same.appendleft(reference)


#: Records that are read side by side: what a step needs stays in the processor's cache.
_STEP = 1 << 14
_SPAN: Any = np.dtype((np.int64, 2))
#: Columns of `kinds` that a line of communication has after its position.
_OF_COMMUNICATION = (kinds.TYPE, kinds.KIND, kinds.COMM_BYTES, kinds.TAG, kinds.NAME)


class TraceParser:
    """Finds the class of each file. `classes` are those found so far, in order."""

    def __init__(
        self, groups: GroupCodes, has_roofline: bool | None, has_memory: bool | None = None
    ) -> None:
        self.classes: list[TraceClass] = []
        self._by_digest: dict[bytes, TraceClass] = {}
        self._kinds = KindTable(groups, has_roofline, has_memory)
        self._references = References()

    def load(self, data: bytes, source: str) -> tuple[TraceClass, Int64s]:
        """Class of a file, and its values. Raises FlintError FL603 or FL604."""
        reference, values = self.compare(data, source)
        return reference.trace_class, values

    def compare(self, data: bytes, source: str) -> tuple[Reference, Int64s]:
        """A file that this one is like except its values (itself at least), and these."""
        content = np.frombuffer(data, dtype=np.uint8)
        return self._references.find(content) or self._parse(data, content, source)

    def _parse(self, data: bytes, content: UInt8s, source: str) -> tuple[Reference, Int64s]:
        spans: Int64s = np.fromiter(records(data, source), dtype=_SPAN)
        self._kinds.check_metadata(data[slice(*spans[0].tolist())], source)
        parts = _Communication(spans[1:])
        for start in range(1, len(spans), _STEP):
            self._kinds.shrink()
            self._read(data, content, spans[start : start + _STEP], parts, source)
        nodes, values, fields = parts.assemble()
        digest = nodes.digest()
        found = self._by_digest.get(digest)
        if found is None:
            found = self._by_digest[digest] = TraceClass(nodes)
            self.classes.append(found)
        reference = Reference(found, content, values, fields, parts.computing())
        self._references.keep(reference)
        return reference, values

    def _read(
        self, data: bytes, content: UInt8s, spans: Int64s, parts: _Communication, source: str
    ) -> None:
        heads = read_heads(content, spans)
        places = np.concatenate((heads.name, heads.rest), axis=1).tolist()
        plain = heads.is_plain.tolist()
        table = self._kinds
        ids = heads.ids
        kind = np.array(
            [
                table.number(data[a:b] + data[c:d]) if is_plain else -1
                for (a, b, c, d), is_plain in zip(places, plain, strict=True)
            ],
            dtype=np.int64,
        )
        is_odd = kind < 0
        parts.wait(heads.ctrl_owner, heads.ctrl_value, ~is_odd[heads.ctrl_owner])
        parts.wait(heads.data_owner, heads.data_value, ~is_odd[heads.data_owner])
        twice = _repeated(heads.data_owner, heads.data_value)
        twice = twice[~is_odd[twice]].tolist()
        for at in np.flatnonzero(is_odd).tolist():
            start, stop = spans[at].tolist()
            node, kind[at] = table.decode(data[start:stop], source, start)
            ids[at] = node.id
            named = np.array((*node.ctrl_deps, *node.data_deps), dtype=np.uint64)
            owner = np.full(len(named), at)
            parts.wait(owner, named, np.ones(len(named), dtype=np.bool_))
            if len(set(node.data_deps)) < len(node.data_deps):
                twice.append(at)
        parts.add(ids, table, kind, twice)


@dataclass
class _Communication:
    """A file while it is read. `spans` are its nodes' records."""

    spans: Int64s
    count: int = 0
    ids: list[UInt64s] = field(default_factory=list)
    owners: list[Int64s] = field(default_factory=list)
    awaited: list[UInt64s] = field(default_factory=list)
    comp_nodes: list[Int64s] = field(default_factory=list)
    comm_nodes: list[Int64s] = field(default_factory=list)
    comm_rows: list[Int64s] = field(default_factory=list)
    problems: Collected = field(default_factory=Collected)
    remarks: Counter[Remark] = field(default_factory=Counter)
    first_of: dict[Remark, tuple[int, str]] = field(default_factory=dict)

    def wait(self, owner: Int64s, awaited: UInt64s, which: NDArray[np.bool_]) -> None:
        """Note for whom the nodes that are read next wait."""
        self.owners.append(owner[which] + self.count)
        self.awaited.append(awaited[which])

    def add(self, ids: UInt64s, table: KindTable, kind: Int64s, twice: list[int]) -> None:
        """Note the nodes that were read, and those that name a dependency twice."""
        rows = table.rows[kind]
        flagged = np.flatnonzero(rows[:, kinds.IS_FLAGGED])
        flagged = flagged[np.argsort(kind[flagged], kind="stable")]
        changes = np.flatnonzero(np.diff(kind[flagged])) + 1
        for same in np.split(flagged, changes) if len(flagged) else ():
            self._examine(ids[same], table.records[kind[same[0]]])
        for at in twice:
            node = int(ids[at])
            label = table.records[kind[at]].label or f"node {node}"
            sentence = f"{label} names a dependency twice"
            self.problems.add("repeated-dependency", node, sentence)
        talks = np.isin(rows[:, kinds.TYPE], _COMMUNICATION)
        self.comp_nodes.append(np.flatnonzero(~talks) + self.count)
        self.comm_nodes.append(np.flatnonzero(talks) + self.count)
        self.comm_rows.append(rows[talks])
        self.ids.append(ids)
        self.count += len(ids)

    def _examine(self, ids: UInt64s, record: Record) -> None:
        """Note what is wrong with a kind, for all nodes of it."""
        ordered = np.sort(ids).tolist()
        labels = [record.label or f"node {n}" for n in ordered[:MAX_PER_CODE]]
        for code, rest in record.problems:
            for node, label in zip(ordered, labels, strict=False):
                self.problems.add(code, node, f"{label} {rest}")
            self.problems.counts[code] += len(ordered) - len(labels)
        first = (ordered[0], labels[0])
        for remark in record.remarks:
            self.remarks[remark] += len(ordered)
            self.first_of[remark] = min(self.first_of.get(remark, first), first)

    def computing(self) -> Int64s:
        """(start, stop) of the records of nodes that do not communicate."""
        spans: Int64s = self.spans[_join(self.comp_nodes, np.int64)]
        return spans

    def assemble(self) -> tuple[TraceNodes, Int64s, tuple[Field, ...]]:
        """The nodes by id, the values that stand in them, and where."""
        ids = _join(self.ids, np.uint64)
        owners, awaited = _join(self.owners, np.int64), _join(self.awaited, np.uint64)
        structure = build_structure(ids, owners, awaited, self.problems)
        nodes, rows = self._communication(structure)
        comm = np.column_stack((nodes[:, 0], rows[:, _OF_COMMUNICATION]))
        shared = TraceNodes(structure, comm, self.problems, self.remarks, self.first_of)
        return shared, *_values(rows, self.spans[nodes[:, 1], 1])

    def _communication(self, structure: Structure) -> tuple[Int64s, Int64s]:
        """(position, place in the file) and row of each node that communicates, by id."""
        places = _join(self.comm_nodes, np.int64)
        rows = np.concatenate(self.comm_rows) if self.comm_rows else _NO_ROWS
        position = np.empty(len(structure), dtype=np.int64)
        position[structure.order] = np.arange(len(structure))
        order = np.argsort(position[places])
        return np.stack((position[places], places), axis=1)[order], rows[order]


_COMMUNICATION = np.array([NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV])
_NO_ROWS = np.zeros((0, len(kinds.COLUMNS)), dtype=np.int64)


def _join(parts: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=kind)


def _repeated(owner: Int64s, value: UInt64s) -> Int64s:
    """Owners, each once, that have one value twice."""
    order = np.lexsort((value, owner))
    owner, value = owner[order], value[order]
    return np.unique(owner[1:][(owner[1:] == owner[:-1]) & (value[1:] == value[:-1])])


def _values(rows: Int64s, stops: Int64s) -> tuple[Int64s, tuple[Field, ...]]:
    """What a TraceClass keeps of a file, and where in its bytes it stands."""
    is_group = rows[:, kinds.TYPE] == NodeType.COMM_COLL
    is_send = rows[~is_group, kinds.TYPE] == NodeType.COMM_SEND
    ends = rows[~is_group]
    source = ends[:, (kinds.SOURCE, kinds.SOURCE_AT, kinds.SOURCE_WIDTH)]
    target = ends[:, (kinds.TARGET, kinds.TARGET_AT, kinds.TARGET_WIDTH)]
    own = np.where(is_send[:, None], source, target)
    other = np.where(is_send[:, None], target, source)
    group = rows[is_group][:, (kinds.GROUP, kinds.GROUP_AT, kinds.GROUP_WIDTH)]
    found = np.concatenate((group, own, other))
    starts = np.concatenate((stops[is_group], stops[~is_group], stops[~is_group])) - found[:, 1]
    is_text = np.arange(len(found)) < len(group)
    fields = []
    for text in (True, False):
        for width in np.unique(found[is_text == text, 2]).tolist():
            index = np.flatnonzero((is_text == text) & (found[:, 2] == width))
            if width:
                fields.append(Field(index, starts[index], width, text))
    return found[:, 0], tuple(fields)
