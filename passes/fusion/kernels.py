"""Merge operations into the kernels that a compiler would launch: the memory's, and a profile's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flint.ir.columns import (
    Mask,
    bytes_in,
    carried,
    consumers,
    edges,
    is_any,
    read_at_home,
    with_value,
)
from flint.ir.edit import Editor, passed_over
from flint.ir.op_class import ELEMENTWISE, LAYOUT, PRODUCT, REDUCTION, OpClass
from flint.ir.product_types import kernel_products
from flint.ir.program import Flag, Int64s, Kind, Program
from flint.passes.base import Pass, run_passes

#: Opcode of a kernel of several element-wise operations.
FUSION = "fusion"


class KernelRole(IntEnum):
    """What a row can be in a kernel."""

    ALONE = 0  #: a kernel by itself, or no kernel
    ELEMENT = 1  #: element-wise
    LAYOUT = 2  #: element-wise on other places of its operand, or generated in place
    REDUCE = 3  #: ends a kernel
    MATMUL = 4  #: the one product of matrices of a kernel


@dataclass(frozen=True)
class FuseKernels(Pass):
    """Merge rows into kernels with one result, by rules that compilers share.

    Operators that a framework launched one by one are kernels already and stay as they are.

    First, layout changes and conversions that only element-wise operations and reductions of their
    region read are done again by each reader (`_repeated`): they have no flops, and their operand
    is no larger than what they would store. Then rows are taken last to first. A row joins the kernel of its readers if all of them are in one
    kernel of the same region and stream, no loop yields it, and

    * `element_joins`: it is element-wise or a layout change, and does not feed the product of
      matrices of that kernel; what feeds the product joins if it is a layout change or conversion;
    * `matmul_joins` (epilogue): it is a product of matrices, the kernel ends element-wise, has no
      other product, and its result has as many elements.

    A reduction ends its kernel. The kernel is the row that was its last: scope, location, phase,
    type and result are of that row. Its opcode and dims are of its product or reduction, and
    `fusion` where several element-wise operations met. flops are summed, `operand_bytes` are what
    crosses into it (each value once), `result_bytes` what leaves. Nothing outside reads a row
    inside, so that merging makes no cycle.
    """

    name: ClassVar[str] = "fuse-kernels"

    def apply(self, program: Program) -> Program:
        """Return the program with one row per kernel."""
        program = _repeated(program)
        role = _roles(program)
        kernel = _kernels(program, role)
        if (kernel == np.arange(len(program))).all():
            return program
        return _merged(program, role, kernel)


def _repeated(program: Program) -> Program:
    """The program in which readers of cheap rows read what those rows read."""
    gone = _cheap(program)
    if not gone.any():
        return program
    owner, target = edges(program)
    reads = gone[target] & ~gone[owner]
    owner, target = owner[reads], target[reads]
    before = np.minimum(program.operand_bytes[owner], program.result_bytes[target])
    after = np.minimum(program.operand_bytes[owner], _bytes_read(program, gone)[target])
    operand_bytes = program.operand_bytes.copy()
    np.add.at(operand_bytes, owner, after - before)
    flags = program.flags.copy()
    flags[owner] &= ~np.uint16(Flag.IN_PLACE)  # its first operand may be another one now
    adjusted = program.with_rows(operand_bytes=np.maximum(operand_bytes, 0), flags=flags)
    return passed_over(adjusted, gone)


def _cheap(program: Program) -> Mask:
    """Rows without flops, of one operand or none, that each of their readers can do again."""
    role = _roles(program)
    cheap = (role == KernelRole.LAYOUT) | (
        is_any(program, OpClass.CONVERT) & (role == KernelRole.ELEMENT)
    )
    cheap &= (program.flops == 0) & (np.diff(program.dep_start) <= 1)
    cheap &= (program.result_bytes >= program.operand_bytes) & read_at_home(program)
    does = (role == KernelRole.ELEMENT) | (role == KernelRole.LAYOUT) | (role == KernelRole.REDUCE)
    takes = (does & (program.kind == Kind.COMPUTE)).tolist()
    start, rows = (column.tolist() for column in consumers(program))
    gone = [False] * len(program)
    for row in np.flatnonzero(cheap).tolist()[::-1]:
        readers = rows[start[row] : start[row + 1]]
        gone[row] = bool(readers) and all(takes[r] or gone[r] for r in readers)
    return np.array(gone, dtype=np.bool_)


def _bytes_read(program: Program, gone: Mask) -> Int64s:
    """For each `gone` row, the bytes that doing it again reads, through chains of such rows."""
    views = program.kind == Kind.VALUE
    read = np.where(views, program.result_bytes, program.operand_bytes)
    for row in np.flatnonzero(gone).tolist():
        for inner in program.dependencies(row).tolist():
            if gone[inner]:
                read[row] = min(read[row], read[inner])
    return read


def _roles(program: Program) -> Int64s:
    compute = program.kind == Kind.COMPUTE
    priced = (program.flags & Flag.UNPRICED) == 0
    views = (program.kind == Kind.VALUE) & (np.diff(program.dep_start) > 0) & ~carried(program)
    role = np.zeros(len(program), dtype=np.int64)
    role[is_any(program, ELEMENTWISE) & compute] = KernelRole.ELEMENT
    role[is_any(program, LAYOUT | {OpClass.IOTA}) & (compute | views)] = KernelRole.LAYOUT
    role[is_any(program, REDUCTION) & compute] = KernelRole.REDUCE
    role[is_any(program, PRODUCT) & compute] = KernelRole.MATMUL
    launched = (program.flags & Flag.LAUNCHED) != 0
    return np.where(priced & ~launched, role, KernelRole.ALONE)


@dataclass
class _Kernels:
    """The assignment while it grows: `kernel[row]` is the row that ends the row's kernel."""

    role: list[int]
    kernel: list[int]
    elements: list[int]
    convert: list[bool]
    ends: list[bool]  # whether a kernel may end at the row and hold others
    has_matmul: list[bool]
    feeds_matmul: list[bool]

    def element_joins(self, row: int, readers: list[int]) -> bool:
        """Whether an element-wise row or layout change joins the kernel of `readers`."""
        if not any(self.feeds_matmul[r] for r in readers):
            return True
        self.feeds_matmul[row] = self.role[row] == KernelRole.LAYOUT or self.convert[row]
        return self.feeds_matmul[row]

    def matmul_joins(self, row: int, end: int) -> bool:
        """Whether a product of matrices takes the kernel at `end` as its epilogue."""
        if self.role[end] != KernelRole.ELEMENT or self.has_matmul[end]:
            return False
        self.has_matmul[end] = self.elements[row] == self.elements[end]
        return self.has_matmul[end]

    def joins(self, row: int, readers: list[int]) -> bool:
        """Whether `row` becomes part of the kernel of its readers."""
        ends = {self.kernel[r] for r in readers}
        if len(ends) != 1 or self.role[row] in (KernelRole.ALONE, KernelRole.REDUCE):
            return False
        end = ends.pop()
        if not self.ends[end]:
            return False
        if self.role[row] == KernelRole.MATMUL:
            return self.matmul_joins(row, end)
        return self.element_joins(row, readers)


def _kernels(program: Program, role: Int64s) -> Int64s:
    """For each row, the last row of its kernel."""
    matmul = role == KernelRole.MATMUL
    elements = np.array([math.prod(s) for s in program.shapes], dtype=object)[program.shape]
    converts = is_any(program, OpClass.CONVERT)
    work = _Kernels(
        role=role.tolist(),
        kernel=list(range(len(program))),
        elements=elements.tolist(),
        convert=converts.tolist(),
        ends=((role != KernelRole.ALONE) & (program.kind == Kind.COMPUTE)).tolist(),
        has_matmul=matmul.tolist(),
        feeds_matmul=matmul.tolist(),
    )
    start, rows = (column.tolist() for column in consumers(program))
    for row in np.flatnonzero(read_at_home(program)).tolist()[::-1]:
        readers = rows[start[row] : start[row + 1]]
        if work.joins(row, readers):
            work.kernel[row] = work.kernel[readers[0]]
    return np.array(work.kernel, dtype=np.int64)


def _merged(program: Program, role: Int64s, kernel: Int64s) -> Program:
    """One row per kernel, at the place of its last row."""
    n = len(program)
    owner, target = edges(program)
    crosses = kernel[owner] != kernel[target]
    links = (owner[crosses], target[crosses])
    operand_bytes = np.where(
        np.bincount(kernel, minlength=n) > 1,
        bytes_in(program, kernel, links, program.result_bytes[links[1]]),
        program.operand_bytes,
    )
    opcodes, opcode, op = _named(program, role, kernel)
    dims = program.dims.copy()
    matmuls = np.flatnonzero(role == KernelRole.MATMUL)
    dims[kernel[matmuls]] = program.dims[matmuls]
    edit = Editor(program.with_rows(opcodes=opcodes, opcode=opcode, op=op, dims=dims))
    edit.merge(kernel, sums=("flops",))
    rows = edit.rows()
    product = kernel_products(program, kernel)
    first = np.full(n, -1, dtype=np.int64)
    np.maximum.at(first, kernel[links[0]], n - links[1])  # the smallest of each, from the end
    same = np.where(first < 0, -1, n - first) == _first_reads(program)
    flags = program.flags & np.where(same, 0xFFFF, ~Flag.IN_PLACE & 0xFFFF).astype(np.uint16)
    edit.set(rows, operand_bytes=operand_bytes[rows], product=product[rows], flags=flags[rows])
    return edit.build().program


def _named(
    program: Program, role: Int64s, kernel: Int64s
) -> tuple[tuple[str, ...], NDArray[np.uint16], NDArray[np.uint8]]:
    """The opcode table with `fusion`, and opcode and class of each kernel at its last row."""
    opcodes, fusion = with_value(program.opcodes, FUSION)
    opcode, op = program.opcode.copy(), program.op.copy()
    launched = kernel[program.kind == Kind.COMPUTE]
    several = np.bincount(launched, minlength=len(program)) > 1
    several &= role != KernelRole.REDUCE
    opcode[several], op[several] = fusion, OpClass.FUSED
    matmuls = np.flatnonzero(role == KernelRole.MATMUL)
    opcode[kernel[matmuls]], op[kernel[matmuls]] = program.opcode[matmuls], program.op[matmuls]
    return opcodes, opcode, op


def _first_reads(program: Program) -> Int64s:
    """For each row, the first row that it reads, or -1."""
    padded = np.append(program.deps, -1).astype(np.int64)
    none = np.diff(program.dep_start) == 0
    return np.where(none, -1, padded[program.dep_start[:-1]])


@dataclass(frozen=True)
class Fuse(Pass):
    """Merge rows into the kernels of a target profile: all of its passes that make kernels."""

    profile: str = "xla-gpu"
    name: ClassVar[str] = "fuse"

    def apply(self, program: Program) -> Program:
        """Return the program with one row per kernel. Raises FlintError FL405."""
        from flint.passes.profiles import profile

        return run_passes(program, profile(self.profile).kernels)
