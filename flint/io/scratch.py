"""Folders in the system's temporary directory, which no run leaves behind.

A folder is locked for as long as its process lives. What a killed process left, the next one
removes: only folders that nobody has locked, that are this user's, and that hold our mark.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from flint.io.locks import endings, is_still, try_lock

_PREFIX = "flint-run-"
_NAME = re.compile(_PREFIX + r"[a-z0-9_]{8}")
_MARK = ".flint-scratch"
#: How often, and how many seconds apart, a folder is removed that is not empty at the end.
_TRIES, _TRY_SECONDS = 20, 0.02


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, removed at the end. Removes first what killed processes left.

    Raises OSError if the temporary directory cannot be written.
    """
    remove_leftovers()
    folder, handle = "", None

    def remove() -> None:
        nonlocal handle
        if folder:
            remove_tree(folder)
        if handle is not None:
            os.close(handle)
            handle = None

    with endings().undoing(remove):
        with endings().whole():
            folder, handle = locked_folder()
        yield Path(folder)


def remove_tree(folder: str) -> None:
    """Remove a folder into which a process may still write that was killed a moment ago."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(_TRY_SECONDS)


def remove_leftovers() -> None:
    """Remove the folders of processes that no longer live."""
    with contextlib.suppress(OSError):
        with endings().whole():  # Python tries the folder out with a file when it is asked first
            place = tempfile.gettempdir()
        with os.scandir(place) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name):
                    with contextlib.suppress(OSError):  # another process removes it, too
                        _remove_if_left(Path(entry.path))


def locked_folder() -> tuple[str, int | None]:
    """A new folder, and the descriptor that keeps it from being a leftover (None where none can).

    Whoever calls it removes both.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            handle = _opened(folder)
        except FileNotFoundError:  # taken for a leftover and removed before it was opened
            continue
        if handle is None or (try_lock(handle) is not False and is_still(folder, handle)):
            (folder / _MARK).touch()
            return str(folder), handle
        os.close(handle)  # it was taken for a leftover before it was locked


def _opened(folder: Path) -> int | None:
    if not hasattr(os, "O_DIRECTORY"):
        return None
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _remove_if_left(folder: Path) -> None:
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or not hasattr(os, "geteuid"):
        return
    handle = _opened(folder) if found.st_uid == os.geteuid() else None
    if handle is None:
        return
    try:
        if try_lock(handle) and is_still(folder, handle):
            if (folder / _MARK).exists():
                shutil.rmtree(folder)
            else:
                folder.rmdir()  # made and not yet marked, or not ours and then not to be removed
    finally:
        os.close(handle)
