"""How XLA's partitioner settles a product whose tensors want one mesh axis for two things.

Axis by axis, whatever sizes are (but for one case):

- Both operands have it on one dimension that they share: they stay. Over a summed dimension the
  result is a sum of parts, over a batch dimension it has the axis there; then it goes where the
  program wants it.
- The result has it: operands follow, moved or gathered.
- The result does not: operands are gathered. Only when a single operand has it, on the summed
  dimension, and is larger than the result, parts are summed instead.

(`PartitionDot` in xla/service/spmd/dot_handler.cc; found by trying, see
tests/oracle/test_products_against_xla.py.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flint.passes.partition.as_xla.layouts import Axis, Layout, axes_of, count

_LHS, _RHS, _RESULT = range(3)


@dataclass(frozen=True)
class Product:
    """Sizes of factors, the factors of the dimensions of lhs, rhs and result, bits of elements."""

    sizes: tuple[int, ...]
    factors: tuple[tuple[int, ...], ...]
    element_bits: tuple[int, ...]

    def is_summed(self, factor: int) -> bool:
        """Whether a dimension of the operands is not one of the result."""
        return factor not in self.factors[_RESULT]

    def bits_of(self, tensor: int, layout: Layout) -> int:
        """Size of one device's part of a tensor whose summed dimensions are whole."""
        parts = [
            self.sizes[f] if self.is_summed(f) else -(-self.sizes[f] // count(axes))
            for f, axes in zip(self.factors[tensor], layout, strict=True)
        ]
        return math.prod(parts) * self.element_bits[tensor]


def settled(product: Product, layouts: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """Layouts of lhs, rhs and result in which no axis is wanted for two things."""
    axes = dict.fromkeys(a for layout in layouts for a in axes_of(layout))
    for axis in axes:
        now = [_place(product, n, layout, axis) for n, layout in enumerate(layouts)]
        then = _settled(product, layouts, axis, now)
        layouts = tuple(
            layout if now[n] == then[n] else _moved(product, n, layout, axis, then[n])
            for n, layout in enumerate(layouts)
        )
    return layouts


def _settled(
    product: Product, layouts: tuple[Layout, ...], axis: Axis, now: list[int | None]
) -> list[int | None]:
    """The factor that an axis divides in each tensor afterwards."""
    lhs, rhs, result = now
    if lhs is not None and lhs == rhs:
        return [lhs, rhs, None if product.is_summed(lhs) else lhs]
    if result is not None:
        return [_followed(product, n, now[n], result) for n in (_LHS, _RHS)] + [result]
    holders = [n for n in (_LHS, _RHS) if now[n] is not None]
    if len(holders) == 1:
        only = holders[0]
        factor = now[only]
        sums = factor is not None and product.is_summed(factor)
        sizes = [product.bits_of(n, layouts[n]) for n in (only, _RESULT)]
        if sums and sizes[0] > sizes[1]:
            return [factor, factor, None]
    return [None, None, None]


def _followed(product: Product, tensor: int, now: int | None, wanted: int) -> int | None:
    """Where an operand has the axis that the result has on factor `wanted`."""
    if now is None or now == wanted:
        return now
    return wanted if wanted in product.factors[tensor] else None


def _place(product: Product, tensor: int, layout: Layout, axis: Axis) -> int | None:
    for factor, axes in zip(product.factors[tensor], layout, strict=True):
        if axis in axes:
            return factor
    return None


def _moved(product: Product, tensor: int, layout: Layout, axis: Axis, factor: int | None) -> Layout:
    """The layout with the axis on another dimension, or on none."""
    rest = (tuple(a for a in axes if a != axis) for axes in layout)
    return tuple(
        (*axes, axis) if f == factor else axes
        for f, axes in zip(product.factors[tensor], rest, strict=True)
    )
