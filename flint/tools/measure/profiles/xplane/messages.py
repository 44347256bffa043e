"""The messages of an XSpace, declared at run time, and its planes one by one.

Field numbers are those of tsl/profiler/protobuf/xplane.proto. A plane at a time is decoded, so that
the memory is that of the largest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from flint.errors import FlintError
from flint.messages import decode_error, message_classes

_MESSAGES = {
    "Stat": "metadata_id 1 int64, double_value 2 double value, uint64_value 3 uint64 value, "
    "int64_value 4 int64 value, str_value 5 bytes value, bytes_value 6 bytes value, "
    "ref_value 7 uint64 value",
    "EventMetadata": "id 1 int64, name 2 bytes, display_name 4 bytes, stats 5 Stat*",
    "StatMetadata": "id 1 int64, name 2 bytes",
    "EventMetadataEntry": "key 1 int64, value 2 EventMetadata",
    "StatMetadataEntry": "key 1 int64, value 2 StatMetadata",
    "Event": "metadata_id 1 int64, offset_ps 2 int64 data, num_occurrences 5 int64 data, "
    "duration_ps 3 int64, stats 4 Stat*",
    "Line": "id 1 int64, name 2 bytes, timestamp_ns 3 int64, events 4 Event*",
    "Plane": "id 1 int64, name 2 bytes, lines 3 Line*, event_metadata 4 EventMetadataEntry*, "
    "stat_metadata 5 StatMetadataEntry*, stats 6 Stat*",
}
_PLANES, _BYTES = 1, 2
#: Bytes of the wire types that have a fixed size.
_FIXED = {1: 8, 5: 4}
#: Planes of one file: each device has one or two.
_MOST_PLANES = 1 << 14


@cache
def plane_class() -> Any:
    """The protobuf class of an XPlane."""
    return message_classes("flint_xplane", _MESSAGES)["Plane"]


def planes(data: bytes, source: str) -> Iterator[Any]:
    """The XPlanes of an XSpace. Raises FlintError FL824 where the bytes are no XSpace."""
    count = 0
    for number, start, stop in _fields(data, source):
        if number != _PLANES:
            continue
        count += 1
        if count > _MOST_PLANES:
            raise broken(source, f"it has more than {_MOST_PLANES:,} planes")
        try:
            yield plane_class().FromString(data[start:stop])
        except decode_error() as error:
            raise broken(source, f"the plane at byte {start} is damaged") from error


def broken(source: str, why: str) -> FlintError:
    """The FlintError FL824 for a file that is not a whole XSpace."""
    return FlintError(
        "FL824",
        f"{source} is not a whole XSpace: {why}",
        help="give the .xplane.pb that jax.profiler wrote; a killed profiler leaves an incomplete file",
    )


def _fields(data: bytes, source: str) -> Iterator[tuple[int, int, int]]:
    """Number, start and stop of each field of the outermost message."""
    at = 0
    while at < len(data):
        tag, start = _varint(data, at, source)
        wire = tag & 7
        if wire == 0:
            _, stop = _varint(data, start, source)
        elif wire == _BYTES:
            size, start = _varint(data, start, source)
            stop = start + size
        elif wire in _FIXED:
            stop = start + _FIXED[wire]
        else:
            raise broken(source, f"no field begins at byte {at}")
        if stop > len(data):
            raise broken(
                source, f"the field at byte {at} lacks its last {stop - len(data):,} bytes"
            )
        yield tag >> 3, start, stop
        at = stop


def _varint(data: bytes, at: int, source: str) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise broken(source, f"the number at byte {at} does not end")


def is_start(head: bytes) -> bool:
    """Whether a file begins as an XSpace does: a plane, which begins with its id or its name."""
    if head[:1] != b"\x0a":
        return False
    try:
        size, at = _varint(head, 1, "")
        if head[at : at + 1] == b"\x08":
            _, at = _varint(head, at + 1, "")
        length, start = _varint(head, at + 1, "")
    except FlintError:
        return False
    name = head[start : start + length]
    return head[at : at + 1] == b"\x12" and length <= size and name.isascii() and name != b""
