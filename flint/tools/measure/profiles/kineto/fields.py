"""Values of a Kineto file, whatever type this version or a broken tool gave them."""

from __future__ import annotations

import json
import re
from typing import Any

from flint.errors import FlintError, Malformed

_MOST_INT = 1 << 62
#: Around the first event of a file: eleven days, in microseconds.
_MOST_US = 1e12
#: The year 2286, in microseconds since 1970.
_LATEST_US = 1e16
_PATH = re.compile(r"(?:[A-Za-z]:[\\/]|/)(?:[^\s/\\:,'\"()]+[/\\])+")
#: Names of kernels with C++ templates have some thousand characters.
_MOST_NAME = 1 << 16
#: What numbers, or names, a process or thread.
_NAMES = (int, float, str, type(None))


def integer(value: object, default: int = -1) -> int:
    """A whole number, also one written as text or as 3.0; `default` for anything else."""
    if type(value) is int:
        return value if -_MOST_INT < value < _MOST_INT else default
    if value is None:
        return default
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 19:
        return int(value)
    if isinstance(value, float) and abs(value) < _MOST_INT and value == int(value):
        return int(value)
    return default


def span_ns(event: dict[str, Any], first_us: float) -> tuple[float, float]:
    """Start since the first event, and duration, in ns.

    Raises FlintError FL805 for absurd ones, Malformed for what is not a number.
    """
    since, duration = _number(event, "ts") - first_us, _number(event, "dur")
    if not -_MOST_US < since < _MOST_US:
        raise absurd("start", event["ts"], event)
    if not 0 <= duration < _MOST_US:
        raise absurd("duration", duration, event)
    return round(since * 1000.0), round(duration * 1000.0)


def first_us(event: dict[str, Any]) -> float:
    """Start of the first event, whole microseconds.

    Raises FlintError FL805 for an absurd one, Malformed for what is not a number.
    """
    value = _number(event, "ts")
    if -_LATEST_US < value < _LATEST_US:
        return float(int(value))
    raise absurd("start", value, event)


def _number(event: dict[str, Any], name: str) -> float:
    """A number of an event; of whole ones beyond all floats the nearest that cannot be."""
    found = event.get(name)
    if type(found) is float:
        return found
    if type(found) is int:
        return float(max(-_MOST_INT, min(found, _MOST_INT))) if abs(found) > 1 << 53 else found
    raise Malformed(f"{name} is not a number")


def thread_of(event: dict[str, Any]) -> tuple[object, object]:
    """Process and thread of an event. Raises Malformed for what numbers or names none."""
    process, thread = event.get("pid"), event.get("tid")
    if "tid" not in event or not isinstance(process, _NAMES) or not isinstance(thread, _NAMES):
        raise Malformed("it belongs to no thread")
    return process, thread


def absurd(what: str, value: object, event: dict[str, Any]) -> FlintError:
    """The FlintError FL805 for a time that no event has."""
    return FlintError(
        "FL805",
        f"an absurd {what}, {str(value)[:30]} us, of '{str(event.get('name'))[:60]}'",
        help="the file is damaged, or a tool that mixes clocks wrote it; record it again",
    )


def name_of(event: dict[str, Any]) -> str:
    """Its name. Raises Malformed if that is no text."""
    name = event.get("name")
    if not isinstance(name, str):
        raise Malformed("a name is not a text")
    return name if len(name) <= _MOST_NAME else name[:_MOST_NAME]


def without_paths(text: str) -> str:
    """A text of the user's, of whose paths only the last part is left."""
    return _PATH.sub("", text)


def integers(value: object) -> tuple[int, ...] | None:
    """A list of whole numbers, also one written as text; None if it is cut with `...` or no list."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list):
        return None
    found = tuple(integer(v) for v in value)
    return None if any(f < 0 for f in found) else found


def mapping(value: object) -> dict[str, Any]:
    """An object, also one written as text; {} for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
