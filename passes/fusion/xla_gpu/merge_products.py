"""Products of one operand with several others, joined into one product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flint.ir.columns import Mask
from flint.ir.dims import ProductDims
from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.base import Pass
from flint.passes.fusion.groups import Groups
from flint.passes.fusion.merging import segments
from flint.passes.fusion.xla_gpu.join_collectives import become_slices, brought_together, elements

_TURNED = Flag.TURNED_FIRST | Flag.TURNED_LAST
#: Flags of an operand in another order, and of one that is a matrix from its other side.
_ORDERS = ((Flag.TURNED_FIRST, Flag.SEEN_FIRST), (Flag.TURNED_LAST, Flag.SEEN_LAST))
_SEEN = Flag.SEEN_FIRST | Flag.SEEN_LAST


@dataclass(frozen=True)
class MergeProducts(Pass):
    """Products that share an operand become one with the other operands side by side.

    XLA's `DotMerger`: of the products of q, k and v, of gate and up, and of their gradients, each
    whose operands and result have at most `most_bytes` together. The joined product reads the
    others where they are; what takes its part out of the result is a slice. (The bound of XLA in
    jaxlib 0.10.2 is between 63 and 67 MiB, found by compiling products of several sizes.)
    """

    name: ClassVar[str] = "merge-products"
    most_bytes: int = 64 * 2**20

    def apply(self, program: Program) -> Program:
        """Return the program with one product, and a slice for each that was joined."""
        sets = _Products(program, self.most_bytes).sets()
        if not sets:
            return program
        program, sets = brought_together(program, sets)
        edit = Editor(program)
        for rows in sets:
            become_slices(edit, rows, _joined(edit, rows))
        return edit.build().program


def _mixed(program: Program) -> Mask:
    """Products with an operand that is not a matrix from either side, or would be copied to be one."""
    flags = program.flags
    found = np.zeros(len(program), dtype=np.bool_)
    for turned, seen in _ORDERS:
        found |= ((flags & turned) != 0) & ((flags & seen) == 0)
    found |= (ProductDims.of(program.dims).batch > 1) & ((flags & _TURNED) != 0)
    return found


def _joined(edit: Editor, rows: list[int]) -> int:
    """Add the product that `rows` are parts of in front of them; returns it."""
    program, first = edit.program, min(rows)
    dims = ProductDims.of(program.dims[rows])
    shared = _shared(program, rows)
    batch, k = int(dims.batch[0]), int(dims.k[0])
    wide = _side(program, rows[0], shared) == 0  # the shared operand is the first: columns add up
    m = int(dims.m[0] if wide else dims.m.sum())
    n = int(dims.n.sum() if wide else dims.n[0])
    read = list(dict.fromkeys(d for row in rows for d in edit.reads(row)))
    each = program.operand_bytes[rows]
    again = np.minimum(each, program.result_bytes[shared])  # the shared operand, of each
    return edit.copy(
        first,
        first,
        int(program.region[first]),
        read,
        alias=-1,
        dims=(batch, m, n, k),
        shape=(batch, m, n) if batch > 1 else (m, n),
        flops=int(program.flops[rows].sum()),
        operand_bytes=int(each.sum() - again.sum() + again.max()),
        result_bytes=int(program.result_bytes[rows].sum()),
        flags=int(program.flags[first]) & ~int(_TURNED | _SEEN),
        name="",
    )


def _shared(program: Program, rows: list[int]) -> int:
    common: set[int] = set(program.dependencies(rows[0]).tolist())
    for row in rows[1:]:
        common &= set(program.dependencies(row).tolist())
    return min(common)


def _side(program: Program, row: int, operand: int) -> int:
    """0 if an operand of a product is its first, 1 if it is its second, by its size."""
    dims = ProductDims.of(program.dims[row])
    return int(elements(program, operand) != int(dims.batch * dims.m * dims.k))


class _Products:
    def __init__(self, program: Program, most_bytes: int) -> None:
        self._program = program
        moved = program.operand_bytes + program.result_bytes
        plain = (program.op == OpClass.MATMUL) & (program.kind == Kind.COMPUTE)
        plain &= ~_mixed(program) & ((program.flags & Flag.LAUNCHED) == 0)
        plain &= np.diff(program.dep_start) == 2
        self._rows = np.flatnonzero(plain & (moved <= most_bytes)).tolist()
        self._segment = segments(program).tolist()

    def sets(self) -> list[list[int]]:
        """Sets of two or more, each of products that need nothing of each other."""
        groups: Groups | None = None
        taken: set[int] = set()
        found = []
        for rows in self._alike():
            left = [row for row in rows if row not in taken]
            if len(left) < 2:
                continue
            groups = groups or Groups(self._program)
            chosen = left[:1]
            chosen += [row for row in left[1:] if groups.merge_beside(left[0], row)]
            if len(chosen) > 1:
                found.append(chosen)
                taken.update(chosen)
        return found

    def _alike(self) -> Iterator[list[int]]:
        """Products by the operand that they share, its side, and all else that must be equal."""
        alike: dict[tuple[Any, ...], list[int]] = {}
        for row in self._rows:
            for operand in self._program.dependencies(row).tolist():
                if key := self._key(row, operand):
                    alike.setdefault(key, []).append(row)
        yield from alike.values()

    def _key(self, row: int, operand: int) -> tuple[Any, ...] | None:
        program = self._program
        dims = ProductDims(*map(int, program.dims[row]))
        side = _side(program, row, operand)
        sizes = dims.m if side == 0 else dims.n
        if elements(program, operand) != dims.batch * dims.k * sizes:
            return None  # it is seen differently: not the whole of an operand
        kind = int(program.dtype[row]), int(program.product[row]), int(program.phase[row])
        return (operand, side, dims.batch, dims.k, self._segment[row], *kind)
