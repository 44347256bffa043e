"""Trace nodes -> bytes. A class is serialized once; ranks differ only in patched digits.

A record is a varint of its length and a Node. What differs between ranks (the decimal pg_name, and
the varints comm_src and comm_dst) stands at the end of the record. Numbers of equal width give
records of equal length, so one `Template` serves all ranks whose numbers have equal widths.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.schema import CHAKRA_VERSION, VALUE_FIELDS, NodeType
from flint.backends.chakra.writing.lower import LoweredNodes, Slot, remote_bytes
from flint.ir.program import Int64s, Program
from flint.text import short_scope

#: Least tensor_size of a computation that waits for nothing. ASTRA-sim's analytical backend stops
#: with a failed assertion when the first event ends below 1 ns; at this size it lasts as long on
#: memory of up to 16 TB/s.
LEAST_STARTING_BYTES = 16 * 1024

_NODE_NAMES = {
    NodeType.MEM_LOAD: "MEM_LOAD_NODE",
    NodeType.MEM_STORE: "MEM_STORE_NODE",
    NodeType.COMP: "COMP_NODE",
    NodeType.COMM_COLL: "COMM_COLL_NODE",
    NodeType.COMM_SEND: "COMM_SEND_NODE",
    NodeType.COMM_RECV: "COMM_RECV_NODE",
}


@lru_cache(maxsize=1 << 18)
def varint(value: int) -> bytes:
    """Protobuf's base-128 number, least significant group first.

    Kept, because ids of nodes come again as dependencies, and in the programs of all rank classes.
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field_bytes(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def integer_attribute(name: str, kind: str, value: int) -> bytes:
    """Node.attr or GlobalMetadata.attr content with a varint value (`int64_val`, `bool_val`)."""
    return field_bytes(1, name.encode()) + varint(VALUE_FIELDS[kind] << 3) + varint(value)


def text_attribute(name: str, value: str) -> bytes:
    """Attribute content with a string_val."""
    return field_bytes(1, name.encode()) + field_bytes(VALUE_FIELDS["string_val"], value.encode())


def metadata_record(attributes: Mapping[str, str]) -> bytes:
    """The first record of a file."""
    body = field_bytes(1, CHAKRA_VERSION.encode())
    for name, value in attributes.items():
        body += field_bytes(2, text_attribute(name, value))
    return varint(len(body)) + body


@dataclass(frozen=True, eq=False)
class RankColumn:
    """One number that differs from rank to rank: a slot's value, or the rank itself.

    `width[r]` is its number of bytes for rank r; 0 where the rank has no node with it.
    """

    values: Int64s
    width: NDArray[np.uint8]
    is_text: bool

    def encode(self, rank: int) -> bytes:
        """The bytes of rank's number."""
        value = int(self.values[rank])
        return str(value).encode() if self.is_text else varint(value)


@dataclass(frozen=True, eq=False)
class Template:
    """The file of one rank, and where its numbers stand: (column, positions (count, width))."""

    data: bytearray
    patches: tuple[tuple[RankColumn, Int64s], ...]

    def fill(self, rank: int) -> bytearray:
        """The file of `rank`. The buffer is reused by the next call."""
        view = np.frombuffer(self.data, dtype=np.uint8)
        for column, positions in self.patches:
            view[positions] = np.frombuffer(column.encode(rank), dtype=np.uint8)
        return self.data


class Encoder:
    """Serializes the traces of one rank class."""

    def __init__(self, program: Program, nodes: LoweredNodes, metadata: bytes, size: str) -> None:
        self.nodes = nodes
        self.metadata = metadata
        self._program = program
        self._output_only = size == "output"
        self._heads: list[bytes] | None = None
        self._fixed: dict[tuple[int, int, bool], tuple[bytes, bytes]] = {}
        own = _rank_column(nodes.slots, program.mesh.size)
        self.columns = (*map(_slot_column, nodes.slots), own)

    def signatures(self) -> NDArray[np.uint8]:
        """For each rank, the widths of its numbers: ranks of equal rows share a template."""
        return np.stack([c.width for c in self.columns], axis=1)

    def contents(self) -> Int64s:
        """For each rank a number: ranks of equal numbers have files of equal bytes."""
        columns = [np.where(c.width > 0, c.values, -1) for c in self.columns]
        _, content = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        return np.asarray(content.reshape(-1), dtype=np.int64)

    def template(self, widths: NDArray[np.uint8]) -> Template:
        """The file of the ranks whose numbers have these widths."""
        bodies = self._bodies(widths)
        tails, places = self._tails(widths)
        data = bytearray(self.metadata)
        positions: dict[int, list[int]] = {c: [] for c in range(len(self.columns))}
        for body, slot in zip(bodies, self.nodes.slot.tolist(), strict=True):
            if body is None:
                continue
            tail = tails[slot]
            data += varint(len(body) + len(tail))
            data += body
            for column, offset in places[slot]:
                positions[column].append(len(data) + offset)
            data += tail
        return Template(data, self._patches(positions, widths))

    def _tails(
        self, widths: NDArray[np.uint8]
    ) -> tuple[dict[int, bytes], dict[int, list[tuple[int, int]]]]:
        """For each slot the end of its records, and (column, offset) of the numbers in it."""
        tails: dict[int, bytes] = {-1: b""}
        places: dict[int, list[tuple[int, int]]] = {-1: []}
        own = len(self.columns) - 1
        types = dict(zip(self.nodes.slot.tolist(), self.nodes.type.tolist(), strict=True))
        for slot, column in enumerate(self.columns[:-1]):
            width = int(widths[slot])
            if column.is_text:
                tails[slot] = field_bytes(10, text_attribute("pg_name", "0" * width))
                places[slot] = [(slot, len(tails[slot]) - width)]
                continue
            ends = [(own, "comm_src"), (slot, "comm_dst")]
            if types[slot] == NodeType.COMM_RECV:
                ends = [(slot, "comm_src"), (own, "comm_dst")]
            tails[slot], places[slot] = b"", []
            for end, name in ends:
                width = int(widths[end])
                # 2 ** (7 * (width - 1)) is the least number of this width.
                blank = integer_attribute(name, "int32_val", 1 << 7 * max(width - 1, 0))
                tails[slot] += field_bytes(10, blank)
                places[slot].append((end, len(tails[slot]) - width))
        return tails, places

    def _patches(
        self, positions: dict[int, list[int]], widths: NDArray[np.uint8]
    ) -> tuple[tuple[RankColumn, Int64s], ...]:
        return tuple(
            (self.columns[c], np.array(at, dtype=np.int64)[:, None] + np.arange(int(widths[c])))
            for c, at in positions.items()
            if at
        )

    def _bodies(self, widths: NDArray[np.uint8]) -> list[bytes | None]:
        """Records without length and tail; None for nodes that these ranks do not have."""
        if self._heads is None:
            self._heads = self._all_bodies()
        absent = np.flatnonzero(widths[:-1] == 0)
        dropped = np.isin(self.nodes.slot, absent)
        bodies: list[bytes | None] = list(self._heads)
        if not dropped.any():
            return bodies
        for node, deps in _routed_around(self.nodes, dropped).items():
            bodies[node] = self._body(node, deps)
        for node in np.flatnonzero(dropped).tolist():
            bodies[node] = None
        return bodies

    def _all_bodies(self) -> list[bytes]:
        start, deps = self.nodes.dep_start.tolist(), self.nodes.deps.tolist()
        return [self._body(i, deps[start[i] : start[i + 1]]) for i in range(len(self.nodes))]

    def _body(self, node: int, deps: list[int]) -> bytes:
        row, node_type = int(self.nodes.row[node]), int(self.nodes.type[node])
        after = int(self.nodes.after[node])
        starts = node_type == NodeType.COMP and not deps and after < 0
        fixed = self._fixed.get((row, node_type, starts))
        if fixed is None:
            fixed = self._fixed[row, node_type, starts] = (
                self._name(row, NodeType(node_type)),
                self._attributes(node, least_bytes=LEAST_STARTING_BYTES if starts else 1),
            )
        name, attributes = fixed
        body = (b"\x08" + varint(node) if node else b"") + name
        if after >= 0:
            body += field_bytes(4, varint(after))
        if deps:
            body += field_bytes(5, b"".join(map(varint, deps)))
        duration = int(self.nodes.duration_micros[node])
        if duration:
            body += b"\x38" + varint(duration)
        body += attributes
        if node_type >= NodeType.COMM_SEND:
            tag = int(self.nodes.tag[node])
            body += field_bytes(10, integer_attribute("comm_tag", "int32_val", tag))
        return body

    def _name(self, row: int, node_type: NodeType) -> bytes:
        """Name and type: the type's word (chakra_timeline_visualizer), the opcode, the scope."""
        program = self._program
        opcode = program.opcodes[program.opcode[row]]
        scope = short_scope(program.strings[program.scope[row]])
        name = f"{_NODE_NAMES[node_type]} {opcode}{' ' if scope else ''}{scope}"
        return field_bytes(2, name.encode()) + b"\x18" + varint(node_type)

    def _attributes(self, node: int, least_bytes: int) -> bytes:
        nodes, row = self.nodes, int(self.nodes.row[node])
        of_host = int(nodes.of_host[node])
        parts = [integer_attribute("is_cpu_op", "bool_val", of_host)]
        if nodes.type[node] == NodeType.COMP:
            program = self._program
            moved = int(program.result_bytes[row])
            if not self._output_only:
                moved += int(program.operand_bytes[row])
            flops = int(program.flops[row])
            parts.append(integer_attribute("num_ops", "int64_val", max(flops, 1)))
            parts.append(integer_attribute("tensor_size", "uint64_val", max(moved, least_bytes)))
        elif nodes.type[node] < NodeType.COMP:
            moved = remote_bytes(self._program, row)
            parts.append(integer_attribute("tensor_size", "uint64_val", moved))
        else:
            if nodes.type[node] == NodeType.COMM_COLL:
                kind = int(nodes.comm_type[node])
                parts.append(integer_attribute("comm_type", "int64_val", kind))
            size = int(nodes.comm_bytes[node])
            parts.append(integer_attribute("comm_size", "int64_val", size))
        if nodes.dimensions[node] >= 0:
            flags = nodes.dimension_flags[nodes.dimensions[node]]
            packed = field_bytes(VALUE_FIELDS["bool_list"], field_bytes(1, bytes(flags)))
            parts.append(field_bytes(1, b"involved_dim") + packed)
        return b"".join(field_bytes(10, p) for p in parts)


def _slot_column(slot: Slot) -> RankColumn:
    absent = slot.values < 0
    width = _digits(slot.values) if slot.is_group else _varint_widths(slot.values)
    return RankColumn(slot.values, np.where(absent, 0, width).astype(np.uint8), slot.is_group)


def _rank_column(slots: tuple[Slot, ...], count: int) -> RankColumn:
    """The rank itself, which stands in its sends and receives."""
    ranks = np.arange(count, dtype=np.int64)
    messages = np.zeros(count, dtype=np.bool_)
    for slot in slots:
        if not slot.is_group:
            messages |= slot.values >= 0
    return RankColumn(ranks, np.where(messages, _varint_widths(ranks), 0).astype(np.uint8), False)


def _digits(values: Int64s) -> Int64s:
    return np.searchsorted(10 ** np.arange(1, 12), values, side="right") + 1


def _varint_widths(values: Int64s) -> Int64s:
    return np.searchsorted(1 << 7 * np.arange(1, 5), values, side="right") + 1


def _routed_around(nodes: LoweredNodes, dropped: NDArray[np.bool_]) -> dict[int, list[int]]:
    """New dependencies of the nodes that waited for a dropped one: what that one waited for."""
    deps = nodes.deps
    owners = np.repeat(np.arange(len(nodes)), np.diff(nodes.dep_start))
    touched = np.unique(np.concatenate((owners[dropped[deps]], np.flatnonzero(dropped))))
    instead: dict[int, frozenset[int]] = {}
    changed: dict[int, list[int]] = {}
    for node in touched.tolist():
        found = _kept(node, nodes, dropped, instead)
        if not dropped[node]:
            changed[node] = sorted(found)
    return changed


def _kept(
    node: int, nodes: LoweredNodes, dropped: NDArray[np.bool_], known: dict[int, frozenset[int]]
) -> frozenset[int]:
    """What a node waits for without the dropped ones. `known` is what was found of dropped nodes."""
    todo = [node]
    while True:
        deps = nodes.deps[nodes.dep_start[todo[-1]] : nodes.dep_start[todo[-1] + 1]].tolist()
        unknown = [d for d in deps if dropped[d] and d not in known]
        if unknown:
            todo.extend(unknown)
            continue
        parts = (known[d] if dropped[d] else (d,) for d in deps)
        found = known[todo[-1]] = _last_of_streams(itertools.chain.from_iterable(parts), nodes)
        if len(todo) == 1:
            return found
        todo.pop()


def _last_of_streams(nodes: Iterable[int], all_nodes: LoweredNodes) -> frozenset[int]:
    """Without kernels that another one waits for already: those before it on its stream."""
    last: dict[int, int] = {}
    others = set()
    for node in nodes:
        stream = int(all_nodes.stream[node])
        if stream < 0:
            others.add(node)
        else:
            last[stream] = max(node, last.get(stream, -1))
    return frozenset(others.union(last.values()))
