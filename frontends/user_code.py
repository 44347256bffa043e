"""Errors that the user's own code raises while Flint runs or traces it."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback

from flint.errors import FlintError

_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib", "platlib")
)
_FLINT = os.path.realpath(os.path.dirname(os.path.dirname(__file__)))


def user_place(error: BaseException) -> str | None:
    """`file.py:line  source` of the last frame of the user's code in a traceback, or None."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    if not frames:
        return None
    last = frames[-1]
    text = f"  {last.line}" if last.line else ""
    return f"{os.path.basename(last.filename)}:{last.lineno}{text}"


def user_error(error: BaseException, doing: str) -> FlintError:
    """FlintError FL203: what the user's code raised, and where."""
    message = str(error).strip()
    first = message.splitlines()[0] if message else "no message"
    return FlintError(
        "FL203",
        f"{doing} raised {type(error).__name__}: {first}",
        place=user_place(error),
        help="run it under plain JAX to see the same error with its full traceback",
    )


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    if path.startswith(_LIBRARIES) or "site-packages" in path:
        return False
    own = [os.path.join(_FLINT, part) for part in ("flint", "frontends", "passes", "backends")]
    return not path.startswith(tuple(p + os.sep for p in own)) and path != sys.executable
