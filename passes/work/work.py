"""What one operation costs to run, whichever form it was read from."""

from __future__ import annotations

from dataclasses import dataclass

#: (batch, m, n, k) of a product of matrices, (1, rows, 1, reduced) of a reduction.
Dims = tuple[int, int, int, int]
NO_DIMS: Dims = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one execution on one device. `None` bytes mean: all operands, all results.

    `product` is what a product multiplies (`flint.ir.product_types`). `in_place` is for results written into the storage of the first operand, `unpriced` for
    operations whose bytes are known and whose work is not. `called` is the opcode of what calls
    something by name.
    """

    flops: int = 0
    dims: Dims = NO_DIMS
    product: str = ""
    operand_bytes: int | None = None
    result_bytes: int | None = None
    in_place: bool = False
    unpriced: bool = False
    called: str = ""
