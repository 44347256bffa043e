"""Errors that the user's own code raises while Flint runs or traces it, what JAX says of mesh axes too."""

from __future__ import annotations

import re

from flint.errors import FlintError, nearest
from flint.io.user_places import user_place

#: JAX's sentences on an axis that its mesh, or what is manual of it, does not have.
_MISSING = (
    re.compile(
        r"Resource axis: (?P<axis>\S+) of (?P<where>P\(.*\)) is not found in mesh: \((?P<known>.*?)\)"
    ),
    re.compile(
        r"(?P<where>shard_map) \w+ argument must refer to an axis marked as manual "
        r"\(frozenset\(\{(?P<known>.*?)\}\)\).*?refers to '(?P<axis>[^']+)'",
        re.DOTALL,
    ),
    re.compile(r"Found an unbound (?P<where>axis) name: (?P<axis>[^\s.]+)(?P<known>)"),
)
_TWICE = re.compile(r"but (?P<where>P\(.*\)) has duplicate entries for `(?P<axis>[^`]+)`")


_INDIVISIBLE = re.compile(
    r"spec=(?P<where>P\(.*?\))[,)].*?axis (?P<dimension>\d+) is partitioned (?P<ways>\d+) times, "
    r"but the dimension size is (?P<size>\d+)",
    re.DOTALL,
)
_RANK = re.compile(
    r"spec=(?P<where>P\(.*?\))\) is only valid for values of rank at least (?P<least>\d+), "
    r"but was applied to a value of rank (?P<rank>\d+)"
)


def user_error(error: BaseException, doing: str, place: str | None = None) -> FlintError:
    """FlintError FL203: what the user's code raised, and where; `place` if no frame of it did.

    FL102, FL103 or FL106 for what JAX says of axes.
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


def axis_error(error: BaseException, place: str | None) -> FlintError | None:
    """FlintError FL102, FL103 or FL106 for what JAX raised about an axis; None for all else."""
    message = str(error)
    if found := _INDIVISIBLE.search(message):
        said = "{where} splits dimension {dimension} ({size}) into {ways}, which do not divide it"
        return FlintError("FL103", said.format(**found.groupdict()), place=place)
    if found := _RANK.search(message):
        said = "{where} is for {least} dimensions, but the array has {rank}"
        return FlintError("FL103", said.format(**found.groupdict()), place=place)
    for pattern in _MISSING:
        if found := pattern.search(message):
            return _missing(found["axis"], found["where"], found["known"], place)
    if found := _TWICE.search(message):
        return FlintError(
            "FL106",
            f"{found['where']} uses mesh axis '{found['axis']}' twice",
            place=place,
            help="an axis can shard only one dimension",
        )
    return None


def _missing(axis: str, where: str, known: str, place: str | None) -> FlintError:
    names = sorted(re.findall(r"'([^']+)'", known))
    listed = ", ".join(f"'{name}'" for name in names)
    return FlintError(
        "FL102",
        f"mesh has no axis '{axis}', named by {where}{nearest(axis, names)}",
        place=place,
        help=f"its axes are {listed}"
        if names
        else "name an axis of the mesh, inside jax.shard_map",
    )
