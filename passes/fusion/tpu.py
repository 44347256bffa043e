"""What XLA for TPUs makes part of other kernels, beyond a prologue and an epilogue.

Products of matrices take cheap rows, transposes and a reduction; layers of a stack are read and
written where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask, changed, consumers, dtype_bits, edges, is_any, rewired, yielded
from flint.ir.edit import passed_over
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Int64s, Kind, Program
from flint.passes.base import Pass
from flint.passes.fusion.groups import Groups
from flint.passes.fusion.merging import merged, overwritten, segments, storage_rows
from flint.passes.fusion.roles import RowRole, roles_of

#: A reduction that joins a product leaves little: a maximum or a sum of each row.
SMALL = 8
#: Kernels that read a part of an array as easily as a whole one.
_READS = frozenset(
    map(int, (RowRole.ELEMENT, RowRole.ROWS, RowRole.REDUCE, RowRole.MATMUL, RowRole.UPDATE))
)


@dataclass(frozen=True)
class FuseTpuProducts(Pass):
    """Kernels of a program that XLA's TPU compiler makes part of a product, by named rules.

    * `operands_again`: an element-wise kernel that only products read, two or more, is computed by
      each of them, if that moves no more bytes: n x read <= read + (1 + n) x stored. Each then
      has its flops.
    * `turned_results`: a transpose of a product that nothing else reads: the product writes in
      that layout.
    * `reduced_results`: a reduction of a product's result whose other operands are no larger, and
      that leaves a small part of it, is a further result of the product: the maximum of scores,
      the mean square of a norm. One for each product.

    The program has one row per kernel already (`FuseChains`).
    """

    name: ClassVar[str] = "fuse-tpu-products"

    def apply(self, program: Program) -> Program:
        """Return the program with fewer kernels."""
        program = _operands_again(program)
        work = _TpuProducts(program)
        work.join()
        stands = np.where(work.product, 1, 0).astype(np.int64)
        return merged(program, work.groups.kernels(stands))


class _TpuProducts:
    """Rules `turned_results` and `reduced_results`."""

    def __init__(self, program: Program) -> None:
        self.groups = Groups(program)
        self.product = _products(program)
        self._program = program
        self._readers = _ViewReaders(program)
        self._turns = is_any(program, OpClass.TRANSPOSE)
        self._reduces = _reductions(program)

    def join(self) -> None:
        """Apply them to each product."""
        for row in np.flatnonzero(self.product).tolist():
            readers = self._readers.through_views(row)
            if len(readers) == 1 and self._turns[readers[0]]:
                self._merge(row, readers[0])
            else:
                self._reduced(row, readers)

    def _reduced(self, row: int, readers: list[int]) -> None:
        size = int(self._program.result_bytes[row])
        for reader in readers:
            small = self._program.result_bytes[reader] * SMALL <= size
            fits = self._program.operand_bytes[reader] <= 2 * size + size // SMALL
            if self._reduces[reader] and small and fits and self._merge(row, reader):
                return

    def _merge(self, row: int, reader: int) -> bool:
        if not self.groups.merge(row, reader):
            return False
        for view in self._readers.views_between(row, reader):
            self.groups.merge(view, row)
        return True


class _ViewReaders:
    """What reads a row, through views of it, in the row's own segment."""

    def __init__(self, program: Program) -> None:
        self._first, self._rows = (column.tolist() for column in consumers(program))
        single = np.diff(program.dep_start) == 1
        self._view = ((program.kind == Kind.VALUE) & single).tolist()

    def direct(self, row: int) -> list[int]:
        found: list[int] = self._rows[self._first[row] : self._first[row + 1]]
        return found

    def through_views(self, row: int) -> list[int]:
        """Rows, each once; a view that nothing reads stands for itself: a result of the step."""
        found, pending = set(), [row]
        while pending:
            for reader in self.direct(pending.pop()):
                if self._view[reader] and self.direct(reader):
                    pending.append(reader)
                else:
                    found.add(reader)
        return sorted(found)

    def views(self, row: int) -> list[int]:
        """All views of a row."""
        found: list[int] = []
        pending = [row]
        while pending:
            inner = [r for r in self.direct(pending.pop()) if self._view[r]]
            found += inner
            pending += inner
        return found

    def views_between(self, row: int, reader: int) -> list[int]:
        """Views of a row that only lead to one reader."""
        return [v for v in self.views(row) if self.through_views(v) == [reader]]


def _operands_again(program: Program) -> Program:
    """Rule `operands_again`."""
    readers, product = _ViewReaders(program), _products(program)
    segment = segments(program).tolist()
    operand, flops = program.operand_bytes.copy(), program.flops.copy()
    gone = np.zeros(len(program), dtype=np.bool_)
    for row in np.flatnonzero(_candidates(program)).tolist()[::-1]:
        reading = readers.through_views(row)
        if len(reading) < 2 or not all(product[r] for r in reading):
            continue
        views = readers.views(row)
        if any(segment[r] != segment[row] for r in (*reading, *views)):
            continue
        read, stored, n = int(operand[row]), int(program.result_bytes[row]), len(reading)
        if n * read > read + (1 + n) * stored:
            continue
        operand[reading] += read - np.minimum(stored, operand[reading])
        flops[reading] += flops[row]
        gone[[row, *views]] = True
    if not gone.any():
        return program
    changed = program.with_rows(operand_bytes=operand, flops=flops)
    return passed_over(changed, gone)


def _candidates(program: Program) -> Mask:
    """Element-wise kernels with one result that no loop takes."""
    roles = roles_of(program, operators=False, slices=False)
    element = (roles.role == RowRole.ELEMENT) | is_any(program, OpClass.FUSED)
    bits = np.array([dtype_bits(name) or 8 for name in program.dtypes] or [8])
    single = roles.results * bits[program.dtype] == program.result_bytes * 8
    placed = (program.flags & (Flag.IN_PLACE | Flag.VIEW | Flag.UNPRICED)) != 0
    found = element & single & ~placed & ~yielded(program) & (program.kind == Kind.COMPUTE)
    found &= np.diff(program.dep_start) > 0
    return np.asarray(found, dtype=np.bool_)


def _products(program: Program) -> Mask:
    roles = roles_of(program, operators=False, slices=False)
    return np.asarray(roles.role == RowRole.MATMUL, dtype=np.bool_)


def _reductions(program: Program) -> Mask:
    roles = roles_of(program, operators=False, slices=False)
    reduces = np.isin(roles.role, (RowRole.ROWS, RowRole.REDUCE)) | is_any(
        program, OpClass.FUSED_REDUCTION
    )
    return np.asarray(reduces & (program.kind == Kind.COMPUTE), dtype=np.bool_)


@dataclass(frozen=True)
class ReadSlices(Pass):
    """Rule `slices_in_place`: a slice of an array is a view of it, if all who read it can read so.

    Those are products, element-wise rows, reductions, and updates that write the slice elsewhere:
    each of them reads the slice out of the array. A copy is left where one of them is something
    else (a collective, a loop inside this one, an update that overwrites the slice), where the
    array is overwritten in the same loop, where the place depends on what a kernel computes, and
    in loops with an optimization barrier: what JAX's checkpointing saves passes one, as a whole.

    A view reads nothing but the array: the place is known when the loop runs.
    """

    name: ClassVar[str] = "read-slices"

    def apply(self, program: Program) -> Program:
        """Return the program in which such slices are views."""
        found = _views(program)
        if not found:
            return program
        rows, arrays = np.array(list(found)), np.array(list(found.values()))
        flags = program.flags[rows] | np.uint16(Flag.VIEW)
        columns = {"kind": Kind.VALUE, "flops": 0, "operand_bytes": 0}
        shown = changed(program, rows, flags=flags, alias=arrays, **columns)
        owner, target = edges(shown)
        view = np.zeros(len(program), dtype=np.bool_)
        view[rows] = True
        stays = ~view[owner] | (target == shown.alias[owner])
        return rewired(shown, (owner[stays], target[stays]))


def _views(program: Program) -> dict[int, int]:
    """Slices that are read in place, each with the array."""
    slices = (
        is_any(program, OpClass.DYNAMIC_SLICE) & (program.kind == Kind.COMPUTE) & ~yielded(program)
    )
    slices &= ~np.array([*(r.barrier for r in program.regions), False])[program.region]
    if not slices.any():
        return {}
    readers, places = _SliceReaders(program), _known_places(program)
    storage = storage_rows(program)
    written = overwritten(program, storage)
    found = {}
    for row in np.flatnonzero(slices).tolist():
        reads = program.dependencies(row).tolist()
        arrays = [d for d in reads if program.shapes[program.shape[d]]]
        known = all(places[d] for d in reads if d not in arrays)
        if len(arrays) != 1 or not known or not readers.all_read_in_place(row):
            continue
        if (int(program.region[row]), storage[arrays[0]]) not in written:
            found[row] = arrays[0]
    return found


@dataclass(frozen=True)
class WriteSlices(Pass):
    """Rule `slices_written`: a product writes its result into the array that an update puts it in.

    That is so if nothing else reads the result: the gradient of a layer's weights goes into the
    stack of gradients. The program has one row per kernel already; the kernel is where the update
    was, and writes in place as it did.
    """

    name: ClassVar[str] = "write-slices"

    def apply(self, program: Program) -> Program:
        """Return the program without such updates as kernels of their own."""
        role = roles_of(program, operators=False, slices=False).role
        groups = Groups(program)
        opcode, op, dims = program.opcode.copy(), program.op.copy(), program.dims.copy()
        written = {}
        for update in np.flatnonzero(_updates(program)).tolist():
            chain = _written_by(program, role, update)
            if chain and all(groups.merge(row, update) for row in chain):
                product = written[update] = chain[-1]
                opcode[update], dims[update] = opcode[product], dims[product]
                op[update] = op[product]
        if not written:
            return program
        stands = np.zeros(len(program), dtype=np.int64)
        stands[list(written)] = 1
        known = {u: {"operand_bytes": _read(program, p, u)} for u, p in written.items()}
        return merged(program, groups.kernels(stands), known=known, opcode=opcode, op=op, dims=dims)


def _updates(program: Program) -> Mask:
    """Kernels that write a part of an array in place, perhaps after a change of layout."""
    placed = ((program.flags & Flag.IN_PLACE) != 0) & (program.alias >= 0)
    part = placed & (program.result_bytes < program.result_bytes[program.alias])
    writes = is_any(program, frozenset({OpClass.UPDATE_SLICE, OpClass.FUSED})) & (
        program.kind == Kind.COMPUTE
    )
    return np.asarray(part & writes, dtype=np.bool_)


def _written_by(program: Program, role: Int64s, update: int) -> list[int]:
    """Views between an update and the product whose result it alone reads, then that product."""
    first, readers = consumers(program)
    taken = yielded(program)
    chain: list[int] = []
    row = update
    while True:
        reads = program.dependencies(row).tolist()
        parts = [d for d in reads if program.shapes[program.shape[d]]]
        if row == update:
            parts = [d for d in parts if d != program.alias[update]]
        if len(parts) != 1:
            return []
        reader, row = row, parts[0]
        if taken[row] or (readers[first[row] : first[row + 1]] != reader).any():
            return []
        chain.append(row)
        if role[row] == RowRole.MATMUL:
            fits = program.result_bytes[row] == program.result_bytes[update]
            return chain if fits else []
        if role[row] != RowRole.VIEW:
            return []


def _read(program: Program, product: int, update: int) -> int:
    """Bytes that both read together: the result of the product stays on the chip."""
    rest = int(program.operand_bytes[update] - program.result_bytes[product])
    return int(program.operand_bytes[product]) + max(rest, 0)


class _SliceReaders:
    """What reads a row, through views of it."""

    def __init__(self, program: Program) -> None:
        self._first, self._rows = (column.tolist() for column in consumers(program))
        role = roles_of(program, operators=False, slices=False).role
        self._view = (role == RowRole.VIEW).tolist()
        self._reads = np.isin(role, list(_READS)).tolist()
        self._region, self._alias = program.region.tolist(), program.alias.tolist()
        self._taken = yielded(program).tolist()

    def all_read_in_place(self, row: int) -> bool:
        """Whether there are readers, and each is a kernel of the same loop that reads slices."""
        pending, any_reads = [row], False
        while pending:
            of = pending.pop()
            for reader in self._rows[self._first[of] : self._first[of + 1]]:
                if self._taken[of] or self._region[reader] != self._region[row]:
                    return False
                if self._view[reader]:
                    pending.append(reader)
                elif self._reads[reader] and self._alias[reader] != of:
                    any_reads = True
                else:
                    return False
        return any_reads


def _known_places(program: Program) -> list[bool]:
    """Rows whose value no kernel or collective of the program computes: counters, arguments."""
    found: list[bool] = ((program.kind == Kind.VALUE) | (program.kind == Kind.PARAMETER)).tolist()
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    carries = [pair for region in program.regions for pair in region.carries]
    while True:
        for row in range(len(found)):
            found[row] = found[row] and all(found[d] for d in deps[start[row] : start[row + 1]])
        computed = [value for value, produced in carries if found[value] and not found[produced]]
        if not computed:
            return found
        for value in computed:
            found[value] = False
