"""Which axes divide which dimension of a tensor: shardings without MLIR."""

from __future__ import annotations

import math
from collections.abc import Iterable

#: Name of a mesh axis, devices before the part meant, devices of the part.
Axis = tuple[str, int, int]
Axes = tuple[Axis, ...]
#: Axes of every dimension of a tensor, major to minor.
Layout = tuple[Axes, ...]


def count(axes: Iterable[Axis]) -> int:
    """Devices along axes."""
    return math.prod(size for _, _, size in axes)


def leading(axes: Axes, parts: int) -> Axes | None:
    """The first of some axes that make so many parts."""
    ends = (n for n in range(len(axes) + 1) if count(axes[:n]) == parts)
    return next((axes[:n] for n in ends), None)


def axes_of(layout: Layout, dims: Iterable[int] | None = None) -> tuple[Axis, ...]:
    """Axes of some dimensions, or of all."""
    chosen = range(len(layout)) if dims is None else dims
    return tuple(a for d in chosen for a in layout[d])


def without(layout: Layout, axes: Iterable[Axis]) -> Layout:
    """The layout with these axes whole again."""
    gone = set(axes)
    return tuple(tuple(a for a in dim if a not in gone) for dim in layout)


def is_cut_from(layout: Layout, whole: Layout) -> bool:
    """Whether `layout` is `whole` with more axes inside of dimensions, or with none."""
    return all(axes[: len(w)] == w for axes, w in zip(layout, whole, strict=True))


def merged(first: Layout, second: Layout) -> Layout | None:
    """Both layouts at once, or None where they need one axis or dimension for two things."""
    found = []
    for mine, other in zip(first, second, strict=True):
        short, long = sorted((mine, other), key=len)
        if long[: len(short)] != short:
            return None
        found.append(long)
    used = [a for dim in found for a in dim]
    return tuple(found) if len(used) == len(set(used)) else None


def split(axes: Iterable[Axis], ends: Iterable[tuple[str, int]]) -> Axes:
    """The axes in prime parts, of which some begin at `ends`: (axis, devices before)."""
    found: list[Axis] = []
    for name, before, size in axes:
        stops = {at for axis, at in ends if axis == name and before < at < before * size}
        for stop in sorted({*stops, before * size}):
            while before < stop:
                prime = next(n for n in range(2, stop + 1) if stop % (before * n) == 0)
                found.append((name, before, prime))
                before *= prime
    return tuple(found)


def joined(axes: Iterable[Axis]) -> Axes:
    """The axes with parts that follow on each other in one."""
    found: list[Axis] = []
    for name, before, size in axes:
        last = found[-1] if found else ("", 0, 0)
        if (name, before) == (last[0], last[1] * last[2]):
            found[-1] = (name, last[1], last[2] * size)
        else:
            found.append((name, before, size))
    return tuple(found)
