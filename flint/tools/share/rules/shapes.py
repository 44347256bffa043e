"""Relations between the shape of an operand and that of a result, as plain functions."""

from __future__ import annotations

import math
from collections import Counter

from flint.tools.share.rules.view import Shape


def is_equal(operand: Shape, result: Shape) -> bool:
    """The same dimensions."""
    return operand == result


def spreads(operand: Shape, result: Shape) -> bool:
    """Numpy's broadcasting of the operand gives the result: aligned at the end, 1 or equal."""
    if len(operand) > len(result):
        return False
    tail = result[len(result) - len(operand) :]
    return all(a in (1, b) for a, b in zip(operand, tail, strict=True))


def is_broadcast(operand: Shape, result: Shape) -> bool:
    """The operand's dimensions other than 1 are among the result's, in their order."""
    left = iter(result)
    return all(any(size == d for d in left) for size in operand if size != 1)


def has_equal_elements(operand: Shape, result: Shape) -> bool:
    """As many elements."""
    return math.prod(operand) == math.prod(result)


def is_permuted(operand: Shape, result: Shape) -> bool:
    """The same dimensions in any order."""
    return Counter(operand) == Counter(result)


def is_within(operand: Shape, result: Shape) -> bool:
    """As many dimensions, none longer than the operand's."""
    return len(operand) == len(result) and all(r <= o for o, r in zip(operand, result, strict=True))


def is_around(operand: Shape, result: Shape) -> bool:
    """As many dimensions, none shorter than the operand's."""
    return is_within(result, operand)


def is_padded(operand: Shape, result: Shape) -> bool:
    """As many dimensions: all at least the operand's, or, where padding is negative, at most."""
    return is_around(operand, result) or is_within(operand, result)


def is_joined(operand: Shape, result: Shape) -> bool:
    """As many dimensions; all but one are equal, and that one is not longer than the result's."""
    if len(operand) != len(result):
        return False
    other = [(o, r) for o, r in zip(operand, result, strict=True) if o != r]
    return len(other) <= 1 and all(o <= r for o, r in other)


def is_split(whole: Shape, part: Shape, size: int) -> bool:
    """One dimension of the part is that of the whole over `size`, rounded up; others are equal.

    A dimension of 1 stays 1.
    """
    if whole == part:
        return 1 in whole
    other = [(w, p) for w, p in zip(whole, part, strict=True) if w != p]
    return len(other) == 1 and other[0][1] == -(-other[0][0] // size)
