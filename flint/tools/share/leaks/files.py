"""Surviving strings of files: of a directory of traces, or of a `.flint` file."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from flint.backends.chakra.reading.reader import unpack
from flint.io.bounded import FileKind, read_bounded
from flint.ir.workload import Workload
from flint.tools.share.leaks import file_words
from flint.tools.share.leaks.strings import Survivor, survivors_of
from flint.tools.share.leaks.texts import Place, Text, is_public, texts_of, texts_of_json
from flint.tools.share.leaks.trace_texts import TraceTexts

#: Names of files whose content is JSON.
_JSON = ".json"
_HELP = "give a directory of traces, or a .flint file"


def surviving_in_files(path: str | Path, original: Workload | None = None) -> tuple[Survivor, ...]:
    """Texts of a directory of traces (or of one `.flint` file) that may identify.

    Every file is read, whatever its name: names of files, workloads, nodes and attributes of
    traces, JSON and text line by line. Traces of equal bytes (hard links) are read once. Raises
    FlintError FL932 for what cannot be read.
    """
    return survivors_of(_texts(Path(path)), original)


def _texts(path: Path) -> Iterator[Text]:
    if not path.is_dir():
        yield from _texts_of_workload_file(path)
        return
    yield from _texts_of_directory(path)


def _texts_of_directory(folder: Path) -> Iterator[Text]:
    traces, seen = TraceTexts(), set[tuple[int, int]]()
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if not file_words.is_public_file_name(name):
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
        if not file_words.is_public_line(found):
            yield Text(Place.FILE_TEXT, name, found)


def _pieces(text: str, name: str) -> Iterator[str]:
    document = _parsed(text) if name.endswith(_JSON) else None
    if document is None:
        yield from (line.strip() for line in text.splitlines())
    else:
        yield from (t.text for t in texts_of_json(document, name))


def _parsed(text: str) -> object:
    """The JSON value of a text; None for what is no JSON, which is read as lines."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _read(path: Path, kind: FileKind) -> bytes:
    return read_bounded(path, kind, "FL932", _HELP)


_RULES = {
    "node": file_words.is_public_node,
    "attribute": file_words.ATTRIBUTES.__contains__,
    "value": file_words.is_public_trace_value,
}
