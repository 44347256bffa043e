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
from collections.abc import Iterator
from pathlib import Path

from flint.io.locks import is_still, try_lock

_PREFIX = "flint-run-"
_NAME = re.compile(_PREFIX + r"[a-z0-9_]{8}")
_MARK = ".flint-scratch"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, removed at the end. Removes first what killed processes left.

    Raises OSError if the temporary directory cannot be written.
    """
    remove_leftovers()
    folder, handle = _made()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def remove_leftovers() -> None:
    """Remove the folders of processes that no longer live."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # another process removes it, too
                    _remove_if_left(Path(entry.path))


def _made() -> tuple[Path, int | None]:
    """A new folder, and the descriptor that keeps it locked (None where folders cannot be)."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            handle = _opened(folder)
        except FileNotFoundError:  # taken for a leftover and removed before it was opened
            continue
        if handle is None or (try_lock(handle) is not False and is_still(folder, handle)):
            (folder / _MARK).touch()
            return folder, handle
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
