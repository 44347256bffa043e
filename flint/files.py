"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flint.errors import FlintError


def cannot_write(path: Path, error: OSError) -> FlintError:
    """The FlintError FL502 for an operating system error while writing `path`."""
    return FlintError(
        "FL502",
        f"cannot write {path}: {error.strerror or error}",
        help="free space or choose another place; nothing half-written was left behind",
    )


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    Raises FlintError FL502 (disk full, no permission); the temporary file is removed.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


@contextlib.contextmanager
def directory_atomically(path: Path) -> Iterator[Path]:
    """Give an empty directory beside `path` that becomes `path` when the block ends well.

    If the block raises (an interrupt included), the directory is removed and `path` is as it was.
    A process that is killed leaves its directory, under its hidden name; the next call removes it.
    A directory that exists at `path` is replaced only if Flint wrote it (it holds manifest.json)
    or it is empty. Raises FlintError FL501 otherwise, FL502 when writing fails.
    """
    import shutil

    _refuse_foreign_directory(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        prefix = f".{path.name}.partial-{os.getpid()}-"
        working = Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix))
        os.chmod(working, 0o777 & ~_umask())
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield working
        if path.exists():
            shutil.rmtree(path)
        os.replace(working, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _remove_leftovers(path: Path) -> None:
    """Remove what processes that no longer live left of an earlier write to `path`."""
    import shutil

    for leftover in path.parent.glob(f".{glob.escape(path.name)}.partial-*-*"):
        owner = leftover.name.rsplit("-", 2)[1]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(leftover, ignore_errors=True)


def _is_alive(process_id: int) -> bool:
    if os.name == "nt":  # there, signal 0 is Ctrl-C
        return True
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it lives and is someone else's
        return True
    return True


def _refuse_foreign_directory(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise FlintError("FL501", f"{path} is a file, a directory is needed")
    if any(path.iterdir()) and not (path / "manifest.json").exists():
        raise FlintError(
            "FL501",
            f"{path} exists and was not written by Flint",
            help="choose another directory with -o, or remove it",
        )


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
