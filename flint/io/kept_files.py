"""Files that were there before a program is recorded: they stay as they are.

A script that trains writes over what its last run left: logs, states, configurations; trainers delete
old checkpoints. A capture is not a run, so that what the program does to an older file happens to a copy
that is thrown away, and is said. What it makes anew is written. A change that comes by a way that no
function here stands for is refused, as Python tells of each (`sys.addaudithook`). Subprocesses and C++
are not seen, except where they are told to `path_for`.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import shutil
import stat
import sys
import sysconfig
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import chain
from typing import Any
from urllib.parse import unquote

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
#: Flags of `os.open` with which a file may change.
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND
#: Functions that take descriptors, and the like.
_ABLE = (os.supports_dir_fd, os.supports_fd, os.supports_effective_ids, os.supports_follow_symlinks)
#: Any function of the standard library's.
_Function = Callable[..., Any]


class KeptFiles:
    """Which files are older than a recording, and the copies that stand for them.

    `warn` gets a sentence about each. `began` is when the recording did, in seconds since the epoch.
    """

    def __init__(self, warn: Callable[[str], None], began: float) -> None:
        self._warn, self._began = warn, began
        self._copies: dict[str, str] = {}
        self._gone: set[str] = set()  # what the program takes to be deleted
        self._own: set[str] = set()  # what it made, whatever time it has: copies keep the old one
        self._folder = ""
        self._lock: int | None = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Inside, what Python does to older files happens to copies."""
        with contextlib.suppress(ImportError):  # Python may be built without
            import sqlite3  # noqa: F401 - its functions are found by their modules
        instead = {id(original): stand_in for original, stand_in in self._stand_ins()}
        with ExitStack() as stack:
            stack.callback(self._forget)
            _add_hook()
            _ON.append(self)
            stack.callback(_ON.remove, self)
            for able in _ABLE:  # shutil asks whether os.stat is among them
                added = {instead[id(function)] for function in able if id(function) in instead}
                able.update(added)
                stack.callback(able.difference_update, added)
            for module in list(sys.modules.values()):
                # Modules may have bound a function to a name of their own.
                for name, value in _bound(module, instead, _SEEN.get()):
                    stack.callback(vars(module).__setitem__, name, value)
                    vars(module)[name] = instead[id(value)]
            yield

    def _stand_ins(self) -> Iterator[tuple[_Function, _Function]]:
        changed, read = self._on_copy(lambda *_, **__: "+"), self._on_copy(lambda *_, **__: "")
        attributes = self._on_copy(lambda *_, **__: "a")
        for original, make in (
            (builtins.open, self._on_copy(_mode, "file")),
            (os.open, self._on_copy(_mode_of_flags)),
            (os.truncate, changed),
            (os.utime, attributes),
            (os.chmod, attributes),
            (os.stat, read),
            (os.access, read),
            (os.remove, self._remove),
            (os.unlink, self._remove),
            (os.rename, self._rename),
            (os.replace, self._rename),
            (os.mkdir, self._make(0)),
            (os.symlink, self._make(1, own=True)),
            (os.link, self._make(1)),
            (os.listdir, self._listed),
            (os.scandir, self._scanned),
            (shutil.rmtree, self._remove_tree),
        ):
            yield original, make(original)
        if "sqlite3" in sys.modules:
            yield sys.modules["sqlite3"].connect, self._connect(sys.modules["sqlite3"].connect)

    def path_for(self, file: object, how: str = "w") -> object:
        """The path to use in the place of a file's: of its copy, if it has one or needs one.

        `how`: "w" empties it, "+" changes it, "x" makes it, "a" changes its attributes, "" reads it.
        Raises FlintError FL235 if it is too large to copy.
        """
        path = _path(file) if how or self._copies else None
        if path is None:
            return file
        copy = self._copies.get(_place(path)) or self._copies.get(os.path.realpath(path))
        changes = how and (how != "x" or _place(path) in self._gone)
        if copy is None and changes and self._is_old(path):
            if how == "a":
                self._say(path, "changed")
                copy = self._in_scratch("attributes")
                open(copy, "wb").close()
            else:
                copy = self._copied(path, os.path.realpath(path), with_content=how == "+")
        if copy is None and how not in ("", "a"):
            self._own.add(_place(path))
        return copy or file

    def unwritten(self, path: str, content: bytes | None) -> str:
        """A file, or with None a folder, that the program wrote and finds again, but that is not there.

        Returns where it is instead.
        """
        copy = self._copies[os.path.realpath(path)] = self._in_scratch(os.path.basename(path))
        if content is None:
            os.mkdir(copy)
        with open(os.path.join(copy, ".metadata") if content is None else copy, "wb") as file:
            file.write(content or b"")
        return copy

    # --- which files ----------------------------------------------------------------------------

    def _is_old(self, path: str, *, itself: bool = False) -> bool:
        """Whether a file is from before the recording, outside caches; of a link `itself`, or its target."""
        real = _place(path) if itself else os.path.realpath(path)
        if self not in _ON or real in self._own or real.startswith(_CACHES):
            return False
        if "__pycache__" in real or real.endswith(".pyc"):
            return False
        try:
            found = os.lstat(real)
        except (OSError, ValueError):
            return False
        # What is of the future was written before the clock was set back.
        new = self._began <= found.st_mtime <= time.time() + _CLOCK_SECONDS
        return not new and (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode))

    def _holds_old(self, folder: str) -> bool:
        return not os.path.islink(folder) and any(
            self._is_old(os.path.join(above, name), itself=True)
            for above, folders, names in os.walk(folder)
            for name in (*names, *folders)
        )

    def _in_scratch(self, name: str) -> str:
        if not self._folder:
            self._folder, self._lock = locked_folder()  # who kills this process removes it
        folder = os.path.join(self._folder, str(len(os.listdir(self._folder))))
        os.mkdir(folder)
        return os.path.join(folder, name)

    def _copied(self, path: str, key: str, with_content: bool) -> str:
        """A copy that the program may change. Raises FlintError FL235 if it is too large for one."""
        if with_content and (size := os.lstat(key).st_size) > _COPIED_BYTES:
            raise FlintError(
                "FL235",
                f"{os.path.basename(key)} is older than this capture, so it is kept unchanged, "
                f"and too large to copy ({size:,} bytes)",
                help="open it for reading, or let the program write another file",
            )
        copy = self._in_scratch(os.path.basename(key))
        if with_content:
            shutil.copyfile(key, copy)
        self._copies[key] = copy
        self._say(path, "changed")
        return copy

    def _say(self, path: str, done: str) -> None:
        name = os.path.basename(os.path.abspath(path))
        self._warn(f"{name} was not {done}, because it is older than this capture")

    def _forget(self) -> None:
        self._copies.clear()
        self._own.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    # --- what takes the place of Python's functions ---------------------------------------------

    def _on_copy(
        self, how: Callable[..., str], first: str = "path"
    ) -> Callable[[_Function], _Function]:
        """Functions of a path, which may have the name `first`; `how` says of the rest what they do."""

        def make(original: _Function) -> _Function:
            def replaced(*args: object, **kwargs: object) -> object:
                if kwargs.get("dir_fd") is None:
                    file, *rest = args or (kwargs.pop(first),)
                    args = (self.path_for(file, how(*rest, **kwargs)), *rest)
                return original(*args, **kwargs)

            return replaced

        return make

    def _connect(self, original: _Function) -> _Function:
        """A database may be the path of a file, or a URI."""

        def connected(database: object, *args: object, **kwargs: object) -> object:
            copy = self.path_for(_of_uri(database), "" if _only_reads(database) else "+")
            return original(database if copy == _of_uri(database) else copy, *args, **kwargs)

        return connected

    def _remove(self, original: _Function) -> _Function:
        def removed(path: object, *, dir_fd: int | None = None) -> None:
            named = _path(path) if dir_fd is None else None
            if named is not None and self._is_old(named, itself=True):
                self._say(named, "deleted")
                self._gone.add(_place(named))
            elif named is None or self._copies.pop(_place(named), None) is None:
                original(path, dir_fd=dir_fd)

        return removed

    def _remove_tree(self, original: _Function) -> _Function:
        def removed(path: object, *args: object, **kwargs: object) -> None:
            named = _path(path)
            if named is not None and self._holds_old(named):
                self._say(named, "deleted")
                self._gone.add(_place(named))
            elif named is None or not self._move(_place(named), None):
                original(path, *args, **kwargs)

        return removed

    def _make(self, at: int, *, own: bool = False) -> Callable[[_Function], _Function]:
        """What is made where the program takes an older one to be deleted is there already.

        A link is the program's `own`, another name of a file is not.
        """

        def make(original: _Function) -> _Function:
            def made(*args: object, **kwargs: object) -> None:
                path = _path(args[at]) if len(args) > at else None
                if path is None or _place(path) not in self._gone:
                    original(*args, **kwargs)
                    self._own.update({_place(path)} if path is not None and own else ())
                else:
                    self._gone.remove(_place(path))

            return made

        return make

    def _rename(self, original: _Function) -> _Function:
        def rename(src: object, dst: object, **kwargs: object) -> None:
            source, target = _path(src), _path(dst)
            if kwargs or source is None or target is None:
                original(src, dst, **kwargs)
            elif self._is_old(source, itself=True) or self._holds_old(source):
                self._say(source, "renamed")
            elif _place(source) in self._copies:
                self._move(_place(source), _place(target))
            else:
                place = _place(target)
                if self._is_old(target, itself=True):
                    dst = self._copies.get(place) or self._copied(target, place, with_content=False)
                original(src, dst)
                self._move(_place(source), place)
                if place not in self._copies:
                    self._own_at(_place(source), place)

        return rename

    def _own_at(self, source: str, target: str) -> None:
        """What the program made at a place, or in a folder, is at another one now."""
        inside = source + os.sep if os.path.isdir(target) else source
        moved = {p for p in self._own if p.startswith(inside)} if inside != source else {source}
        self._own |= {target + p[len(source) :] for p in moved & self._own}
        self._own -= moved

    def _move(self, source: str, target: str | None) -> bool:
        """Give the copies at a place and below it another one, or none; whether one is at it."""
        found = source in self._copies
        for place in [p for p in self._copies if p == source or p.startswith(source + os.sep)]:
            copy = self._copies.pop(place)
            if target is not None:
                self._copies[target + place[len(source) :]] = copy
        return found

    def _unwritten_in(self, folder: object) -> list[str]:
        """The copies in a folder of files that are not there."""
        path = _path(folder) if self._copies else None
        if path is None:
            return []
        real = os.path.realpath(path)
        return [
            copy
            for place, copy in self._copies.items()
            if os.path.dirname(place) == real and not os.path.lexists(place)
        ]

    def _listed(self, original: _Function) -> _Function:
        def listed(path: object = ".") -> list[object]:
            found: list[object] = original(self.path_for(path, ""))
            names = [os.path.basename(copy) for copy in self._unwritten_in(path)]
            return found + (list(map(os.fsencode, names)) if isinstance(path, bytes) else names)

        return listed

    def _scanned(self, original: _Function) -> _Function:
        def scanned(path: object = ".") -> object:
            copies = self._unwritten_in(path)
            scans = [original(os.path.dirname(copy)) for copy in copies]
            found = original(self.path_for(path, ""))
            return _Entries([found, *scans]) if scans else found

        return scanned

    def _refuse(self, event: str, args: tuple[object, ...]) -> None:
        """Python is about to change files. Raises FlintError FL235 if one is old."""
        changes = _CHANGES.get(event)
        for path in filter(None, map(_path, changes(args))) if changes else ():
            if self._is_old(path, itself=event != "open"):
                self._say(path, "changed")
                raise FlintError(
                    "FL235",
                    f"{os.path.basename(path)} is older than this capture, so it is kept unchanged, and "
                    "what would change it cannot be given a copy",
                    help="use open(), os.open(), os.remove() or os.replace(), or another file",
                )


#: The guards that are on. Python keeps an audit hook to its end: one asks all of them.
_ON: list[KeptFiles] = []


@cache
def _add_hook() -> None:
    def hook(event: str, args: tuple[object, ...]) -> None:
        for guard in _ON:
            guard._refuse(event, args)

    sys.addaudithook(hook)


class _Entries(ExitStack):
    """What `os.scandir` returns, of several folders."""

    def __init__(
        self, scans: Sequence[contextlib.AbstractContextManager[Iterator[os.DirEntry[str]]]]
    ) -> None:
        super().__init__()
        self._entries = chain(*map(self.enter_context, scans))

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> os.DirEntry[str]:
        return next(self._entries)


#: What Python says before it changes files, and which paths that concerns.
_CHANGES: dict[str, Callable[..., tuple[object, ...]]] = {
    # What makes a file only if none is there changes none.
    "open": lambda args: args[:1] if args[2] & _WRITES and not args[2] & os.O_EXCL else (),
    "os.truncate": lambda args: args[:1],
    "os.remove": lambda args: (_in_folder(*args),),
    "os.rename": lambda args: (_in_folder(args[0], args[2]), _in_folder(args[1], args[3])),
    "sqlite3.connect": lambda args: () if _only_reads(args[0]) else (_of_uri(args[0]),),
}


def _mode(mode: str = "r", *rest: object, **options: object) -> str:
    """What `open` does, as in `path_for`."""
    return next((how for letter, how in zip("wxa+", "wx++", strict=True) if letter in mode), "")


def _mode_of_flags(flags: int, *rest: object, **options: object) -> str:
    """As `_mode`, of `os.open`."""
    if flags & os.O_EXCL and flags & os.O_CREAT:
        return "x"
    return "w" if flags & os.O_TRUNC else "+" if flags & _WRITES else ""


def _of_uri(database: object) -> object:
    """The path of a database of sqlite."""
    if isinstance(database, str) and database.startswith("file:"):
        return unquote(database[5:].partition("?")[0])
    return database


def _only_reads(database: object) -> bool:
    return isinstance(database, str) and database.startswith("file:") and "mode=ro" in database


#: By the number of a module: the module, how many names it had, and those of functions to replace.
_Seen = Mapping[int, tuple[object, int, tuple[str, ...]]]
_SEEN: ContextVar[_Seen] = ContextVar(
    "modules that were looked through", default=types.MappingProxyType({})
)


def look_through_modules() -> None:
    """Before a process forks for programs: a fork that looks at each name of each module copies their pages."""
    with contextlib.suppress(ImportError):
        import sqlite3  # noqa: F401 - as where programs are guarded
    instead = dict.fromkeys(id(f) for f, _ in KeptFiles(lambda _: None, 0.0)._stand_ins())
    found = dict(_SEEN.get())
    for module in list(sys.modules.values()):
        if issubclass(type(module), types.ModuleType):
            names = tuple(name for name, _ in _bound(module, instead, found))
            found[id(module)] = (module, len(object.__getattribute__(module, "__dict__")), names)
    _SEEN.set(found)


def _bound(module: object, instead: Mapping[int, object], seen: _Seen) -> list[tuple[str, object]]:
    """The names in a module of Python's language, and in `builtins`, of functions that something stands in
    for; lazy modules are not loaded by that."""
    if not issubclass(type(module), types.ModuleType):  # of C libraries some only say so
        return []
    names = object.__getattribute__(module, "__dict__")
    before, count, bound = seen.get(id(module), (None, 0, ()))
    if before is module and count == len(names):
        return [(name, names[name]) for name in bound if id(names.get(name)) in instead]
    if module is not builtins and names.get("__name__") in sys.builtin_module_names:
        return []
    held = list(names.items())
    if instead.keys().isdisjoint([id(value) for _, value in held]):
        return []
    return [(name, value) for name, value in held if id(value) in instead]


def _place(path: str) -> str:
    """Where an entry of a folder is, which may be a link."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def _in_folder(path: object, folder: int) -> object:
    """A path that may be relative to an open folder, where Linux tells its name."""
    named = _path(path)
    return path if named is None or folder < 0 else os.path.join(f"/proc/self/fd/{folder}", named)


def _path(file: object) -> str | None:
    """A path as text, None for a file that is open already."""
    if isinstance(file, (str, bytes, os.PathLike)):
        return os.fsdecode(file)
    return None
