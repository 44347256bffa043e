"""Values of HLO as trees whose leaves are rows, so that tuples are taken apart on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flint.passes.hlo import shapes

#: Rows that make up a value: one row, or a tuple of such. -1 stands for a token.
Rows = Any


def flat(rows: Rows, *, tokens: bool = False) -> Iterator[int]:
    """The rows of a tree in order; tokens are omitted unless `tokens`."""
    if isinstance(rows, int):
        if rows >= 0 or tokens:
            yield rows
        return
    for part in rows:
        yield from flat(part, tokens=tokens)


def mapped(rows: Rows, change: Any) -> Rows:
    """The tree with `change(row)` at its leaves."""
    if isinstance(rows, int):
        return change(rows)
    return tuple(mapped(part, change) for part in rows)


def tree(shape: Any, make: Any) -> Rows:
    """A tree in the form of `shape` with `make(array shape)` at its leaves, -1 for tokens."""
    if shape.element_type == shapes.TUPLE:
        return tuple(tree(part, make) for part in shape.tuple_shapes)
    return make(shape)


def zipped(shape: Any, rows: Rows, change: Any) -> Rows:
    """A tree in the form of `shape` with `change(array shape, row)` at its leaves."""
    if shape.element_type == shapes.TUPLE:
        parts = zip(shape.tuple_shapes, rows, strict=True)
        return tuple(zipped(part, row, change) for part, row in parts)
    return change(shape, rows)
