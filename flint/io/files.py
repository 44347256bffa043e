"""Files that are read only if they are files, and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from flint.errors import FlintError
from flint.io.locks import endings, locked


def cannot_write(path: Path, error: OSError) -> FlintError:
    """The FlintError FL502 for an operating system error while writing `path`."""
    return FlintError(
        "FL502",
        f"cannot write {path}: {error.strerror or error}",
        help="free some space or choose another place; no half-written file was left behind",
    )


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file. A pipe or device is neither waited for nor read.

    Raises OSError: what the system says, EINVAL for what is not a regular file, EFBIG above
    `most_bytes`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most_bytes + 1) if size <= most_bytes else b""
    size = max(size, len(data))  # files of /proc say that they are empty
    if size > most_bytes:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {most_bytes:,}", str(path))
    return data


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading. Raises OSError, EINVAL for a directory, pipe or device."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except ValueError as error:  # a null in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    try:
        if what := _irregular(os.fstat(handle).st_mode):
            why = f"it is {what}, not a regular file"
            raise OSError(errno.EINVAL, why, str(path))
        with os.fdopen(handle, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(handle)


def _irregular(mode: int) -> str:
    """What a file is that is not a regular one; "" for a regular one."""
    if stat.S_ISREG(mode):
        return ""
    return "a directory" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    A link is followed; the file that is replaced keeps its mode. What is not a file that can be
    replaced (a pipe, a terminal, /dev/stdout) is written to as it is. Raises FlintError FL502
    (disk full, no permission, a directory, a pipe that nobody reads); nothing else is left then.
    """
    try:
        target = Path(os.path.realpath(path))
        if is_stream(path):
            _write_through(path, data)
        else:
            with folder_for(target), locked(target.with_name(f".{target.name}.flint-lock")):
                _replace_file(target, data)
    except OSError as error:
        raise cannot_write(path, error) from error


def is_stream(path: Path) -> bool:
    """Whether a path is of something that takes bytes and keeps none: a pipe, /dev/null, /dev/stdout.

    Raises OSError for a directory, and for a disk, which would lose what is on it.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError as error:  # a null in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "it is a disk", str(path))
    named = os.path.abspath(path)
    if named.startswith(("/dev/", "/proc/")) and not named.startswith("/dev/shm/"):
        return True  # /dev/stdout may be a file: what stands there stays
    return not stat.S_ISREG(mode)


def _write_through(path: Path, data: bytes) -> None:
    """Append to what is there. A pipe is not waited for, only its reader once it has one."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "wb") as out:
        os.set_blocking(handle, True)
        out.write(data)


@contextlib.contextmanager
def folder_for(path: Path) -> Iterator[None]:
    """The folders around a place that is written to, made if need be; those that stay empty go again."""
    made = [folder for folder in path.parents if not os.path.lexists(folder)]

    def remove() -> None:
        for folder in made:
            with contextlib.suppress(OSError):  # it is not empty, or never was there
                folder.rmdir()

    with endings().undoing(remove):
        path.parent.mkdir(parents=True, exist_ok=True)
        yield


def _replace_file(path: Path, data: bytes) -> None:
    """Write beside `path`, which nobody else does now, and rename."""
    partial = path.with_name(f".{path.name}.flint-part")
    mode = None
    if path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    with endings().undoing(lambda: partial.unlink(missing_ok=True)):
        partial.unlink(missing_ok=True)  # of a process that was killed
        with partial.open("xb") as out:
            out.write(data)
        if mode is not None:
            os.chmod(partial, mode)
        os.replace(partial, path)
