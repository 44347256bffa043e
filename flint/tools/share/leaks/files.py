"""Surviving strings of files: of a directory of traces, or of a `.flint` file."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.reading.reader import records, unpack
from flint.backends.chakra.schema import NodeType
from flint.cluster.load import preset_names
from flint.io.bounded import FileKind, read_bounded
from flint.ir.workload import Workload
from flint.tools.share.leaks import vocabulary
from flint.tools.share.leaks.strings import (
    Place,
    Survivor,
    Text,
    is_public,
    runs,
    survivors_of,
    texts_of,
    texts_of_json,
)

# What Flint writes into the files of a trace directory, whatever the workload.

#: Files of a directory of traces, beside the traces.
FILE_NAMES = vocabulary.WORDS["files"]
#: A rank's trace.
TRACE_NAME = re.compile(r"trace\.\d{1,9}\.et")
#: Names of attributes of trace nodes and of a trace, as Chakra's readers know them.
ATTRIBUTES = vocabulary.WORDS["attributes"]
_NODES = frozenset(f"{kind.name}_NODE" for kind in NodeType)
_MESH = re.compile(r"[^=,]+=\d+(,[^=,]+=\d+)*")
_DIGEST = re.compile(r"(sha256:|crc32:)?[0-9a-f]{8,64}")


def is_public_file_name(name: str) -> bool:
    """Whether a file of a trace directory has a name that Flint gives."""
    return name in FILE_NAMES or bool(TRACE_NAME.fullmatch(name))


def is_public_node(name: str) -> bool:
    """Whether a node's name is its type, a public opcode, and perhaps a generated word."""
    kind, _, rest = name.partition(" ")
    opcode, _, scope = rest.partition(" ")
    if kind not in _NODES:
        return vocabulary.is_neutral_name(name)
    return not rest or any(
        vocabulary.is_public_opcode(o) and vocabulary.is_neutral_name(s)
        for o, s in ((opcode, scope), (rest, ""))
    )


def is_public_trace_value(text: str) -> bool:
    """Whether a text among the attributes of a trace is Flint's own, or the mesh of generated axes."""
    if _MESH.fullmatch(text):
        axes = [part.partition("=")[0] for part in text.split(",")]
        return all(map(vocabulary.is_neutral_name, axes))
    return vocabulary.is_public_value(text) or is_public_line(text)


def is_public_line(text: str) -> bool:
    """Whether all words of a line are of Flint's files, numbers, or parts of generated names."""
    if _DIGEST.fullmatch(text):
        return True
    is_name = vocabulary.is_neutral_name
    return all(run.isdigit() or run in _words() or is_name(run) for run in runs(text))


@cache
def _words() -> frozenset[str]:
    """Words of the files that Flint writes for meshes of generated axes, and of its clusters."""
    texts = [*FILE_NAMES, *ATTRIBUTES, *_NODES, *_files(), *preset_names()]
    more = vocabulary.WORDS["manifests"] | vocabulary.METADATA_VALUES
    return more | {run for text in texts for run in runs(text)}


def _files() -> list[str]:
    from dataclasses import replace

    from flint.backends.chakra.writing.simulator_files import placeholder_hardware, simulator_files
    from flint.ir.mesh import Mesh

    found: list[str] = []
    for sizes in ((1, 1), (2, 1), (2, 4)):
        mesh = Mesh(("axis0", "axis1"), sizes)
        hardware = placeholder_hardware(mesh)
        alike = replace(hardware, dimensions=(hardware.dimensions[0],) * 2, has_durations=True)
        for told in (hardware, alike):
            found += [d.decode() for d in simulator_files(mesh, "trace", told).values()]
    return found


# Texts of a Chakra trace's bytes: names of nodes and attributes, and every value that is text.
#
# The bytes are walked as protobuf, whatever the schema says of a field: a text in a field that no
# reader asks for is in the file too. Traces of other ranks of a class differ in few numbers, so a
# file of a length that was seen is compared with the first, and walked only if texts differ.

#: Shorter runs are no text: a few packed numbers may look printable.
LEAST_TEXT = 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: Fields of a trace's messages by number: attributes, names, and dependencies, which are packed numbers.
_MESSAGES = {("metadata", 2): "attribute", ("node", 10): "attribute"}
_NAMES = {("node", 2): "node", ("attribute", 1): "attribute"}
_PACKED = (("node", 4), ("node", 5))


@dataclass(frozen=True, eq=False)
class TraceContent:
    """What a file holds, and for each byte whether it is of a text (1), a number (2), or neither.

    `texts` have a role: a "node"'s name, an "attribute"'s name, or a "value".
    """

    texts: frozenset[tuple[str, str]]
    content: NDArray[np.uint8]
    of: NDArray[np.uint8]

    def has_texts_of(self, other: NDArray[np.uint8]) -> bool:
        """Whether another file of this length has no other text, except other digits.

        Numbers may differ where they keep their width; nothing else may.
        """
        places = np.flatnonzero(self.content != other)
        if not len(places):
            return True
        of, before, after = self.of[places], self.content[places], other[places]
        digits = (of == 1) & _is_digit(before) & _is_digit(after)
        numbers = (of == 2) & (((before ^ after) & 0x80) == 0)
        return bool((digits | numbers).all())


class TraceTexts:
    """Texts of many traces, equal ones once."""

    def __init__(self) -> None:
        self._seen: dict[int, list[TraceContent]] = {}

    def of(self, data: bytes, source: str) -> frozenset[tuple[str, str]]:
        """Texts of a trace that none before had. Raises FlintError FL603 for broken framing."""
        content = np.frombuffer(data, dtype=np.uint8)
        known = self._seen.setdefault(len(data), [])
        if any(k.has_texts_of(content) for k in known):
            return frozenset()
        found = trace_content(data, source)
        known.append(found)
        return found.texts


def trace_content(data: bytes, source: str) -> TraceContent:
    """Walk a whole trace (not compressed)."""
    texts: set[tuple[str, str]] = set()
    of = np.zeros(len(data), dtype=np.uint8)
    for number, record in enumerate(records(data, source)):
        for role, start, stop in _walk(data, "node" if number else "metadata", *record):
            of[start:stop] = 1 if role else 2
            if role:
                texts.add((role, _decoded(data[start:stop])))
    return TraceContent(frozenset(texts), np.frombuffer(data, dtype=np.uint8), of)


def _walk(data: bytes, message: str, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
    """Role and span of each value of a message; numbers, and bytes that do not read as a text, have no role."""
    for field, kind, (first, end) in _fields(data, start, stop):
        key, role = (message, field), ""
        if kind == _BYTES and key in _MESSAGES:
            yield from _walk(data, _MESSAGES[key], first, end)
            continue
        if kind == _BYTES and key not in _PACKED:
            is_text = end - first >= LEAST_TEXT and _reads(data[first:end])
            role = _NAMES.get(key) or ("value" if is_text else "")
        yield role, first, end


def _fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Number, wire type and span of the value of each field. What is no protobuf is one value."""
    at = start
    while at < stop:
        tag, at = _varint(data, at, stop)
        kind = tag & 7
        if kind == _VARINT:
            _, end = _varint(data, at, stop)
        elif kind == _BYTES:
            length, at = _varint(data, at, stop)
            end = at + length
        else:
            end = at + {_FIXED64: 8, _FIXED32: 4}.get(kind, stop)
        if end > stop:
            yield 0, _BYTES, (start, stop)
            return
        yield tag >> 3, kind, (at, end)
        at = end


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while at < stop:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return stop, stop + 1  # it does not end: the caller sees a value beyond the record


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _reads(data: bytes) -> bool:
    """Whether at least half of the bytes are printable ASCII, or all are printable UTF-8."""
    text = _decoded(data)
    if text.isprintable() and "\ufffd" not in text:
        return True
    return 2 * sum(32 <= b < 127 for b in data) >= len(data)


def _is_digit(values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return (values >= ord("0")) & (values <= ord("9"))


#: Names of files whose content is JSON.
_JSON = ".json"
_HELP = "give a directory of traces, or a .flint file"


def surviving_in_files(path: str | Path, original: Workload | None = None) -> tuple[Survivor, ...]:
    """Texts of a directory of traces (or of one `.flint` file) that may identify.

    Every file is read, whatever its name: names of files, workloads, nodes and attributes of
    traces, JSON and text line by line. Traces of equal bytes (hard links) are read once. Raises
    FlintError FL932 for what cannot be read.
    """
    place = Path(path)
    texts = _texts_of_directory if place.is_dir() else _texts_of_workload_file
    return survivors_of(texts(place), original)


def _texts_of_directory(folder: Path) -> Iterator[Text]:
    traces, seen = TraceTexts(), set[tuple[int, int]]()
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if not is_public_file_name(name):
            yield Text(Place.FILE_NAME, "directory", name)
        if file.is_symlink():
            yield Text(Place.FILE_NAME, name, os.readlink(file))
        if file.is_dir():
            continue
        status = os.stat(file)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        if name.endswith(".flint"):
            yield from _texts_of_workload_file(file)
        elif name.endswith((".et", ".et.gz")):
            yield from _texts_of_trace(file, name, traces)
        else:
            yield from _texts_of_file(file, name)


def _texts_of_workload_file(path: Path) -> Iterator[Text]:
    """Texts of the workload, and what a zip can hold beside it."""
    data = _read(path, FileKind.WORKLOAD)
    workload = Workload.from_bytes(data, str(path))
    yield from (t for t in texts_of(workload) if not is_public(t))
    if data == workload.to_bytes():
        return
    for found in _beside(data):
        if found:
            yield Text(Place.FILE_TEXT, path.name, found.decode("utf-8", errors="replace"))


def _beside(data: bytes) -> Iterator[bytes]:
    """Bytes of a zip that are no content: comments, extra fields, what lies between its files."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        yield archive.comment
        end = 0
        for entry in sorted(archive.infolist(), key=lambda e: e.header_offset):
            yield from (entry.comment, entry.extra, data[end : entry.header_offset])
            lengths = data[entry.header_offset + 26 : entry.header_offset + 30]
            name, extra = (int.from_bytes(n, "little") for n in (lengths[:2], lengths[2:]))
            start = entry.header_offset + 30 + name
            yield data[start : start + extra]
            end = start + extra + entry.compress_size
        yield data[end : archive.start_dir]


def _texts_of_trace(path: Path, name: str, traces: TraceTexts) -> Iterator[Text]:
    for role, text in sorted(traces.of(unpack(_read(path, FileKind.TRACE), name), name)):
        if not _RULES[role](text):
            yield Text(Place.TRACE_TEXT, name, text)


def _texts_of_file(path: Path, name: str) -> Iterator[Text]:
    """Keys and values of JSON, lines of anything else."""
    text = _read(path, FileKind.GROUPS).decode("utf-8", errors="replace")
    for found in _pieces(text, name):
        if not is_public_line(found):
            yield Text(Place.FILE_TEXT, name, found)


def _pieces(text: str, name: str) -> Iterator[str]:
    """Keys and values of JSON; lines of what is no JSON."""
    try:
        document = json.loads(text) if name.endswith(_JSON) else None
    except (ValueError, RecursionError):
        document = None
    if document is None:
        yield from (line.strip() for line in text.splitlines())
    else:
        yield from (t.text for t in texts_of_json(document, name))


def _read(path: Path, kind: FileKind) -> bytes:
    return read_bounded(path, kind, "FL932", _HELP)


_RULES = {
    "node": is_public_node,
    "attribute": ATTRIBUTES.__contains__,
    "value": is_public_trace_value,
}
