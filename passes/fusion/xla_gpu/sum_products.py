"""Products with a vector, or that sum over nothing: sums and multiplications of elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flint.ir.dims import ProductDims, ReductionDims
from flint.ir.edit import IDLE, Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.base import Pass


@dataclass(frozen=True)
class SumProducts(Pass):
    """A product of a matrix and a vector, of each batch, is a reduction; one over k = 1 multiplies.

    XLA's `GpuAlgebraicSimplifier`: operands of one batch have fewer than `most_elements` together,
    or both are vectors. Decoding one token, gates of experts and outer products are such.
    """

    name: ClassVar[str] = "sum-products"
    most_elements: int = 10_000_000

    def apply(self, program: Program) -> Program:
        """Return the program with as many rows, of which such products are none any more."""
        dims = ProductDims.of(program.dims)
        products = (program.op == OpClass.MATMUL) & (program.kind == Kind.COMPUTE)
        products &= (program.flags & Flag.LAUNCHED) == 0
        vectors = (dims.m == 1).astype(np.int8) + (dims.n == 1)
        small = dims.k * (dims.m + dims.n) < self.most_elements
        found = products & ((dims.k == 1) | (vectors == 2) | ((vectors == 1) & small))
        if not found.any():
            return program
        edit = Editor(program)
        for row in np.flatnonzero(found).tolist():
            edit.change(row, alias=-1, **_without_product(program, row))
        return edit.build().program


def _without_product(program: Program, row: int) -> dict[str, Any]:
    batch, m, n, k = (int(size) for size in program.dims[row])
    work = {**IDLE, "kind": Kind.COMPUTE}
    work |= {c: int(getattr(program, c)[row]) for c in ("flops", "operand_bytes")}
    if k == 1:
        return {**work, "opcode": "stablehlo.multiply", "op": OpClass.MULTIPLY}
    summed = {"opcode": "stablehlo.reduce", "op": OpClass.REDUCE}
    return {**work, **summed, "dims": ReductionDims(batch * m * n, k).row}
