"""Files that were there before the program was recorded: they stay as they are.

A script that trains writes over what its last run left: logs, states, configurations; trainers delete
old checkpoints. A capture is no run, so that what the program does to an older file happens to a copy
that is thrown away, and is said. What it makes anew is written.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches

KEPT = Patches()
#: Files up to this size are copied when the program changes them in place or appends to them.
_COPIED_BYTES = 2**30
#: Folders of caches and installed packages, whose files are made again.
_CACHES = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (
        os.path.expanduser("~/.cache"),
        sysconfig.get_paths()["purelib"],
        sys.prefix,
    )
)


class KeptFiles:
    """Which files are older than the recording, and the copies that stand for them."""

    def __init__(self, warn: Callable[[str], None], began: float) -> None:
        self._began = began  # seconds since the epoch
        self._warn = warn
        self._copies: dict[str, str] = {}
        self._folder = ""

    def copy_of(self, path: str) -> str | None:
        """Where the program finds a file that it changed before, None for any other."""
        return self._copies.get(os.path.realpath(path))

    def is_old(self, path: str) -> bool:
        """Whether it is a file from before the recording, outside of caches."""
        real = os.path.realpath(path)
        if real in self._copies:
            return True
        if real.startswith(_CACHES) or "__pycache__" in real:
            return False
        return os.path.isfile(real) and os.stat(real).st_mtime < self._began

    def holds_old(self, folder: str) -> bool:
        """Whether a folder has such a file anywhere."""
        return any(
            self.is_old(os.path.join(above, name))
            for above, _, names in os.walk(folder)
            for name in names
        )

    def copied(self, path: str, with_content: bool) -> str:
        """A copy that the program may change. Raises FlintError FL235 if it is too large for one."""
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="flint-kept-")
        real = os.path.realpath(path)
        copy = os.path.join(self._folder, f"{len(self._copies)}-{os.path.basename(real)}")
        if with_content and os.path.getsize(real) > _COPIED_BYTES:
            raise FlintError(
                "FL235",
                f"{Path(path).name} is older than this capture, which does not change it, and too "
                f"large to copy ({os.path.getsize(real):,} bytes)",
                help="open it for reading, or let the program write another file",
            )
        if with_content:
            shutil.copyfile(real, copy)
        self._copies[real] = copy
        self.say(path, "changed")
        return copy

    def say(self, path: str, done: str) -> None:
        """Warn that something was not done to a file or a folder."""
        self._warn(
            f"{os.path.basename(os.path.abspath(path))} was not {done}: it is older than this capture"
        )

    def forget(self) -> None:
        """Throw the copies away."""
        self._copies.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _kept(session: Session) -> KeptFiles:
    """Those of a session; in one that records nothing, no file is old."""
    return session.kept or KeptFiles(lambda sentence: None, 0.0)


def _path(file: Any) -> str | None:
    """A path as text, None for a file that is open already."""
    if isinstance(file, (str, bytes, os.PathLike)):
        return os.fsdecode(file)
    return None


@KEPT.replaces("builtins:open", "io:open")
def open_(session: Session, original: Function) -> Function:
    """Writing to an older file goes to a copy, and so does reading it afterwards."""

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        path = _path(file)
        if path is not None and session.kept:
            copy = _kept(session).copy_of(path)
            writes = any(letter in mode for letter in "wa+")
            if copy is None and writes and _kept(session).is_old(path):
                copy = _kept(session).copied(path, with_content="w" not in mode)
            file = copy or file
        return original(file, mode, *args, **kwargs)

    return opened


@KEPT.replaces("os:remove", "os:unlink")
def remove(session: Session, original: Function) -> Function:
    """Older files are not deleted."""

    def removed(path: Any, *, dir_fd: int | None = None) -> None:
        named = _path(path)
        if dir_fd is None and named is not None and _kept(session).is_old(named):
            _kept(session).say(named, "deleted")
        else:
            original(path, dir_fd=dir_fd)

    return removed


@KEPT.replaces("shutil:rmtree")
def remove_tree(session: Session, original: Function) -> Function:
    """Nor are folders that hold one."""

    def removed(path: Any, *args: Any, **kwargs: Any) -> None:
        named = _path(path)
        if named is not None and os.path.isdir(named) and _kept(session).holds_old(named):
            _kept(session).say(named, "deleted")
        else:
            original(path, *args, **kwargs)

    return removed


def _moving(name: str) -> None:
    @KEPT.replaces(f"os:{name}")
    def move(session: Session, original: Function) -> Function:
        """Older files keep their names, and nothing takes their place; checkpoints are not there."""

        def rename(src: Any, dst: Any, **kwargs: Any) -> None:
            source, target = _path(src), _path(dst)
            if session.files and session.files.moved(src, dst):
                return
            if source is not None and _kept(session).is_old(source):
                _kept(session).say(source, "renamed")
            elif target is not None and _kept(session).is_old(target):
                copy = _kept(session).copy_of(target) or _kept(session).copied(target, False)
                original(src, copy, **kwargs)
            else:
                original(src, dst, **kwargs)

        return rename


for _name in ("rename", "replace"):
    _moving(_name)
