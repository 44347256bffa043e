"""Products of matrices: which dimensions of the operands are of the batch, summed, or free."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from typing import NamedTuple, TypeAlias

from flint.ir.op_class import OpClass
from flint.tools.share.synth.codec.scene import Scene
from flint.tools.share.synth.codec.shapes.rule import Reading, Seen
from flint.tools.share.synth.codec.template import Template
from flint.tools.share.synth.codec.value_type import Shape, ValueType

Dimensions: TypeAlias = tuple[int, ...]
#: Dimensions of an operand beyond which no product is searched.
_MOST_RANK = 6
_FREE, _BATCH, _SUMMED = range(3)


class Side(NamedTuple):
    """Dimensions of one operand by what they are, each in its order."""

    rank: int
    batch: Dimensions
    summed: Dimensions

    @property
    def free(self) -> Dimensions:
        """The others."""
        return tuple(i for i in range(self.rank) if i not in self.batch + self.summed)


class DotSizes(NamedTuple):
    """Sizes of a product."""

    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Dot:
    """Batch, free of the first, free of the second operand. Arguments: two `Side`s as tuples, in which
    batch and summed dimensions of the second stand in the order of those of the first."""

    name: str = "dot"

    def read(self, row: Seen) -> Reading | None:
        if row.op is not OpClass.MATMUL or len(row.reads) not in (1, 2):
            return None
        reads = row.reads if len(row.reads) == 2 else (row.reads[0], row.reads[0])
        for first, second in (reads, reads[::-1]):
            sides = _sides(first.type.shape, second.type.shape, row.result.shape, row.dims)
            if sides:
                order = (first, second) if len(row.reads) == 2 else (first,)
                return Reading((tuple(sides[0]), tuple(sides[1])), order)
        return None

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        first, second = (Side(*side) for side in t.arguments)
        if not chosen:
            return candidate.rank == first.rank and (t.arity == 2 or _is_square(t, candidate))
        return candidate.rank == second.rank and _fits(first, second, chosen[0], candidate)

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        first, second = (Side(*side) for side in t.arguments)
        a, b = chosen[0].shape, chosen[-1].shape
        batch = [a[i] for i in first.batch]
        return (*batch, *(a[i] for i in first.free), *(b[i] for i in second.free))


def sizes_of(t: Template, chosen: Sequence[ValueType]) -> DotSizes:
    """Batch, m, n and k of a product whose operands are chosen."""
    first, second = (Side(*side) for side in t.arguments)
    a, b = chosen[0].shape, chosen[min(1, t.arity - 1)].shape
    return DotSizes(
        math.prod(a[i] for i in first.batch),
        math.prod(a[i] for i in first.free),
        math.prod(b[i] for i in second.free),
        math.prod(a[i] for i in first.summed),
    )


def _is_square(t: Template, candidate: ValueType) -> bool:
    """Whether a value can be both operands: the product with itself has as many rows as columns."""
    first, second = (Side(*side) for side in t.arguments)
    if candidate.rank != second.rank or not _fits(first, second, candidate, candidate):
        return False
    sizes = sizes_of(t, (candidate,))
    return sizes.m == sizes.n


def _fits(first: Side, second: Side, a: ValueType, b: ValueType) -> bool:
    pairs = zip(first.batch + first.summed, second.batch + second.summed, strict=True)
    return all(a.shape[i] == b.shape[j] for i, j in pairs)


@lru_cache(maxsize=4096)
def _sides(
    a: Shape, b: Shape, result: Shape, dims: tuple[int, int, int, int]
) -> tuple[Side, Side] | None:
    """What the dimensions of two operands are, of a product with these sizes and this result."""
    if max(len(a), len(b)) > _MOST_RANK:
        return None
    batch, m, n, k = dims
    seconds = list(_candidates(b, batch, n, k))
    for first in _candidates(a, batch, m, k):
        for second in seconds:
            found = _paired(first, second, a, b)
            if found and _result(*found, a, b) == result:
                return found
    return None


def _candidates(shape: Shape, batch: int, free: int, summed: int) -> Iterator[Side]:
    for what in product((_FREE, _BATCH, _SUMMED), repeat=len(shape)):
        by = [tuple(i for i, w in enumerate(what) if w == kind) for kind in range(3)]
        sizes = [math.prod(shape[i] for i in dimensions) for dimensions in by]
        if sizes == [free, batch, summed]:
            yield Side(len(shape), by[_BATCH], by[_SUMMED])


def _paired(first: Side, second: Side, a: Shape, b: Shape) -> tuple[Side, Side] | None:
    """The sides, those of the second in the order of the first."""
    orders = []
    for mine, other in ((first.batch, second.batch), (first.summed, second.summed)):
        if len(mine) != len(other):
            return None
        sizes = [a[i] for i in mine]
        match = next((o for o in permutations(other) if [b[j] for j in o] == sizes), None)
        if match is None:
            return None
        orders.append(match)
    return first, Side(second.rank, orders[0], orders[1])


def _result(first: Side, second: Side, a: Shape, b: Shape) -> Shape:
    batch = [a[i] for i in first.batch]
    return (*batch, *(a[i] for i in first.free), *(b[i] for i in second.free))
