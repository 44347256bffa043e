"""The directory of a trace: whose it is, and how a new trace takes the place of an old one.

Only what a manifest lists is Flint's. A new trace is written beside the old one, under a hidden
name; the two change places in one step where the system has it (Linux), else in two renames; the
old one goes last. One lock file keeps writers apart, so that whatever stands under a hidden name
while the lock is held was left by a process that ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flint.backends.chakra.manifest import NAME, Listed, matches, read_manifest
from flint.errors import FlintError
from flint.io.files import cannot_write, folder_for
from flint.io.locks import endings, locked

_NAMED = 5
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class TracePlace:
    """Where a trace directory stands (links followed), and the hidden names beside it."""

    path: Path

    @classmethod
    def of(cls, directory: Path) -> TracePlace:
        """Follow links. Raises FlintError FL502 for a path that no file system takes."""
        try:
            place = cls(Path(os.path.realpath(directory)))
            if not place.path.name:
                raise ValueError("it is the root of all directories")
            with contextlib.suppress(FileNotFoundError):
                os.lstat(place.new / NAME.ljust(40, "_"))
        except (OSError, ValueError) as error:
            raise _unusable(directory, getattr(error, "strerror", None) or str(error)) from error
        if place.path.is_symlink():
            raise _unusable(directory, "it is a symbolic link to itself")
        return place

    @property
    def lock(self) -> Path:
        """The file that a writer holds."""
        return self.path.with_name(f".{self.path.name}.flint-lock")

    @property
    def new(self) -> Path:
        """Where the new trace is written; then where the old one is, until it is removed."""
        return self.path.with_name(f".{self.path.name}.flint-new")

    @property
    def old(self) -> Path:
        """Where the old trace is while two renames replace it."""
        return self.path.with_name(f".{self.path.name}.flint-old")


def refuse_output(directory: Path, inputs: Sequence[Path] = ()) -> None:
    """Raise FlintError for a directory that a trace could not, or must not, be written to.

    To be called before work that would be lost. `inputs` are files that the work reads. FL501: it
    holds what Flint did not write, is the current directory or holds it or an input; FL502: it
    cannot be written; FL505: ASTRA-sim would ignore its files; FL506: another process writes there.
    What killed processes left of earlier writes is removed.
    """
    place = TracePlace.of(directory)
    refuse_ignored_path(directory)
    with _as_flint_errors(directory):
        _refuse_unwritable(place.path)
        _refuse_surrounding(place.path, directory, inputs)
        if place.path.parent.is_dir():
            with locked(place.lock):
                _recover(place)
                _refuse_foreign(place.path)


@contextlib.contextmanager
def replaced_directory(directory: Path) -> Iterator[Path]:
    """Give an empty directory that takes the place of `directory` when the block ends well.

    If the block raises (an interrupt included) it is removed, and `directory` is as it was. What a
    killed process leaves under hidden names the next call puts right. Raises FlintError FL501,
    FL502 and FL506 as `refuse_output` does.
    """
    place = TracePlace.of(directory)
    with _as_flint_errors(directory), folder_for(place.path), locked(place.lock):
        _recover(place)
        _refuse_foreign(place.path)
        with endings().undoing(lambda: _recover(place)):
            place.new.mkdir()
            yield place.new
            _replace(place)


def left_behind(path: Path) -> str | None:
    """What to do about a missing trace directory, if a killed process left the trace elsewhere."""
    if os.path.lexists(path) or not Path(os.path.realpath(path)).name:
        return None
    old = TracePlace(Path(os.path.realpath(path))).old
    if not os.path.isdir(old):
        return None
    return f"an interrupted capture left it under another name: mv {old} {path}"


def refuse_ignored_path(directory: Path) -> None:
    """Raise FlintError FL505 for a path under which ASTRA-sim ignores group files."""
    if "empty" in os.path.realpath(directory):
        raise FlintError(
            "FL505",
            f"ASTRA-sim ignores a group file whose path contains 'empty': {directory}",
            help="choose another directory with -o",
        )


@contextlib.contextmanager
def _as_flint_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(directory, error) from error


def _refuse_surrounding(path: Path, directory: Path, inputs: Sequence[Path]) -> None:
    named = [("the current directory", Path.cwd()), *((str(i), i) for i in inputs)]
    for name, each in named:
        found = Path(os.path.realpath(each))
        if found == path or path in found.parents:
            what = "is" if found == path else "holds"
            raise FlintError(
                "FL501",
                f"{directory} {what} {name}, but a trace replaces a whole directory",
                help=f"choose a separate directory: -o {directory / 'trace'}",
            )


def _refuse_unwritable(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise FlintError(
            "FL501", f"{path} is a file, not a directory", help="choose another with -o"
        )
    if os.path.ismount(path):
        raise FlintError(
            "FL501",
            f"{path} is a mount point, which cannot be replaced",
            help=f"choose a directory in it: -o {path / 'trace'}",
        )
    above = next(p for p in path.parents if os.path.lexists(p))
    if not above.is_dir():
        raise _unusable(path, f"{above} is not a directory")
    for needed in (above, path):
        if os.path.lexists(needed) and not os.access(needed, os.W_OK | os.X_OK):
            raise _unusable(path, f"{needed} is not writable")


def _unusable(path: Path, why: str) -> FlintError:
    return FlintError(
        "FL502", f"cannot write {path}: {why}", help="choose another directory with -o"
    )


def _refuse_foreign(path: Path, shown: Path | None = None) -> None:
    """Raise FlintError FL501 if there is anything in `path` that is not as Flint wrote it.

    `shown` is what the message calls it.
    """
    found = _foreign(path) if os.path.lexists(path) else []
    path = shown or path
    if found:
        more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
        raise FlintError(
            "FL501",
            f"{path} contains files that Flint did not write: {', '.join(found[:_NAMED])}{more}",
            help="move them away, or choose another directory with -o; nothing was touched",
        )


def _foreign(folder: Path) -> list[str]:
    """Names in a directory that Flint did not write, or that were changed since it did, sorted.

    Files that are gone are nobody's loss.
    """
    try:
        manifest = read_manifest(folder)
    except FlintError as error:
        return [f"{NAME} ({error.message.partition(': ')[2]})"]
    if manifest is None:
        return sorted(os.listdir(folder))
    found = []
    written = os.lstat(folder / NAME)
    with os.scandir(folder) as entries:
        for entry in entries:
            listed = manifest.listing.get(entry.name)
            if listed is None and entry.name != NAME:
                found.append(entry.name + os.sep * entry.is_dir())
            elif listed is not None and not _is_as_written(entry, listed, written):
                found.append(f"{entry.name} (changed)")
    return sorted(found)


def _is_as_written(entry: os.DirEntry[str], listed: Listed, written: os.stat_result) -> bool:
    """Whether a file is the one that a manifest of the state `written` lists.

    Traces that nobody touched since the manifest was written are not read again: all ranks together
    may be gigabytes. Files of a manifest without digests must be older than it.
    """
    found = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode) or listed.size_bytes not in (None, found.st_size):
        return False
    if listed.digest is None:
        return found.st_mtime_ns <= written.st_mtime_ns
    newest = max(found.st_mtime_ns, found.st_ctime_ns)
    at = written.st_mtime_ns, written.st_ctime_ns
    # A manifest of the future was written before the clock was set back: times say nothing then.
    if entry.name.endswith(".et") and newest <= min(at) and max(at) <= time.time_ns():
        return True
    with open(entry.path, "rb") as file:
        return matches(listed, iter(lambda: file.read(_PIECE_BYTES), b""))


def _replace(place: TracePlace) -> None:
    """Put the new trace where the old one is, which is checked once more and removed."""
    if not os.path.lexists(place.path):
        os.rename(place.new, place.path)
        return
    os.chmod(place.new, stat.S_IMODE(os.stat(place.path).st_mode))
    if not os.path.lexists(place.path / NAME):
        os.rmdir(place.path)  # it is empty, or not ours to remove
        os.rename(place.new, place.path)
        return
    if _exchange(place.new, place.path):
        try:
            _refuse_foreign(place.new, place.path)
        except BaseException:
            _exchange(place.new, place.path)
            raise
        shutil.rmtree(place.new)
        return
    os.rename(place.path, place.old)
    _refuse_foreign(place.old, place.path)  # `_recover` takes it back
    os.rename(place.new, place.path)
    shutil.rmtree(place.old)


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories change places in one step; False where the system cannot."""
    import ctypes

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):  # not Linux, or a C library without it
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of fcntl.h
    if renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    found = ctypes.get_errno()
    if found in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP):
        return False
    raise OSError(found, os.strerror(found), str(one))


def _recover(place: TracePlace) -> None:
    """Bring back an old trace whose replacement did not happen, and remove what is left over."""
    if os.path.lexists(place.old) and not os.path.lexists(place.path):
        os.rename(place.old, place.path)
    for leftover in (place.new, place.old):
        if os.path.lexists(leftover):
            if os.path.lexists(leftover / NAME):  # else it is a new one, or half removed
                _refuse_foreign(leftover)
            shutil.rmtree(leftover)
