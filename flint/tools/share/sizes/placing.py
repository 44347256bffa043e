"""Ways to place the dimensions of one shape among those of another, by their sizes alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from flint.tools.share.rules.view import Shape

#: Ways beyond these are not looked at.
MOST_WAYS = 64


def embeddings(small: Shape, large: Shape) -> list[tuple[int, ...]]:
    """Places in `large` that have the sizes of `small`, in order; early places first."""
    return list(islice(_embeddings(small, large, 0, 0), MOST_WAYS))


def _embeddings(small: Shape, large: Shape, i: int, j: int) -> Iterator[tuple[int, ...]]:
    if i == len(small):
        yield ()
        return
    for place in range(j, len(large) - (len(small) - i) + 1):
        if large[place] == small[i]:
            for rest in _embeddings(small, large, i + 1, place + 1):
                yield (place, *rest)


def permutations(one: Shape, other: Shape) -> list[tuple[int, ...]]:
    """For each dimension of `other` its place in `one`, each place once; in order first."""
    return list(islice(_permutations(one, other, ()), MOST_WAYS))


def _permutations(one: Shape, other: Shape, taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(taken) == len(other):
        yield taken
        return
    for place, size in enumerate(one):
        if size == other[len(taken)] and place not in taken:
            yield from _permutations(one, other, (*taken, place))


def cut(shape: Shape, *sizes: int) -> list[int] | None:
    """Where a shape of dimensions longer than 1 is cut into parts of so many elements; None: nowhere."""
    ends, at = [], 0
    for size in sizes:
        elements = 1
        while elements < size and at < len(shape):
            elements *= shape[at]
            at += 1
        if elements != size:
            return None
        ends.append(at)
    return ends if at == len(shape) else None


def sides(
    shape: Shape, batch: Shape, free: Shape, contracted: int
) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Ways to read an operand of a product: places of batch, free and contracted dimensions.

    Free dimensions come in their order; contracted ones have so many elements; all have a role.
    """
    if math.prod(shape) != math.prod(batch) * math.prod(free) * contracted:
        return []
    return list(_sides(shape, batch, free, contracted))


def _sides(
    shape: Shape, batch: Shape, free: Shape, contracted: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    left: list[tuple[tuple[tuple[int, int], ...], tuple[int, ...], tuple[int, ...]]] = [
        ((), (), ())
    ]
    for place, size in enumerate(shape):
        grown = []
        for taken, rows, inner in left:
            used = {b for b, _ in taken}
            grown += [
                (((b, place), *taken), rows, inner)
                for b, s in enumerate(batch)
                if s == size and b not in used
            ]
            if len(rows) < len(free) and free[len(rows)] == size:
                grown.append((taken, (*rows, place), inner))
            if contracted % (size * math.prod(shape[i] for i in inner)) == 0:
                grown.append((taken, rows, (*inner, place)))
        left = grown[:MOST_WAYS]
    for taken, rows, inner in left:
        whole = math.prod(shape[i] for i in inner) == contracted
        if len(taken) == len(batch) and len(rows) == len(free) and whole:
            yield tuple(p for _, p in sorted(taken)), rows, inner
