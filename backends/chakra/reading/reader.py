"""Read a Chakra execution trace, strictly: a file that is not whole is an error, never a guess."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flint.backends.chakra.schema import NodeType, messages
from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, gunzip, read_bounded
from flint.messages import decode_error, unknown_fields

#: More records than this in one file would fill the memory.
MOST_RECORDS = 1 << 22


class TraceNode(NamedTuple):
    """One node. `attributes` maps a name to the kind it is stored as (`int64_val`) and its value."""

    id: int
    name: str
    type: NodeType
    data_deps: tuple[int, ...]
    ctrl_deps: tuple[int, ...]
    duration_micros: int
    attributes: dict[str, tuple[str, Any]]


@dataclass(frozen=True)
class TraceFile:
    """What one `.et` file says. `metadata` maps attribute names to values."""

    version: str
    metadata: dict[str, Any]
    nodes: tuple[TraceNode, ...]


def read(path: str | Path) -> TraceFile:
    """Read one trace, gzip included.

    Raises FlintError FL602 (cannot open), FL603 (truncated or foreign bytes, with the offset), FL604
    (the first record is a node: the file lacks GlobalMetadata).
    """
    source = str(path)
    data = unpack(read_bytes(Path(path)), source)
    decoder = Decoder()
    spans = list(records(data, source))
    version, metadata = decoder.metadata(data[slice(*spans[0])], source)
    nodes = tuple(decoder.node(data[a:b], source, a) for a, b in spans[1:])
    return TraceFile(version, metadata, nodes)


def read_bytes(path: Path) -> bytes:
    """Content of a regular file of a trace's size. Raises FlintError FL602."""
    return read_bounded(path, FileKind.TRACE, "FL602")


def unpack(data: bytes, source: str) -> bytes:
    """`data`, decompressed if it is a gzip stream. Raises FlintError FL603, also for a bomb."""
    if not is_compressed(data):
        return data
    try:
        return gunzip(data, FileKind.TRACE.most_bytes)
    except Malformed as error:
        raise _broken(source, 0, str(error)) from error


def is_compressed(data: bytes) -> bool:
    """Whether `data` is a gzip stream."""
    return data[:2] == b"\x1f\x8b"


def records(data: bytes, source: str) -> Iterator[tuple[int, int]]:
    """Start and stop of each record's message.

    Raises FlintError FL603 where framing breaks, and for more records than memory holds nodes.
    """
    at, size, count = 0, len(data), 0
    if not size:
        raise _broken(source, 0, "the file is empty")
    while at < size:
        length = data[at]
        start = at + 1
        if length > 0x7F:
            length, start = _long_varint(data, at, source)
        stop = start + length
        if stop > size:
            missing = stop - size
            raise _broken(source, at, f"a record of {length} bytes lacks its last {missing}")
        if not length:
            raise _broken(source, at, "a record is blank, which readers take for the end")
        count += 1
        if count > MOST_RECORDS:
            raise _broken(source, at, f"record {count:,} begins: no device runs so many operations")
        yield start, stop
        at = stop


def _long_varint(data: bytes, at: int, source: str) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(at + 5, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise _broken(source, at, "the length of a record does not end")


class Decoder:
    """Messages -> plain values."""

    def __init__(self) -> None:
        self._messages = messages()
        self._decode_error = decode_error()
        self._unknown = unknown_fields()

    def metadata(self, record: bytes, source: str) -> tuple[str, dict[str, Any]]:
        """Version and attributes. Raises FlintError FL604 for a record that is not metadata."""
        message = self._parse(self._messages.GlobalMetadata, record)
        if message is None:
            raise FlintError(
                "FL604" if self._parse(self._messages.Node, record) is not None else "FL603",
                f"{source} is not a Chakra trace: its first record is not GlobalMetadata",
                help="readers take the first record for metadata, so a node there is lost",
            )
        return message.version, {a.name: _value(a)[1] for a in message.attr}

    def node(self, record: bytes, source: str, offset: int) -> TraceNode:
        """One node. Raises FlintError FL603 for bytes that are not one."""
        message = self._parse(self._messages.Node, record)
        if message is None or message.type not in NodeType._value2member_map_:
            raise _broken(source, offset, "a record is not a Chakra node")
        return _node(message)

    def plain_node(self, record: bytes) -> TraceNode | None:
        """A node that has no id, dependencies or times, each other field once and in order.

        None for one that has, and for bytes that are no node.
        """
        message = self._parse(self._messages.Node, record)
        if message is None or message.type not in NodeType._value2member_map_:
            return None
        taken = message.id or message.data_deps or message.ctrl_deps
        if taken or message.start_time_micros or message.duration_micros:
            return None
        # Bytes that say something again, or that a field is 0, are not written back.
        return _node(message) if message.ByteSize() == len(record) else None

    def _parse(self, kind: Any, record: bytes) -> Any:
        """The message, or None where the bytes are not one or hold fields it does not have."""
        try:
            message = kind.FromString(record)
        except self._decode_error:
            return None
        return None if len(self._unknown(message)) else message


def _node(message: Any) -> TraceNode:
    return TraceNode(
        message.id,
        message.name,
        NodeType(message.type),
        tuple(message.data_deps),
        tuple(message.ctrl_deps),
        message.duration_micros,
        {a.name: _value(a) for a in message.attr},
    )


def _value(attribute: Any) -> tuple[str, Any]:
    kind = attribute.WhichOneof("value")
    if kind is None:
        return "", None
    value = getattr(attribute, kind)
    return kind, tuple(value.values) if kind.endswith("_list") else value


def _broken(source: str, offset: int, why: str) -> FlintError:
    return FlintError(
        "FL603",
        f"{source} is not a whole Chakra trace: at byte {offset} {why}",
        help="it may be truncated, or in another format; write it again",
    )
