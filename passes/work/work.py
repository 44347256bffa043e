"""What one operation costs to run, whichever form it was read from."""

from __future__ import annotations

from dataclasses import dataclass

from flint.ir.dims import NO_DIMS, DimsRow
from flint.ir.op_class import OpClass


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one execution on one device. `None` bytes mean: all operands, all results.

    `product` is what a product multiplies (`flint.ir.product_types`), `mask` what attention leaves
    out (`Program.mask`). `in_place` is for results written into the storage of the first operand,
    `unpriced` for operations whose bytes are known and whose work is not. `op` is said where the
    operation's name does not tell its class. `called` is the opcode of what calls something by name.
    """

    flops: int = 0
    dims: DimsRow = NO_DIMS
    product: str = ""
    mask: int = 0
    operand_bytes: int | None = None
    result_bytes: int | None = None
    in_place: bool = False
    unpriced: bool = False
    op: OpClass | None = None
    called: str = ""

    def class_or(self, op: OpClass) -> OpClass:
        """The class of an operation whose name says `op`: OTHER if only its work is known."""
        if self.op is not None:
            return self.op
        return OpClass.OTHER if op is OpClass.UNKNOWN and not self.unpriced else op
