"""Numbers of layers in names and scopes: `layers.3.wq` of layer 3 is `layers.7.wq` of layer 7."""

from __future__ import annotations

import re
from functools import lru_cache

_NUMBER = re.compile(r"(\d+)")


@lru_cache(maxsize=1 << 16)
def steps_of(before: str, one: str, after: str) -> tuple[int, ...]:
    """How much each number of a text changes from a layer to the next; empty if no number counts layers.

    The three texts are of layers that follow each other. Empty as well where they differ in anything but
    numbers, or where a number does not change evenly.
    """
    parts = [_NUMBER.split(text) for text in (before, one, after)]
    if any(len(p) != len(parts[1]) or p[::2] != parts[1][::2] for p in parts):
        return ()
    rows = zip(*(p[1::2] for p in parts), strict=True)
    steps = [(int(b) - int(a), int(c) - int(b)) for a, b, c in rows]
    if any(first != second for first, second in steps) or not any(s for s, _ in steps):
        return ()
    return tuple(first for first, _ in steps)


@lru_cache(maxsize=1 << 16)
def moved(text: str, steps: tuple[int, ...], layers: int) -> str:
    """The text as it is so many layers later; unchanged where its numbers are not those that `steps` are of."""
    parts = _NUMBER.split(text)
    if not layers or not steps or len(parts) != 2 * len(steps) + 1:
        return text
    numbers = [int(n) + step * layers for n, step in zip(parts[1::2], steps, strict=True)]
    if min(numbers) < 0:
        return text
    parts[1::2] = map(str, numbers)
    return "".join(parts)
