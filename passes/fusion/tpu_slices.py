"""Layers of a stack, read and written where they are: XLA for TPUs makes slices part of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask, changed, consumers, edges, is_any, rewired, yielded
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Int64s, Kind, Program
from flint.passes.base import Pass
from flint.passes.fusion.groups import Groups
from flint.passes.fusion.merging import merged
from flint.passes.fusion.roles import Role, roles_of

#: Kernels that read a part of an array as easily as a whole one.
_READS = frozenset(map(int, (Role.ELEMENT, Role.ROWS, Role.REDUCE, Role.MATMUL, Role.UPDATE)))


@dataclass(frozen=True)
class ReadSlices(Pass):
    """Rule `slices_in_place`: a slice of an array is a view of it, if all who read it can read so.

    Those are products, element-wise rows, reductions, and updates that write the slice elsewhere:
    each of them reads the slice out of the array. A copy is left where one of them is something
    else (a collective, a loop inside of this one, an update that overwrites the slice), where the
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
    readers, places = _Readers(program), _known_places(program)
    storage = _storage(program)
    written = _overwritten(program, storage)
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
        if role[row] == Role.MATMUL:
            fits = program.result_bytes[row] == program.result_bytes[update]
            return chain if fits else []
        if role[row] != Role.VIEW:
            return []


def _read(program: Program, product: int, update: int) -> int:
    """Bytes that both read together: the result of the product stays on the chip."""
    rest = int(program.operand_bytes[update] - program.result_bytes[product])
    return int(program.operand_bytes[product]) + max(rest, 0)


class _Readers:
    """What reads a row, through views of it."""

    def __init__(self, program: Program) -> None:
        self._first, self._rows = (column.tolist() for column in consumers(program))
        role = roles_of(program, operators=False, slices=False).role
        self._view = (role == Role.VIEW).tolist()
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


def _overwritten(program: Program, storage: list[int]) -> set[tuple[int, int]]:
    """Storage that is overwritten in a region, in part or whole, as (region, row)."""
    placed = ((program.flags & Flag.IN_PLACE) != 0) & (program.alias >= 0)
    return {(int(program.region[row]), storage[row]) for row in np.flatnonzero(placed).tolist()}


def _storage(program: Program) -> list[int]:
    """For each row, the row whose storage its result is in."""
    found: list[int] = []
    for row, alias in enumerate(program.alias.tolist()):
        found.append(found[alias] if alias >= 0 else row)
    return found
