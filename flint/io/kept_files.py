"""Files that were there before a program is recorded: they stay as they are.

A script that trains writes over what its last run left: logs, states, configurations; trainers delete
old checkpoints. A capture is not a run, so that what the program does to an older file happens to a copy
that is thrown away, and is said. What it makes anew is written. Subprocesses and C++ are not seen.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from flint.errors import FlintError
from flint.io.scratch import locked_folder

#: Files up to this size are copied when the program changes them in place or appends to them.
_COPIED_BYTES = 2**30
#: How far apart the clocks of this machine and of its file systems may be.
_CLOCK_SECONDS = 60.0
#: Folders of caches and of Python's own and installed modules, whose files are made again.
_CACHES = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (
        os.path.expanduser("~/.cache"),
        *(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib")),
    )
)
#: Any function of the standard library's.
_Function = Callable[..., Any]


class KeptFiles:
    """Which files are older than a recording, and the copies that stand for them.

    `warn` gets a sentence about each. `began` is when the recording did, in seconds since the epoch.
    `moved` is asked first when a file is renamed: it says whether it did that itself.
    """

    def __init__(
        self,
        warn: Callable[[str], None],
        began: float,
        moved: Callable[[object, object], bool] = lambda source, target: False,
    ) -> None:
        self._warn, self._began, self._moved = warn, began, moved
        self._copies: dict[str, str] = {}
        self._folder = ""
        self._lock: int | None = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Inside, what Python does to older files happens to copies."""
        with ExitStack() as stack:
            stack.callback(self._forget)
            for owner, name, replacement in (
                (builtins, "open", self._open),
                (io, "open", self._open),
                (os, "remove", self._remove),
                (os, "unlink", self._remove),
                (os, "rename", self._rename),
                (os, "replace", self._rename),
                (shutil, "rmtree", self._remove_tree),
            ):
                original = getattr(owner, name)
                stack.callback(setattr, owner, name, original)
                setattr(owner, name, replacement(original))
            yield

    # --- which files ----------------------------------------------------------------------------

    def _is_old(self, path: str) -> bool:
        """Whether it is a file from before the recording, outside caches."""
        real = os.path.realpath(path)
        if real in self._copies:
            return True
        if real.startswith(_CACHES) or "__pycache__" in real:
            return False
        if not os.path.isfile(real):
            return False
        # What is of the future was written before the clock was set back.
        return not self._began <= os.stat(real).st_mtime <= time.time() + _CLOCK_SECONDS

    def _holds_old(self, folder: str) -> bool:
        return any(
            self._is_old(os.path.join(above, name))
            for above, _, names in os.walk(folder)
            for name in names
        )

    def _copy_of(self, path: str) -> str | None:
        return self._copies.get(os.path.realpath(path)) if self._copies else None

    def _copied(self, path: str, with_content: bool) -> str:
        """A copy that the program may change. Raises FlintError FL235 if it is too large for one."""
        if not self._folder:
            self._folder, self._lock = locked_folder()  # who kills this process removes it
        real = os.path.realpath(path)
        copy = os.path.join(self._folder, f"{len(self._copies)}-{os.path.basename(real)}")
        size = os.path.getsize(real)
        if with_content and size > _COPIED_BYTES:
            raise FlintError(
                "FL235",
                f"{os.path.basename(real)} is older than this capture, so it is kept unchanged, "
                f"and too large to copy ({size:,} bytes)",
                help="open it for reading, or let the program write another file",
            )
        if with_content:
            shutil.copyfile(real, copy)
        self._copies[real] = copy
        self._say(path, "changed")
        return copy

    def _say(self, path: str, done: str) -> None:
        name = os.path.basename(os.path.abspath(path))
        self._warn(f"{name} was not {done}, because it is older than this capture")

    def _forget(self) -> None:
        self._copies.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    # --- what takes the place of Python's functions ---------------------------------------------

    def _open(self, original: _Function) -> _Function:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            path = _path(file)
            if path is not None:
                copy = self._copy_of(path)
                writes = any(letter in mode for letter in "wa+")
                if copy is None and writes and self._is_old(path):
                    copy = self._copied(path, with_content="w" not in mode)
                file = copy or file
            return original(file, mode, *args, **kwargs)

        return opened

    def _remove(self, original: _Function) -> _Function:
        def removed(path: Any, *, dir_fd: int | None = None) -> None:
            named = _path(path)
            if dir_fd is None and named is not None and self._is_old(named):
                self._say(named, "deleted")
            else:
                original(path, dir_fd=dir_fd)

        return removed

    def _remove_tree(self, original: _Function) -> _Function:
        def removed(path: Any, *args: Any, **kwargs: Any) -> None:
            named = _path(path)
            if named is not None and os.path.isdir(named) and self._holds_old(named):
                self._say(named, "deleted")
            else:
                original(path, *args, **kwargs)

        return removed

    def _rename(self, original: _Function) -> _Function:
        def rename(src: Any, dst: Any, **kwargs: Any) -> None:
            source, target = _path(src), _path(dst)
            if self._moved(src, dst):
                return
            if source is not None and (self._is_old(source) or self._holds_old(source)):
                self._say(source, "renamed")
            elif target is not None and self._is_old(target):
                copy = self._copy_of(target) or self._copied(target, with_content=False)
                original(src, copy, **kwargs)
            else:
                original(src, dst, **kwargs)

        return rename


def _path(file: Any) -> str | None:
    """A path as text, None for a file that is open already."""
    if isinstance(file, (str, bytes, os.PathLike)):
        return os.fsdecode(file)
    return None
