"""What a capture was made of: files that were read, modules that were found, folders that were listed.

A hook of Python's audit events writes down each of them while the capture runs, in its process and
in those that it starts, with the time and size of each file then. What lies with Python or with
installed packages is not listed: their names and versions stand for it (`environment_of`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import pkgutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any

#: Names the file to which a process and its children write what they read, and the folder whose
#: files are inputs wherever it lies: the repository.
RECORD, ROOT = "FLINT_RECORD_INPUTS", "FLINT_RECORD_ROOT"
#: Variables that change what frameworks do.
_PREFIXES = ("JAX_", "XLA_", "TORCH", "PYTORCH_", "FLINT_", "LIBTPU_", "TF_")
#: Variables of Flint that do not change a result, or are set for each capture anew.
_OWN = (RECORD, ROOT, "FLINT_CHILD", "FLINT_LOG", "FLINT_CHILD_SECONDS", "FLINT_CHILD_IDLE_SECONDS")
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/run", "/var")
#: Folders of a project that hold no inputs.
_INSIDE = (".git", ".flint_cache")
#: Who lists folders to find modules and packages, and nothing else.
_IMPORT = ("<frozen importlib", importlib.metadata.__file__, pkgutil.__file__)
#: The digest of a file that changed while it was read: nothing has it.
CHANGED = "changed"
#: Stands for time and size of a file that the model writes.
MADE = "made"
#: What imports find in a folder, beside packages.
_MODULES = (".py", ".so", ".pyd", ".dist-info", ".egg-info")


class ReadInputKind(StrEnum):
    """What of a path a capture depends on."""

    FILE = "file"  #: its content, or that it is not there
    MODULES = "modules"  #: names of modules and packages in a folder that imports looked into
    NAMES = "names"  #: names of all that is in a folder that the model listed


@dataclass(frozen=True, slots=True)
class ReadInput:
    """One thing that was read, and the digest of what was there."""

    kind: ReadInputKind
    path: str
    digest: str

    def is_current(self) -> bool:
        """Whether the same is there now."""
        return digest_of(self.kind, self.path) == self.digest


def record_if_asked() -> None:
    """Write down what this process reads from here on, if its environment says where."""
    target = os.environ.get(RECORD)
    if target:
        _hooked(target, os.environ[ROOT])


@contextlib.contextmanager
def inputs_noted(root: Path) -> Iterator[Callable[[], tuple[ReadInput, ...]]]:
    """Note what this process reads inside, whatever of it was loaded before; gives what asks for it so far.

    Files below `root` are inputs wherever it lies.
    """
    with tempfile.TemporaryDirectory(prefix="flint-inputs-") as folder:
        noted = Path(folder) / "noted"
        hook = _hooked(str(noted), str(root.resolve()))
        try:
            yield lambda: recorded(noted)
        finally:
            hook.stop()


def _hooked(target: str, root: str) -> _Hook:
    hook = _Hook(target, root)
    sys.addaudithook(hook)
    hook.watch_stat()
    importlib.invalidate_caches()  # folders that imports know already are listed once more
    for module in list(sys.modules.values()):
        hook.saw(ReadInputKind.FILE, getattr(module, "__file__", None))
    return hook


class _Hook:
    """The audit hook: appends a line for each path that it sees for the first time."""

    def __init__(self, target: str, root: str) -> None:
        self._file = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._seen: set[tuple[str, str]] = set()
        self._root = os.path.join(root, "")
        inside = {os.path.join(root, name, "") for name in _INSIDE}
        self._elsewhere = tuple(_elsewhere())
        temporary = {p for p in self._elsewhere if p.startswith(self._root) and p != self._root}
        self._never = tuple({*_packages(), *inside, *temporary})
        own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        self._always = (self._root, os.path.join(own, ""))  # Flint too, if it is a checkout

    def watch_stat(self) -> None:
        """Note files that are not there when somebody asks: no audit event tells of `os.path.exists`."""
        real = self._stat = os.stat

        @functools.wraps(real)
        def stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
            try:
                return real(path, *args, **options)
            except (FileNotFoundError, NotADirectoryError):
                if self._file >= 0 and options.get("dir_fd") is None:
                    self._missed(path)
                raise

        for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            supported.add(stat)  # copies of files ask whether os.stat is among them
        os.stat = stat

    def _missed(self, path: Any) -> None:
        by = sys._getframe(2).f_code.co_filename
        if not by.startswith(_IMPORT) and by != digest_of.__code__.co_filename:
            self.saw(ReadInputKind.FILE, path if isinstance(path, int) else os.fspath(path))

    def stop(self) -> None:
        """Write nothing more: Python keeps an audit hook to its end."""
        os.stat = self._stat
        file, self._file = self._file, -1
        os.close(file)

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._file < 0:
            return
        if event == "open":
            path, mode, flags = arguments
            self._opened(path, mode, flags)
        elif event == "os.mkdir":
            self._made(arguments[0])
        elif event in ("os.listdir", "os.scandir"):
            lists = sys._getframe(1).f_code.co_filename
            if lists == digest_of.__code__.co_filename:
                return  # to see whether inputs are as they were: no reading by the model
            imports = lists.startswith(_IMPORT)
            kind = ReadInputKind.MODULES if imports else ReadInputKind.NAMES
            self.saw(kind, arguments[0] if arguments[0] is not None else ".")

    def _opened(self, path: object, mode: object, flags: object) -> None:
        makes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        if makes or (isinstance(mode, str) and set(mode) & set("wax")):
            self._made(path)
        else:
            self.saw(ReadInputKind.FILE, path)

    def saw(self, kind: ReadInputKind, path: object) -> None:
        """Write down a path, if it is an input and is new."""
        whole = _whole(path)
        known = whole is None or (kind, whole) in self._seen or (MADE, whole) in self._seen
        if whole is None or known or not self._is_input(whole):
            return
        self._seen.add((kind, whole))
        self._tell(kind, whole, _stamp(whole) if kind is ReadInputKind.FILE else "")

    def _made(self, path: object) -> None:
        """Write down a file that is written: what is read of it from here on is the model's own."""
        whole = _whole(path)
        if whole is None or (MADE, whole) in self._seen or not self._is_input(whole):
            return
        self._seen.add((MADE, whole))
        self._tell(ReadInputKind.FILE, whole, MADE)

    def _tell(self, kind: ReadInputKind, path: str, stamp: str) -> None:
        os.write(self._file, f"{json.dumps([kind, path, stamp])}\n".encode())

    def _is_input(self, path: str) -> bool:
        folder = os.path.join(path, "")  # so that a folder itself is in itself
        if folder.startswith(self._never):
            return False
        return folder.startswith(self._always) or not folder.startswith(self._elsewhere)


def _stamp(path: str) -> str:
    """Time and size of a file; "" if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_mtime_ns} {found.st_size}"


def _whole(path: object) -> str | None:
    """A whole path, that of the source for a compiled module; None of a descriptor."""
    text = os.fsdecode(path) if isinstance(path, bytes) else path
    return _source(os.path.abspath(text)) if isinstance(text, str) else None


def _source(path: str) -> str:
    if not path.endswith(".pyc"):
        return path
    folder, name = os.path.split(path)
    if os.path.basename(folder) != "__pycache__":
        return path
    return os.path.join(os.path.dirname(folder), name.split(".")[0] + ".py")


def _packages() -> Iterable[str]:
    """Where Python and installed packages lie."""
    paths = sysconfig.get_paths()
    named = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    named |= {p for p in sys.path if p.endswith(("site-packages", "dist-packages"))}
    return (os.path.join(os.path.abspath(path), "") for path in named)


def _elsewhere() -> Iterable[str]:
    """Where the system's and temporary files lie."""
    named = {tempfile.gettempdir(), os.path.expanduser("~/.cache"), *_SYSTEM}
    named |= {os.environ[name] for name in ("FLINT_CACHE_DIR",) if os.environ.get(name)}
    return (os.path.join(os.path.abspath(path), "") for path in named)


def digest(data: bytes) -> str:
    """What tells contents apart, in hexadecimal digits."""
    return blake2b(data, digest_size=16).hexdigest()


def digest_of(kind: ReadInputKind | str, path: str) -> str:
    """The digest of what an input is now; "" if it is not there."""
    try:
        if kind == ReadInputKind.FILE:
            return digest(Path(path).read_bytes())
        names = os.listdir(path)
    except OSError:
        return ""
    if kind == ReadInputKind.MODULES:
        names = [n for n in names if n.endswith(_MODULES) or _is_package(path, n)]
    else:
        names = [n for n in names if not n.startswith(".") and n != "__pycache__"]
    return digest("\0".join(sorted(names)).encode())


def _is_package(folder: str, name: str) -> bool:
    return os.path.isfile(os.path.join(folder, name, "__init__.py"))


def recorded(file: Path) -> tuple[ReadInput, ...]:
    """The inputs that were written down in a file, sorted.

    A file that is not as it was when it was read has the digest CHANGED: it is never current. One
    that was not there before it was written is not an input.
    """
    lines = file.read_text().splitlines() if file.exists() else []
    stamps: dict[tuple[ReadInputKind, str], set[str]] = {}
    for kind, path, stamp in map(json.loads, lines):
        stamps.setdefault((ReadInputKind(kind), path), set()).add(stamp)
    return tuple(
        ReadInput(kind, path, _digest_if_same(kind, path, seen))
        for (kind, path), seen in sorted(stamps.items())
        if seen != {MADE} and seen != {MADE, ""}
    )


def _digest_if_same(kind: ReadInputKind, path: str, seen: set[str]) -> str:
    if kind is ReadInputKind.FILE and seen - {MADE} != {_stamp(path)}:
        return CHANGED
    return digest_of(kind, path)


def environment_of(variables: Iterable[str]) -> dict[str, str]:
    """What a capture depends on beside files: versions, Flint itself, variables of the environment."""
    names = {n for n in os.environ if n.startswith(_PREFIXES)} | set(variables)
    names -= set(_OWN)
    folders = _installed_in()
    packages = sorted(
        name
        for folder in folders
        for name in _listed(folder)
        if name.endswith((".dist-info", ".egg-info", ".pth", ".egg-link"))
    )
    installed = digest("\0".join(packages).encode())
    found = {f"${name}": os.environ.get(name, "") for name in sorted(names)}
    return {
        "python": sys.version,
        "packages": installed,
        "flint": _installed_flint(folders),
        **found,
    }


def _installed_in() -> list[str]:
    """Folders of installed packages. A checkout on `sys.path` is none, whatever a build left in it."""
    return [*dict.fromkeys(p for p in sys.path if p.endswith(("site-packages", "dist-packages")))]


def _installed_flint(folders: list[str]) -> str:
    """A digest of Flint's installed files, which may change without its version; "" of a checkout."""
    for found in importlib.metadata.distributions(name="flint-ir", path=folders):
        return digest((found.read_text("RECORD") or "").encode())
    return ""


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
