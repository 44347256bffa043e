"""Distinct records of many traces, each decoded and examined once.

Ranks of one class share nearly all their records, so a set of traces is one table of records and,
for each rank, an array of numbers into it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from flint.backends.chakra.reader import Decoder, TraceNode, records
from flint.backends.chakra.references import (
    COLUMNS,
    GROUP,
    MAX_REFERENCES,
    FieldValues,
    Loaded,
    Reference,
    make_reference,
)
from flint.backends.chakra.schema import SIMULATED_COLLECTIVES, CommType, NodeType
from flint.program import Int64s

#: How feeders read an attribute; another kind reads as 0 or throws. chakra.md 1.3
ATTRIBUTE_KINDS: dict[str, str] = {
    "is_cpu_op": "bool_val",
    "num_ops": "int64_val",
    "tensor_size": "uint64_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    "comm_priority": "int32_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "pg_name": "string_val",
    "involved_dim": "bool_list",
}
_REQUIRED = {
    NodeType.COMP: ("num_ops", "tensor_size"),
    NodeType.COMM_COLL: ("comm_type", "comm_size"),
    NodeType.COMM_SEND: ("comm_size", "comm_tag", "comm_dst"),
    NodeType.COMM_RECV: ("comm_size", "comm_tag", "comm_src"),
}
#: ASTRA-sim matches messages by their tag modulo this.
TAG_MODULUS = 500_000_000


class Record(NamedTuple):
    """What a check needs of one node. `group` is pg_name or a tuple of involved dimensions.

    `name` is that of a send or receive, "" of other nodes.
    """

    id: int
    type: NodeType
    deps: tuple[int, ...]
    kind: int
    comm_bytes: int
    group: str | tuple[bool, ...]
    source: int
    target: int
    tag: int
    problems: tuple[tuple[str, str], ...]
    name: str = ""


class RecordTable:
    """Interns records; `groups` and `shapes` number what records name and how they depend."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.groups: dict[str | tuple[bool, ...], int] = {}
        self.shapes: dict[Hashable, int] = {}
        self._rows: list[tuple[int, ...]] = []
        self._number: dict[bytes, int] = {}
        self._names: dict[str, int] = {}
        self._decoder = Decoder()
        self._references: dict[int, list[Reference]] = {}
        self._columns: Int64s = np.zeros((0, len(COLUMNS)), dtype=np.int64)

    def columns(self) -> Int64s:
        """One line per record, COLUMNS across."""
        if len(self._columns) < len(self._rows):
            added = np.array(self._rows[len(self._columns) :], dtype=np.int64)
            self._columns = np.concatenate((self._columns, added))
        return self._columns

    def load(self, data: bytes, source: str) -> Loaded:
        """The nodes of one file, in file order. Raises FlintError FL603 or FL604."""
        known = self._references.setdefault(len(data), [])
        content = np.frombuffer(data, dtype=np.uint8)
        for reference in reversed(known):
            values = reference.values_in(content)
            if values is not None:
                return self._refill(reference, values)
        spans = list(records(data, source))
        _, metadata = self._decoder.metadata(data[slice(*spans[0])], source)
        numbers = [self._intern(data[a:b], source, a) for a, b in spans[1:]]
        lines = np.array(numbers, dtype=np.int64)
        loaded = Loaded(lines, self.columns()[lines], metadata)
        known.append(make_reference(data, np.array(spans, dtype=np.int64), loaded, self.groups))
        del known[:-MAX_REFERENCES]
        return loaded

    def _refill(self, reference: Reference, values: list[FieldValues]) -> Loaded:
        """The trace of `reference` with other ranks and groups in it."""
        columns = reference.loaded.columns.copy()
        for nodes, column, found in values:
            if column == GROUP:
                names, which = np.unique(found, return_inverse=True)
                numbers = [self._group_number(str(n)) for n in names.tolist()]
                found = np.array(numbers, dtype=np.int64)[which.reshape(-1)]
            columns[nodes, column] = found
        return reference.loaded._replace(columns=columns)

    def _group_number(self, name: str | tuple[bool, ...]) -> int:
        return self.groups.setdefault(name, len(self.groups))

    def _intern(self, record: bytes, source: str, offset: int) -> int:
        number = self._number.get(record)
        if number is None:
            node = self._decoder.node(record, source, offset)
            found = examine(node)
            number = self._number[record] = len(self.records)
            self.records.append(found)
            self._rows.append(self._line(found))
        return number

    def _line(self, r: Record) -> tuple[int, ...]:
        shape = self.shapes.setdefault((r.id, r.type, r.deps), len(self.shapes))
        has_problem = int(bool(r.problems))
        return (
            r.kind,
            r.comm_bytes,
            r.source,
            r.target,
            r.tag % TAG_MODULUS,
            int(r.type),
            signed64(r.id),
            self._group_number(r.group),
            shape,
            has_problem,
            self._names.setdefault(r.name, len(self._names)),
        )


def signed64(value: int) -> int:
    """The 64 bits of an unsigned number read as a signed one, which a column can hold."""
    return value if value < 1 << 63 else value - (1 << 64)


def examine(node: TraceNode) -> Record:
    """What a check needs of a node, and everything that is wrong with it on its own."""
    problems: list[tuple[str, str]] = []
    _examine_attributes(node, problems)
    _examine_type(node, problems)
    _examine_sizes(node, problems)
    if len(set(node.data_deps)) < len(node.data_deps):
        problems.append(("repeated-dependency", f"{_label(node)} names a dependency twice"))

    def number(name: str, default: int) -> int:
        value = node.attributes.get(name, ("", default))[1]
        return signed64(value) if isinstance(value, int) else default

    involved = node.attributes.get("involved_dim", ("", None))[1]
    name = node.attributes.get("pg_name", ("", ""))[1]
    group: str | tuple[bool, ...] = str(name) if name else ""
    if not group and isinstance(involved, tuple):
        group = tuple(bool(v) for v in involved)
    return Record(
        node.id,
        node.type,
        tuple(sorted({*node.data_deps, *node.ctrl_deps})),
        number("comm_type", 0),
        number("comm_size", 0),
        group,
        number("comm_src", -1),
        number("comm_dst", -1),
        number("comm_tag", 0),
        tuple(problems),
        node.name if node.type in (NodeType.COMM_SEND, NodeType.COMM_RECV) else "",
    )


def _examine_attributes(node: TraceNode, problems: list[tuple[str, str]]) -> None:
    for name, (kind, _) in node.attributes.items():
        expected = ATTRIBUTE_KINDS.get(name, kind)
        if kind != expected:
            stored = kind or "nothing"
            problems.append(
                ("attribute-type", f"{_label(node)} stores {name} as {stored}, not {expected}")
            )
    for name in _REQUIRED.get(node.type, ()):
        if name not in node.attributes:
            problems.append(("attribute-missing", f"{_label(node)} has no {name}"))


def _examine_type(node: TraceNode, problems: list[tuple[str, str]]) -> None:
    wrong = {
        NodeType.INVALID: "invalid-node",
        NodeType.METADATA: "metadata-node",
        NodeType.MEM_LOAD: "unsupported-node",
        NodeType.MEM_STORE: "unsupported-node",
    }.get(node.type)
    if wrong:
        problems.append((wrong, f"{_label(node)} has type {node.type.name}"))
    if node.attributes.get("is_cpu_op", ("", False))[1]:
        problems.append(("cpu-op", f"{_label(node)} is marked is_cpu_op"))


def _examine_sizes(node: TraceNode, problems: list[tuple[str, str]]) -> None:
    def value(name: str) -> Any:
        found = node.attributes.get(name, ("", None))[1]
        return found if isinstance(found, int | float) else None

    def require_positive(name: str, code: str) -> None:
        found = value(name)
        if found is not None and found < 1:
            problems.append((code, f"{_label(node)} has {name} {found}"))

    if node.type is NodeType.COMP:
        require_positive("num_ops", "zero-num-ops")
        require_positive("tensor_size", "zero-tensor-size")
        return
    if node.type not in (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV):
        return
    require_positive("comm_size", "zero-comm-size")
    tag, kind = value("comm_tag"), value("comm_type")
    if tag is not None and tag < 0:
        problems.append(("negative-tag", f"{_label(node)} has comm_tag {tag}"))
    if node.type is NodeType.COMM_COLL and kind is not None and kind not in SIMULATED_COLLECTIVES:
        known = CommType._value2member_map_.get(kind)
        word = known.name if isinstance(known, CommType) else f"comm_type {kind}"
        problems.append(("unsupported-collective", f"{_label(node)} is a {word}"))


def _label(node: TraceNode) -> str:
    return node.name or f"node {node.id}"
