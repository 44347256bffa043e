"""Errors that the user's own code raises while Flint runs or traces it."""

from __future__ import annotations

from flint.errors import FlintError
from flint.frontends.axis_errors import axis_error
from flint.io.user_places import user_place


def user_error(error: BaseException, doing: str, place: str | None = None) -> FlintError:
    """FlintError FL203: what the user's code raised, and where; `place` if no frame of it did.

    FL102 or FL106 for what JAX says of axes.
    """
    place = user_place(error) or place
    if found := axis_error(error, place):
        return found
    message = str(error).strip()
    first = message.splitlines()[0] if message else "no message"
    return FlintError(
        "FL203",
        f"{doing} raised {type(error).__name__}: {first}",
        place=place,
        help="run it under plain JAX to see the same error with its full traceback",
    )
