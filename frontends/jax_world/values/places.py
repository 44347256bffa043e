"""Where in the program something is asked for."""

from __future__ import annotations

import os
import sys
import traceback
from functools import cache

from flint.io.user_places import is_users, library_file, user_place

#: Packages whose code passes a question on: who asks is whoever called them.
_PASSING_ON = ("jax", "jaxlib", "numpy", "ml_dtypes", "flint")


def asking_place() -> tuple[str, str]:
    """`file.py:line` of the user's line that runs, and `package/file.py:line` of a library's.

    The user's line is the innermost one. The library's is empty where the user's own line asks, and
    the user's where all code is a library's, as that of a training framework.
    """
    frame, library = sys._getframe(1), ""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{os.path.basename(file)}:{frame.f_lineno}", library
        if not library and (name := _library_file(file)):
            library = f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "", library


def raising_place(error: BaseException) -> str | None:
    """`file.py:line  source` of the user's last line in a traceback, or a library's, or None."""
    found = user_place(error)
    if found is not None:
        return found
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        name = _library_file(frame.filename)
        if name:
            return f"{name}:{frame.lineno}  {frame.line}"
    return None


@cache
def _library_file(file: str) -> str:
    """`package/file.py` of an installed package that asks for itself, or ""."""
    inside = library_file(file)
    return "" if inside.split("/", 1)[0] in _PASSING_ON else inside
