"""Sizes in a simple ratio to an earlier dimension: halves, doubles, and whole sizes of what is split over axes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from flint.sharing.synth.codec.reader import Steps
from flint.sharing.synth.codec.scene import Scene
from flint.sharing.synth.codec.writer import new_sizes

#: Ratios by code: half, double; from 2 on pairs (over, times) for each set of axes of a mesh of three.
_HALF, _DOUBLE, _FIRST = range(3)
_AXES = tuple(c for n in (1, 2, 3) for c in combinations(range(3), n))


def ratios_of(steps: Steps) -> Iterator[tuple[int, int, int, int, int]]:
    """Rows (step, which of its new sizes, steps back, dimension, code) of a program."""
    latest: dict[int, tuple[int, int]] = {}
    sizes = iter(steps.symbols.taken)
    for number, template in enumerate(steps.templates):
        for which, _ in enumerate(new_sizes(template)):
            size = next(sizes)
            found = _found(size, latest, steps.scene)
            if found is not None:
                (step, dimension), code = found
                yield number, which, number - step, dimension, code
        type_ = steps.types[number]
        for dimension, size in enumerate(type_.shape if type_ else ()):
            latest[size] = number, dimension


def by_ratio(size: int, code: int, scene: Scene) -> int | None:
    """The size that is in a ratio to another one; None where it is no whole number."""
    times, over = _factor(code, scene)
    found, rest = divmod(size * times, over)
    return found if found and not rest else None


def _found(
    size: int, latest: dict[int, tuple[int, int]], scene: Scene
) -> tuple[tuple[int, int], int] | None:
    """Where a dimension is that gives the size, and by which ratio."""
    for code in range(_FIRST + 2 * len(_AXES)):
        times, over = _factor(code, scene)
        if times == over or size * over % times:
            continue
        place = latest.get(size * over // times)
        if place is not None:
            return place, code
    return None


def _factor(code: int, scene: Scene) -> tuple[int, int]:
    """What a size is multiplied by, and divided by."""
    if code < _FIRST:
        return (1, 2) if code == _HALF else (2, 1)
    which, times = divmod(code - _FIRST, 2)
    size = scene.group_size(_AXES[which])
    return (size, 1) if times else (1, size)
