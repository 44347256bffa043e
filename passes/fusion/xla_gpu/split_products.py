"""Products that would keep few processors busy, cut along what is summed over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flint.ir.columns import consumers
from flint.ir.dims import ProductDims
from flint.ir.edit import IDLE, Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.base import Pass

#: What XLA weighs for a chip of Hopper (`SplitkRewriter`): an operation of a tile in its turn, a byte
#: that the product moves, a byte that adding moves, and the launch of what adds.
_OPERATION, _BYTE, _ADDED_BYTE, _LAUNCH = 100.0, 0.194136, 193.1384, 4.36e7
#: Rows and columns of a tile, and the parts that are tried.
_TILE = 128
_PARTS = tuple(1 << power for power in range(12))
_F32 = 4


@dataclass(frozen=True)
class SplitProducts(Pass):
    """A product whose result has few tiles computes parts of each sum at once, and another row adds.

    XLA's `SplitkRewriter`: parts are of 32 bits, as many as its weights (of an H100 with so many
    `processors`) say is fastest. What adds the parts is element-wise: it joins what reads the result.
    """

    name: ClassVar[str] = "split-products"
    processors: int = 132

    def apply(self, program: Program) -> Program:
        """Return the program with a row more for each product that is cut."""
        products = (program.op == OpClass.MATMUL) & (program.kind == Kind.COMPUTE)
        products &= (program.flags & Flag.LAUNCHED) == 0
        products &= (np.diff(program.dep_start) >= 1) & (program.result_bytes > 0)
        edit, known = Editor(program), dict[tuple[int, ...], int]()
        first, rows = (column.tolist() for column in consumers(program))
        count = 0
        for row in np.flatnonzero(products).tolist():
            key = (*map(int, program.dims[row]), int(program.result_bytes[row]))
            if key not in known:
                known[key] = min(_PARTS, key=lambda parts: _cost(key, parts, self.processors))
            if known[key] > 1:
                _split(edit, row, known[key], rows[first[row] : first[row + 1]])
                count += 1
        return edit.build().program if count else program


def _cost(key: tuple[int, ...], parts: int, processors: int) -> float:
    """What a product in `parts` and their sum weigh. Operands have as many bytes as the result."""
    *sizes, result_bytes = key
    dims = ProductDims(*sizes)
    results = dims.batch * dims.m * dims.n
    each = result_bytes / max(results, 1)
    rows, columns = min(dims.m, _TILE), min(dims.n, _TILE)
    tiles = dims.batch * parts * -(-dims.m // _TILE) * -(-dims.n // _TILE)
    turns = max(1.0, tiles * rows * columns / (processors * _TILE * _TILE))
    computing = 2 * rows * columns * -(-dims.k // parts) * turns * _OPERATION
    read = (dims.m + dims.n) * dims.k * dims.batch * each
    written = results * parts * (_F32 if parts > 1 else each)
    product = max(computing, (read + written) * _BYTE)
    if parts == 1:
        return product
    return product + _LAUNCH + results * (parts * _F32 + each) * _ADDED_BYTE


def _split(edit: Editor, row: int, parts: int, readers: list[int]) -> None:
    """Let a product compute parts; what takes a slice of it adds them up, else a row of its own."""
    program = edit.program
    dims = ProductDims(*map(int, program.dims[row]))
    results = dims.batch * dims.m * dims.n
    cut: dict[str, Any] = {
        "dims": ProductDims(dims.batch * parts, dims.m, dims.n, -(-dims.k // parts)).row,
        "shape": (parts, *program.shapes[program.shape[row]]),
        "result_bytes": _F32 * results * parts,
        "dtype": "float32",
    }
    if readers and all(program.op[r] == OpClass.SLICE for r in readers):
        edit.change(row, **cut)
        for reader in readers:
            share = int(program.result_bytes[reader]) / int(program.result_bytes[row])
            edit.change(reader, alias=-1, **_sum(round(share * results), parts))
        return
    made = edit.copy(row, row, int(program.region[row]), edit.reads(row), alias=-1, **cut)
    edit.change(row, deps=[made], alias=-1, **_sum(results, parts))


def _sum(results: int, parts: int) -> dict[str, Any]:
    work = {"kind": Kind.COMPUTE, "opcode": "stablehlo.reduce", "op": OpClass.ADD}
    sizes = {"operand_bytes": _F32 * results * parts, "flops": (parts - 1) * results}
    return {**IDLE, **work, **sizes}
