"""What compilers gave, kept for the next time: files below the user's cache folder.

An entry is found by everything that its content depends on. It can be removed at any time; the
oldest go when all together are larger than `MOST_BYTES`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flint.errors import FlintError
from flint.io.files import read_regular, write_atomically
from flint.passes.partition.worker import read_message, write_message

_log = logging.getLogger(__name__)
#: Environment variable that names the folder; "off" keeps nothing.
FOLDER: Final = "FLINT_CACHE_DIR"
MOST_BYTES: Final = 2 << 30
#: Raised when what an entry holds changes its meaning, or the child prepares modules otherwise.
_VERSION = 3
_SUFFIX = ".compiled"


def key_of(options: Mapping[str, Any], module: bytes) -> str:
    """The name of an entry: a digest of the request."""
    asked = json.dumps([_VERSION, dict(options)], sort_keys=True).encode()
    return hashlib.sha256(asked + b"\0" + module).hexdigest()


def find(key: str) -> tuple[dict[str, Any], bytes] | None:
    """An entry that is whole, or None."""
    folder = _folder()
    if folder is None:
        return None
    path = folder / f"{key}{_SUFFIX}"
    try:
        data = read_regular(path, MOST_BYTES)
        header, module = read_message(io.BytesIO(data))
    except (OSError, EOFError, ValueError):
        return None
    if header.pop("digest", "") != hashlib.sha256(module).hexdigest():
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the oldest go first
    return header, module


def store(key: str, facts: Mapping[str, Any], module: bytes) -> None:
    """Keep an entry. Where nothing can be written, nothing is kept, and the log says so."""
    folder = _folder()
    if folder is None:
        return
    written = io.BytesIO()
    write_message(written, {**facts, "digest": hashlib.sha256(module).hexdigest()}, module)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{key}{_SUFFIX}", written.getvalue())
        _shrink(folder)
    except (OSError, FlintError) as error:
        _log.warning("what was compiled is not kept: %s", error)


def _folder() -> Path | None:
    named = os.environ.get(FOLDER, "")
    if named == "off":
        return None
    if named:
        return Path(named) / "compiled"
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "flint" / "compiled"
    except RuntimeError:  # nobody's home
        return None


def _shrink(folder: Path) -> None:
    """Remove what was used longest ago."""
    found = []
    for path in filter(_is_ours, folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # another process removes, too
            about = path.stat()
            found.append((about.st_mtime, about.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= MOST_BYTES:
            return
        path.unlink(missing_ok=True)
        left -= size


def _is_ours(path: Path) -> bool:
    return re.fullmatch(rf"[0-9a-f]{{64}}{_SUFFIX}", path.name) is not None
