"""Kernels as XLA for CPUs makes them: loops with one result, products of matrices alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask, carried, consumers, edges, is_any, rewired, with_value, yielded
from flint.ir.edit import kept, passed_over
from flint.ir.op_class import ELEMENTWISE, LAYOUT, REDUCTION, SHORT, OpClass
from flint.ir.program import Flag, Int64s, Kind, Program
from flint.passes.base import Pass
from flint.passes.fusion.merging import MERGED_NAMES

#: Elements of a result that come from elsewhere in an operand.
_READS = frozenset({OpClass.DYNAMIC_SLICE, OpClass.CONCATENATE, OpClass.GATHER, OpClass.PAD})
#: What a loop computes element by element, or reads from elsewhere.
_LOOPS = ELEMENTWISE | LAYOUT | _READS | {OpClass.IOTA}
#: Functions that are not computed twice (XLA's `InstructionFusion::IsExpensive`).
_COSTLY = (ELEMENTWISE - SHORT) | {OpClass.GATHER}
#: What the library's reductions compute of what they reduce.
_ARITHMETIC = frozenset(
    {
        OpClass.ADD,
        OpClass.SUBTRACT,
        OpClass.MULTIPLY,
        OpClass.DIVIDE,
        OpClass.NEGATE,
        OpClass.MAXIMUM,
        OpClass.MINIMUM,
        OpClass.BROADCAST,
    }
)
_MOVES = (LAYOUT - {OpClass.BROADCAST, OpClass.RESHAPE}) | _READS


@dataclass(frozen=True)
class FuseXlaCpu(Pass):
    """XLA's rules for CPUs (`CpuInstructionFusion`), readers first.

    * `loops`: what is computed element by element, changes of layout, slices, pads and
      concatenations are computed by the loops that read them, once in each.
    * `costly`: not a function like an exponential or a quotient that several loops read, or
      that a reader repeats.
    * `all_or_none`: what has several operands of its rank, larger together than its result, is
      computed by all of its readers or stored for all.
    * `reductions`: a reduction takes arithmetic that only it reads, and is in no other kernel.
    * `products`: products of matrices are kernels of their own.
    * `bitcasts`: a value seen in another shape is computed again in that shape, where the rules
      above let it be; it is stored twice then.
    """

    name: ClassVar[str] = "fuse-xla-cpu"

    def apply(self, program: Program) -> Program:
        """Return the program with one row for each kernel."""
        program = _without_names(program)
        work = _Loops(program)
        for row in range(len(program) - 1, -1, -1):
            work.decide(row)
        return _merged(program, work)


def _without_names(program: Program) -> Program:
    """Without rows that only name a value, as arguments of calls do."""
    shape, dtype = program.shape, program.dtype
    owner, target = edges(program)
    named = (shape[owner] == shape[target]) & (dtype[owner] == dtype[target])
    same = np.zeros(len(program), dtype=np.bool_)
    same[owner[named]] = True
    gone = (program.kind == Kind.VALUE) & ((program.flags & Flag.VIEW) != 0)
    gone &= same & (np.diff(program.dep_start) == 1) & ~carried(program) & ~yielded(program)
    return passed_over(program, gone) if gone.any() else program


class _Loops:
    """Which readers compute each row, and which rows are stored."""

    def __init__(self, program: Program) -> None:
        self._program = program
        compute = (program.kind == Kind.COMPUTE) & ((program.flags & Flag.UNPRICED) == 0)
        self.views = (program.kind == Kind.VALUE) & (np.diff(program.dep_start) == 1)
        self.views &= is_any(program, _LOOPS) & ~carried(program)
        self._may = ((is_any(program, _LOOPS) & compute) | self.views).tolist()
        self._taken = yielded(program).tolist()
        update = is_any(program, OpClass.UPDATE_SLICE) & compute
        self._update = update.tolist()
        #: Rows that are part of a reduction's kernel.
        self._reduces = (is_any(program, REDUCTION) & compute).tolist()
        self._costly = (is_any(program, _COSTLY) & ~_by_repeated(program)).tolist()
        self._arithmetic = (is_any(program, _ARITHMETIC) & compute).tolist()
        self._repeats = is_any(program, OpClass.BROADCAST).tolist()
        self._start, self._rows = (column.tolist() for column in consumers(program))
        self._place = list(zip(program.region.tolist(), program.stream.tolist(), strict=True))
        self._alias = program.alias.tolist()
        self._small = _small(program)
        #: Whether a row is stored.
        self.stored = [True] * len(program)
        #: For each row the kernel that computes it, or -1 for several.
        self._kernel = list(range(len(program)))
        #: For each row the readers that compute it.
        self.inside: list[list[int]] = [[] for _ in range(len(program))]

    def decide(self, row: int) -> None:
        """Whether its readers compute a row, and which of them."""
        readers = self._rows[self._start[row] : self._start[row + 1]]
        if not readers or not self._may[row]:
            return
        kernel = self._one({self._kernel[r] for r in readers})
        several = kernel < 0
        if several and self._costly[row]:
            return
        takes = [r for r in readers if self._takes(r, row, several)]
        if len(takes) == len(readers) and not self._taken[row]:
            self.stored[row] = False
            self._reduces[row] = any(self._reduces[r] for r in takes)
            self._kernel[row] = kernel
        elif not self._small[row]:
            return
        elif takes:
            self._kernel[row] = -1
        self.inside[row] = takes

    @staticmethod
    def _one(kernels: set[int]) -> int:
        return kernels.pop() if len(kernels) == 1 else -1

    def _takes(self, reader: int, row: int, several: bool) -> bool:
        """Whether the kernels of `reader` can compute `row`."""
        if self._place[reader] != self._place[row]:
            return False
        if self._costly[row] and self._repeats[reader]:
            return False
        if self._reduces[reader]:
            return not several and bool(self._arithmetic[row])
        if self._update[reader]:
            return bool(self._alias[reader] != row)
        return bool(self._may[reader])


def _by_repeated(program: Program) -> Mask:
    """Quotients by a value that is repeated: XLA multiplies by what repeats its inverse."""
    owner, target = edges(program)
    found = np.zeros(len(program), dtype=np.bool_)
    found[owner[is_any(program, OpClass.BROADCAST)[target]]] = True
    return found & is_any(program, OpClass.DIVIDE)


def _small(program: Program) -> list[bool]:
    """Rows that read no more than they make, or at most one operand of their rank."""
    rank = np.array([len(s) for s in program.shapes] or [0])[program.shape]
    owner, target = edges(program)
    repeated = is_any(program, frozenset({OpClass.BROADCAST, OpClass.IOTA}))
    large = (rank[target] >= rank[owner]) & ~repeated[target]
    count = np.bincount(owner[large], minlength=len(program))
    found = (count <= 1) | (program.operand_bytes <= program.result_bytes)
    return found.tolist()  # type: ignore[no-any-return]


def _merged(program: Program, work: _Loops) -> Program:
    """One row for each stored value: it reads what the rows that it computes read."""
    kernels = _contents(program, work)
    links = [(row, read) for row, kernel in kernels.items() for read in kernel.reads]
    pairs: Int64s = np.array(links, dtype=np.int64).reshape(-1, 2)
    named = _named(program, work, kernels)
    return kept(rewired(named, (pairs[:, 0], pairs[:, 1])), np.array(work.stored, dtype=np.bool_))


@dataclass(frozen=True, slots=True)
class _LoopKernel:
    """What a kernel reads, and which rows it computes before its last one."""

    reads: set[int]
    members: set[int]


def _contents(program: Program, work: _Loops) -> dict[int, _LoopKernel]:
    found: list[_LoopKernel] = []
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    takers = [frozenset(rows) for rows in work.inside]
    for row in range(len(program)):
        kernel = _LoopKernel(set(), set())
        for read in deps[start[row] : start[row + 1]]:
            if row in takers[read]:
                kernel.reads.update(found[read].reads)
                kernel.members.update(found[read].members, (read,))
            else:
                kernel.reads.add(read)
        found.append(kernel)
    return {row: kernel for row, kernel in enumerate(found) if work.stored[row]}


def _named(program: Program, work: _Loops, kernels: dict[int, _LoopKernel]) -> Program:
    """The program in which stored rows have the columns of their kernels; links stay."""
    opcodes, loop = with_value(program.opcodes, MERGED_NAMES[OpClass.FUSED_LOOP])
    opcodes, layout = with_value(opcodes, MERGED_NAMES[OpClass.FUSED_LAYOUT])
    opcode, op = program.opcode.copy(), program.op.copy()
    flops, kind = program.flops.copy(), program.kind.copy()
    operand, flags = program.operand_bytes.copy(), program.flags.copy()
    moves = is_any(program, _MOVES) & (program.kind < Kind.COLLECTIVE)
    ends = is_any(program, _LOOPS) & (program.kind < Kind.COLLECTIVE)
    last: dict[int, int] = {}
    for row, kernel in kernels.items():
        members = list(kernel.members)
        if not any(not work.views[m] for m in members):
            continue
        last.update(dict.fromkeys(members, row))
        operand[row] = program.result_bytes[list(kernel.reads)].sum()
        if ends[row]:
            same = program.result_bytes[members] >= program.result_bytes[row]
            turned = moves[row] or work.views[row] or bool((moves[members] & same).any())
            opcode[row] = layout if turned else loop
            op[row] = OpClass.FUSED_LAYOUT if turned else OpClass.FUSED_LOOP
            kind[row] = Kind.COMPUTE
            flags[row] &= ~np.uint16(Flag.VIEW)
    for member, row in last.items():
        flops[row] += 0 if work.stored[member] else program.flops[member]
    return program.with_rows(
        opcodes=opcodes,
        opcode=opcode,
        op=op,
        flops=flops,
        kind=kind,
        operand_bytes=operand,
        flags=flags,
    )
