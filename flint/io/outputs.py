"""What a file that is written may replace: nothing, an empty file, or Flint's own of the same kind.

Whose a file is, its content says, as the manifest does of a directory: never its name. Why each kind is
recognized as it is: docs/decisions/0067-files-by-content.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from flint.errors import FlintError
from flint.io.files import cannot_write, is_stream, open_regular, write_atomically

#: Bytes at the beginning and at the end of a file that are looked at.
_LOOKED_AT = 4096
_TAIL = 1 << 16
#: What is said of a file that may be another program's.
_NO_MARK = "carries no mark of Flint"
#: What the manifest of a directory of traces begins with.
_TRACES = re.compile(rb'\s*\{\s*"schema"\s*:\s*"flint\.(manifest|chakra)/')


#: Whether a file holds what only Flint writes.
_Mark = Callable[[BinaryIO], bool]


def _begins(pattern: bytes) -> _Mark:
    return lambda file: re.match(pattern, file.read(_LOOKED_AT), re.DOTALL) is not None


def _ends(mark: bytes) -> _Mark:
    def found(file: BinaryIO) -> bool:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        return mark in file.read(_TAIL)

    return found


def _has_entry(name: str, mark: bytes) -> _Mark:
    """Of this name and with these bytes at its beginning, if the file is a zip."""

    def found(file: BinaryIO) -> bool:
        try:
            with zipfile.ZipFile(file) as archive, archive.open(name) as entry:
                return mark in entry.read(_LOOKED_AT)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            LookupError,
            NotImplementedError,
            ValueError,
        ):
            return False  # another program's, or damaged

    return found


class OutputKind(Enum):
    """Kinds of files that are written where users say, each with the marks by which Flint knows its own.

    Kinds without a mark are for people to edit: a file that is there is replaced by force alone.
    """

    WORKLOAD = ("a .flint file", _has_entry("manifest.json", b'"flint.workload/'))
    PAGE = (
        "a page of flint",
        _begins(
            rb'<!DOCTYPE html>\s*<html [^>]*>\s*<head>\s*<meta name="generator" content="flint">'
        ),
    )
    GRAPH = (
        "a graph of flint export",
        _begins(
            rb'\{\s*"schema": "flint\.graph/|<graphml [^>]*>\s*<!-- flint\.graph/|// flint\.graph/'
        ),
    )
    PROGRAM = ("a program of flint opt", _begins(rb"flint\.program/"))
    TIMELINE = ("a timeline of flint estimate", _begins(rb"\n.{1,5}\x50\xd4\x9c\xb1\xb2\x04"))
    JUNIT = (
        "a JUnit file of flint verify",
        _begins(rb'<\?xml [^>]*>\s*<testsuite name="flint verify"'),
    )
    COMMENT = ("a comment of flint verify", _begins(rb"<!-- flint verify -->"))
    DRAWING = ("a drawing of flint schedules", _begins(rb"<svg [^>]*>\s*<!-- flint schedules -->"))
    LEAKS = ("a leak report of flint anonymize", _begins(rb'\{\s*"schema": "flint\.leaks/'))
    TABLE = (
        "a table of flint explore",
        _begins(rb"status,devices,mesh,[^\n]*,code,reason,place,key\n"),
        _ends(b"flint.points/1"),
    )
    REQUESTS = (
        "a table of flint serve",
        _begins(rb"input_tokens,output_tokens,queued_s,scheduled_s,first_token_s,last_token_s,pre"),
    )
    SCHEDULE = ("a schedule of flint serve", _begins(rb'\{\s*"schema": "flint\.serve-schedule/'))
    LOCK = ("a lock file of flint run", _begins(rb'.*"schema": "flint\.lock/'))
    STUDY = ("a study of flint explore", _begins(rb"SQLite format 3\x00.{52}FLNT"))
    MODEL = ("a model file of flint propose", _begins(rb'"""[^\n]*\(written by flint propose\)'))
    RESULTS = ("results of flint propose", _begins(rb'\{"key": "[0-9a-f]{64}", "result": \{'))
    BENCHMARK = (
        "a part of a benchmark of flint export",
        _begins(
            rb'\{"(schema|flint)": "flint\.benchmark/|"""A recorded or captured step as a benchmark:'
            rb"|#!/bin/sh\n# The collectives of a step for nccl-tests"
        ),
    )
    CLUSTER = ("a cluster file",)
    KERNEL_TIMES = ("a table of measured kernels",)
    SCRIPT = ("a script of flint calibrate",)
    SERVING_TABLE = ("a table for another simulator",)

    def __init__(self, text: str, *marks: _Mark) -> None:
        self.text = text
        self._marks = marks

    @property
    def has_mark(self) -> bool:
        """Whether Flint knows files of this kind again."""
        return bool(self._marks)

    def is_in(self, path: Path) -> bool:
        """Whether Flint wrote the regular file at `path`, and as this kind. Raises OSError."""
        return any(self._is_marked(path, mark) for mark in self._marks)

    def _is_marked(self, path: Path, mark: _Mark) -> bool:
        with open_regular(path) as file:
            return mark(file)


def write_output(path: Path, data: bytes, kind: OutputKind, *, force: bool = False) -> None:
    """Write a file where a user said, whole or not at all.

    Raises FlintError as `refuse_to_replace`, and FL502 where it cannot be written.
    """
    refuse_to_replace(path, kind, force=force)
    write_atomically(path, data)


def refuse_to_replace(path: Path, kind: OutputKind, *, force: bool = False) -> None:
    """Raise FlintError for a file that may not, or cannot, be written. To be called before any work, too.

    FL508: something stands there that Flint did not write as `kind`, unless `force` names it. FL502: a
    directory, a device, a link that leads nowhere, a place that may not be written to.
    """
    try:
        if is_stream(path):
            return
        target = Path(os.path.realpath(path))
        _require_place(path, target)
        if not os.path.lexists(target) or force:
            return
        found = _found(target, kind)
    except OSError as error:
        raise cannot_write(path, error) from error
    if found:
        raise FlintError(
            "FL508", f"{path} {found}, and is not overwritten", help=_instead(kind, path, found)
        )


def _instead(kind: OutputKind, path: Path, found: str) -> str:
    if kind is OutputKind.LOCK:
        return f"move it away: flint run writes a new {path.name}"
    older = "older releases wrote none; " if found.startswith(_NO_MARK) else ""
    return f"{older}give another name, or --force (in Python force=True) to replace it"


def _found(target: Path, kind: OutputKind) -> str:
    """What of an existing file says that it must stay; "" for one that may be replaced."""
    if not os.stat(target).st_size:
        return ""  # nobody's loss: mktemp makes such
    if kind is OutputKind.WORKLOAD and _is_of_traces(target.parent):
        return "is a file of a trace"
    if kind.is_in(target):
        return ""
    other = next((k.text for k in OutputKind if k is not kind and k.is_in(target)), "")
    if other:
        return f"is {other}"
    return f"{_NO_MARK} as {kind.text}" if kind.has_mark else "exists, and may have been edited"


def _is_of_traces(folder: Path) -> bool:
    with contextlib.suppress(OSError), open_regular(folder / "manifest.json") as file:
        return _TRACES.match(file.read(_LOOKED_AT)) is not None
    return False


def _require_place(path: Path, target: Path) -> None:
    """Raise OSError where nothing can be written, FlintError for a link that leads nowhere."""
    if os.path.islink(path) and not target.parent.is_dir():
        raise FlintError(
            "FL502",
            f"cannot write {path}: it is a link to {target}, whose folder is missing",
            help="make the folder, or give another name",
        )
    if os.path.islink(target):
        raise OSError(0, "it is a symbolic link to itself", str(path))
    above = next(p for p in target.parents if os.path.lexists(p))
    if not above.is_dir():
        raise NotADirectoryError(20, f"{above} is not a directory", str(path))
    for needed in (above, target):
        if os.path.lexists(needed) and not os.access(needed, os.W_OK):
            raise PermissionError(13, f"{needed} is not writable", str(path))


def refuse_same_place(outputs: Sequence[tuple[str, Path]], inputs: Sequence[Path]) -> None:
    """Raise FlintError FL509 where an output is an input, or two outputs are one file.

    `outputs` by the names of their options. Names that differ in case alone are one: on some file
    systems they are.
    """
    taken: dict[str, str] = {}
    for option, path in outputs:
        if is_device(path):
            continue
        same = next((i for i in inputs if _is_same(i, path)), None)
        if same is not None:
            raise _same(f"{option} {path} is {same}, which is an input")
        place = unicodedata.normalize("NFC", os.path.realpath(path)).casefold()
        if place in taken:
            raise _same(f"{taken[place]} and {option} both write {path}")
        taken[place] = option


def is_device(path: Path) -> bool:
    """Whether a path is of something that takes bytes and keeps none: /dev/null, /dev/stdout, a pipe."""
    try:
        return is_stream(path)
    except OSError:
        return False


def _is_same(one: Path, other: Path) -> bool:
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        found, there = os.stat(one), os.stat(other)
    except (OSError, ValueError):
        return False
    return os.path.samestat(found, there) and stat.S_ISREG(found.st_mode)


def _same(message: str) -> FlintError:
    return FlintError("FL509", message, help="give another name")
