"""Sizes of a pass, and numbers that follow from them as polynomials.

A kernel of a pass has sizes that are sums of few products of the three sizes of the pass: a linear
layer multiplies batch * new rows, attention reads batch * (context + new) keys. Which products, and how
many times each, is found from captures of several sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np

from flint.ir.arrays import Float64s, Mask
from flint.ir.program import Int64s


class PassSizes(NamedTuple):
    """Each of `batch` sequences computes `new` tokens; its cache holds `context` tokens before."""

    batch: int
    new: int
    context: int

    def __str__(self) -> str:
        return f"batch={self.batch},new={self.new},context={self.context}"


#: Layers of most captures of a model that has an option for them.
FEW_LAYERS: Final = 4
#: Options of an entry that are the sizes of a pass.
SIZES: Final = PassSizes._fields

#: Captures of one token a sequence (decoding), and of several (prefill). All are multiples of 16, so
#: that devices can share them, by different primes: a size that equals one of the model's (128 experts)
#: makes another program, because compilers then share arrays. A batch of one is no point, either:
#: programs of one sequence have fewer dimensions. The last ones tell whether something ends where contexts are
#: long (a window).
DECODE_POINTS: Final = (
    PassSizes(80, 1, 16 * 61 - 1),
    PassSizes(112, 1, 16 * 61 - 1),
    PassSizes(80, 1, 16 * 127 - 1),
    PassSizes(176, 1, 16 * 193 - 1),
    PassSizes(208, 1, 16 * 37 - 1),
    PassSizes(80, 1, 16 * 4093 - 1),
)
PREFILL_POINTS: Final = (
    PassSizes(2, 16 * 19, 16 * 31),
    PassSizes(2, 16 * 23, 16 * 31),
    PassSizes(2, 16 * 19, 16 * 79),
    PassSizes(3, 16 * 19, 16 * 31),
    PassSizes(2, 16 * 41, 16 * 47),
    PassSizes(5, 16 * 23, 16 * 17),
    PassSizes(3, 16 * 29, 16 * 67),
    PassSizes(2, 16 * 19, 16 * 4093),
)

#: The products that sizes may hold, likeliest first: exponents of batch, new and context.
PRODUCTS: Final = (
    (0, 0, 0),
    (1, 1, 0),
    (1, 0, 0),
    (1, 0, 1),
    (1, 1, 1),
    (1, 2, 0),
    (0, 1, 0),
    (0, 0, 1),
    (0, 1, 1),
    (0, 2, 0),
)
#: Products of a sum at most. A sum is exact within this much of its value (sizes are whole numbers), and
#: close within this much: halves were cut off.
MOST_TERMS: Final = 4
EXACT: Final = 1e-10
CLOSE: Final = 2e-3


def products_of(sizes: Float64s) -> Float64s:
    """The values of all `PRODUCTS` (points, products) for sizes (points, 3)."""
    powers = np.array(PRODUCTS, dtype=np.float64)
    found: Float64s = np.prod(sizes[:, None, :] ** powers[None], axis=2)
    return found


@dataclass(frozen=True, eq=False)
class Polynomials:
    """Numbers (rows) as sums of products of sizes: factors (rows, products)."""

    factors: Float64s

    def at(self, sizes: Float64s) -> Int64s:
        """Values (points, rows) at sizes (points, 3), rounded up: no device has less than its share.

        Below what a straight line through large ones begins at (the logarithm in a sort) they are 0.
        """
        values = np.maximum(products_of(sizes) @ self.factors.T, 0)
        return np.ceil(values - np.maximum(np.abs(values), 1) * 1e-9).astype(np.int64)

    def holds(self, batch: int, new: int = 0, context: int = 0) -> Mask:
        """For each row whether it has a product with at least these exponents."""
        chosen = (np.array(PRODUCTS) >= (batch, new, context)).all(axis=1)
        found: Mask = (self.factors[:, chosen] != 0).any(axis=1)
        return found


def fitted(values: Int64s, sizes: Float64s) -> tuple[Polynomials, Mask]:
    """The sums of fewest products that give values (rows, points), and which rows have none.

    A row that no sum of `MOST_TERMS` products gives gets the closest straight line over new tokens.
    """
    products = products_of(sizes)
    distinct, of_row = np.unique(values, axis=0, return_inverse=True)
    wanted = distinct.astype(np.float64)
    factors = np.zeros((len(wanted), len(PRODUCTS)))
    error = np.full(len(wanted), np.inf)
    scale = np.maximum(np.abs(wanted).max(axis=1), 1)
    exact = EXACT + 0.01 / scale
    terms = min(MOST_TERMS, len(sizes) - 1)
    for count in range(1, terms + 1):
        for chosen in combinations(range(len(PRODUCTS)), count):
            left = np.flatnonzero(error > exact)
            if not len(left):
                break
            some = products[:, chosen]
            if np.linalg.matrix_rank(some / some.max(axis=0)) < count:
                continue
            _improve(wanted, left, some, np.array(chosen), factors, error, scale, exact)
    wrong = error > CLOSE
    plain = products[:, :2]  # a constant, and the tokens: what nothing gives exactly follows these
    factors[wrong] = 0
    factors[np.flatnonzero(wrong)[:, None], [0, 1]] = np.linalg.lstsq(plain, wanted[wrong].T)[0].T
    return Polynomials(factors[of_row.ravel()]), wrong[of_row.ravel()]


def _improve(
    wanted: Float64s,
    rows: Int64s,
    products: Float64s,
    chosen: Int64s,
    factors: Float64s,
    error: Float64s,
    scale: Float64s,
    exact: Float64s,
) -> None:
    """Take a sum of some products where it is closer than what was found before."""
    found, *_ = np.linalg.lstsq(products, wanted[rows].T, rcond=None)
    off = np.abs(products @ found - wanted[rows].T).max(axis=0) / scale[rows]
    better = off < np.where(off > exact[rows], error[rows] / 2, error[rows])
    mine = rows[better]
    factors[mine] = 0
    factors[mine[:, None], chosen[None]] = found.T[better]
    error[mine] = off[better]
