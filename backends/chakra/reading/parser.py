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
from flint.backends.chakra.reading.heads import read_heads
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

    def __init__(self, groups: GroupCodes, has_roofline: bool | None) -> None:
        self.classes: list[TraceClass] = []
        self._by_digest: dict[bytes, TraceClass] = {}
        self._kinds = KindTable(groups, has_roofline)
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
