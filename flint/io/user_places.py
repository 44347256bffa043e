"""Places in the user's own code: where a value was handed over, or an error was raised."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from functools import lru_cache

import flint

_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib", "platlib")
)
_PACKAGE = os.path.dirname(os.path.realpath(flint.__file__))
#: Flint's own folders; in a checkout, three of them lie beside the package.
_OWN = (
    _PACKAGE + os.sep,
    *(
        os.path.realpath(os.path.join(root, part)) + os.sep
        for root in flint.__path__
        for part in ("frontends", "passes", "backends")
    ),
)


def user_place(error: BaseException) -> str | None:
    """`file.py:line  source` of the last frame of the user's code in a traceback, or None."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    if not frames:
        return None
    last = frames[-1]
    text = f"  {last.line}" if last.line else ""
    return f"{os.path.basename(last.filename)}:{last.lineno}{text}"


def calling_place() -> str | None:
    """`file.py:line` of the innermost frame of the user's code that is running, or None."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def library_file(filename: str) -> str:
    """A file of an installed package from the package on (`transformers/trainer.py`), else ""."""
    path = filename.replace(os.sep, "/")
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in path:
            return path.rpartition(folder)[2]
    return ""


def library_place(error: BaseException) -> str:
    """`package/file.py:line` of the innermost frame of an installed package, "" if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = library_file(frame.filename)
        if file and not file.startswith(("torch/", "numpy/")):
            return f"{file}:{frame.lineno}"
    return ""


def is_users(filename: str) -> bool:
    """Whether a source file is neither Python's, an installed library's nor Flint's."""
    return not filename.startswith("<") and _is_outside(os.path.abspath(filename))


@lru_cache(4096)  # asked of every frame of every stack, and links are followed part by part
def _is_outside(absolute: str) -> bool:
    path = os.path.realpath(absolute)
    if path.startswith(_LIBRARIES) or "site-packages" in path:
        return False
    if path.startswith(_OWN):
        return False
    return path != sys.executable
