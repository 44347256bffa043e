"""In what order the operands of a product lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flint.ir.program import Flag

_NONE = Flag(0)


#: The shape of an operand of a product, its dimensions of the batch, and those that are summed.
Multiplied = tuple[Sequence[int], Sequence[int], Sequence[int]]


def turned_in_product(lhs: Multiplied, rhs: Multiplied, deps: Sequence[int]) -> Flag:
    """The operands of a product that must be copied into another order first.

    A library that multiplies plain matrices reads (batch, m, k) or (batch, k, m), each of m and k
    one dimension, or several in their order where the other is behind it as it should be. What a
    compiled product can read has a flag more: batch, m and k are one stretch each, in any order, or
    without a batch m and k two. Dimensions of size one are anywhere. `deps` are the rows of the operands.
    """
    orders = dict(zip(deps, _orders(lhs, rhs), strict=False))
    first, last = min(deps[:2]), max(deps[:2])
    found = _flags(orders[first], Flag.TURNED_FIRST, Flag.SEEN_FIRST)
    return (
        found | _flags(orders[last], Flag.TURNED_LAST, Flag.SEEN_LAST) if last != first else found
    )


#: How an operand lies in memory: as matrices, as such of several dimensions seen from their other
#: side, or otherwise.
_PLAIN, _SEEN, _MIXED = range(3)


def _flags(order: int, turned: Flag, seen: Flag) -> Flag:
    if order == _PLAIN:
        return _NONE
    return turned | seen if order == _SEEN else turned


def _orders(left: Multiplied, right: Multiplied) -> tuple[int, int]:
    (lhs, lhs_batch, lhs_k), (rhs, rhs_batch, rhs_k) = left, right
    rows = [d for d in range(len(lhs)) if d not in lhs_batch and d not in lhs_k]
    columns = [d for d in range(len(rhs)) if d not in rhs_batch and d not in rhs_k]
    return (_order(lhs, lhs_batch, rows, lhs_k), _order(rhs, rhs_batch, rhs_k, columns))


def _order(
    shape: Sequence[int], batch: Sequence[int], front: Sequence[int], behind: Sequence[int]
) -> int:
    """Whether the dimensions are in that order, a matrix seen from its other side, or neither."""
    first, second, third = ([d for d in part if shape[d] > 1] for part in (batch, front, behind))
    if first + second + third == sorted(first + second + third):
        return _PLAIN
    turned = first + third + second
    if turned == sorted(turned) and len(second) < 2 and len(third) < 2:
        return _PLAIN
    # a batch also counts where it is one: XLA's layouts are of all dimensions
    stretches = [_stretches(part) for part in (batch, front, behind)]
    inside = not batch or 0 < min(batch) <= max(batch) < len(shape) - 1
    most = 1 if batch else 2
    return _SEEN if inside and max(stretches) <= most else _MIXED


def _stretches(part: Sequence[int]) -> int:
    """In how many stretches of an array some of its dimensions lie; 3 if not in their order."""
    if list(part) != sorted(part):
        return 3
    return bool(part) + sum(after != before + 1 for before, after in pairwise(part))
