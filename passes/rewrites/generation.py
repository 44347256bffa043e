"""Generation of tokens in one program: what prefills, and loops of which each iteration decodes a token."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.columns import dtype_bits, is_any
from flint.ir.op_class import ATTENTION, DATA_MOVEMENT, LAYOUT, PRODUCT, OpClass
from flint.ir.program import Int32s, Int64s, Phase, Program, Region, RegionKind
from flint.passes.rewrites.phases import reached
from flint.passes.work.totals import total

#: What reads a cache and still holds it: copies, other types, scales of a quantized one, masks.
_KEEPS = (
    LAYOUT
    | DATA_MOVEMENT
    | {OpClass.VALUE, OpClass.PART, OpClass.CONVERT, OpClass.MULTIPLY, OpClass.ARITHMETIC}
)
_WRITES = frozenset({OpClass.UPDATE_SLICE, OpClass.SCATTER})
_READS_A_PART = frozenset({OpClass.DYNAMIC_SLICE, OpClass.GATHER})
_EXPONENTIALS = frozenset({OpClass.EXPONENTIAL, OpClass.SOFTMAX, OpClass.FUSED_SOFTMAX})


def with_generation(program: Program) -> Program:
    """Give the rows of a program that generates tokens the phases PREFILL and DECODE, and leave others as they are.

    A loop decodes if it carries a cache and feeds back what attention to that gives (see `_Loop`). What is before
    it is the prefill, which has to give the loop its first token. A program with another such loop, or that
    calculates more after it than one iteration does, is none: a second prompt, or images of the tokens.
    """
    outer = [r for r in program.regions if r.kind == RegionKind.LOOP and r.parent < 0]
    loops = [r for r in outer if _Loop(program, r).decodes]
    if len(loops) != 1 or outer[-1] is not loops[0]:
        return program
    rows, loop = np.arange(len(program)), loops[0]
    flops = np.where(is_any(program, PRODUCT | ATTENTION), program.flops, 0)
    inside = total(program, np.where((rows >= loop.start) & (rows < loop.stop), flops, 0))
    if total(program, np.where(rows >= loop.stop, flops, 0)) * loop.trip_count > inside:
        return program
    phase = np.where(rows < loop.start, Phase.PREFILL, Phase.DECODE)
    return program.with_rows(phase=phase.astype(np.uint8))


class _Loop:
    """A loop around which there is no other, and what its iterations do with what they carry."""

    def __init__(self, program: Program, region: Region) -> None:
        self.program, self.region = program, region
        self._rows = np.arange(len(program))
        self._inside: Mask = (self._rows >= region.start) & (self._rows < region.stop)
        self._changing = [(c, produced) for c, produced in region.carries if c != produced]

    @property
    def decodes(self) -> bool:
        """Whether it is of a generation: it has a cache, and what attention makes of that comes back as tokens.

        Of what comes back something must come from products before the loop at first: the first token.
        """
        p = self.program
        if not self._any(_WRITES).any() or not self._caches.any() or not self._attends.any():
            return False
        made = reached(p, self._attends, self._inside)
        back = [c for c, produced in self._changing if made[produced] and not self._caches[c]]
        given = reached(p, is_any(p, PRODUCT | ATTENTION) & (self._rows < self.region.start))
        begun = any(given[self._reads(c)].any() for c in back)
        return begun and bool(self._counts[back].any())

    @cached_property
    def _counts(self) -> Mask:
        """Rows of integers that are wide enough for positions and tokens."""
        wide = [d.startswith(("int", "uint")) and dtype_bits(d) >= 16 for d in self.program.dtypes]
        found: Mask = np.array(wide)[self.program.dtype]
        return found

    @cached_property
    def _moving(self) -> Mask:
        """Integers that differ from one iteration to the next."""
        marked = self._marked([c for c, _ in self._changing if self._counts[c]])
        return reached(self.program, marked, self._inside & self._counts)

    @cached_property
    def _keeps(self) -> Mask:
        """Rows that hold all of what they read: a part that moves from one iteration to the next is not."""
        found = self._any(_KEEPS) & ~self._counts
        for row in np.flatnonzero(found & is_any(self.program, _READS_A_PART)).tolist():
            read = self._reads(row)
            if self._moving[read].any() and not self._same_size(row, read).any():
                found[row] = False
        return found

    @cached_property
    def _caches(self) -> Mask:
        """Carried values that each iteration writes one place of, a different one each time.

        None if it writes several (drafts that are verified, chunks of a prompt).
        """
        p = self.program
        carried = self._marked([c for c, _ in self._changing if not self._counts[c]])
        held, written = reached(p, carried, self._keeps), []
        for row in np.flatnonzero(self._any(_WRITES) & ~self._counts).tolist():
            read = self._reads(row)
            whole = read[self._same_size(row, read) & held[read]]
            if len(whole) and self._moving[read].any():
                if not self._writes_one(row, [r for r in read.tolist() if r != whole[0]]):
                    return self._marked([])
                written.append(row)
        back = reached(p, self._marked(written), self._keeps)
        return self._marked([c for c, produced in self._changing if carried[c] and back[produced]])

    def _writes_one(self, row: int, others: list[int]) -> bool:
        p = self.program
        sizes = p.shapes[p.shape[row]]
        typed = [p.shapes[p.shape[r]] for r in others if p.dtype[r] == p.dtype[row]]
        if not typed or (p.op[row] == OpClass.UPDATE_SLICE and len(typed[-1]) != len(sizes)):
            return False  # a kernel that makes what it writes
        written = typed[-1]
        if p.op[row] == OpClass.UPDATE_SLICE:
            return sizes != written and all(
                b in (a, 1) for a, b in zip(sizes, written, strict=True)
            )
        places, rest = divmod(math.prod(sizes), max(math.prod(written), 1))
        return not rest and places > 1 and places in {*sizes, *(sizes[0] * d for d in sizes)}

    @cached_property
    def _attends(self) -> Mask:
        """Products of what is an exponential of a product with a cache, with a cache again; or one kernel."""
        p = self.program
        reads = self._readers(reached(p, self._caches, self._keeps))
        products = self._any(PRODUCT)
        between = self._inside & ~products
        scores = reached(p, products & reads, between)
        weights = reached(p, scores & is_any(p, _EXPONENTIALS), between)
        return reads & ((products & self._readers(weights)) | self._any(ATTENTION))

    def _marked(self, rows: list[int]) -> Mask:
        found = np.zeros(len(self.program), dtype=np.bool_)
        found[rows] = True
        return found

    def _readers(self, rows: Mask) -> Mask:
        return self._marked(self.program.dep_owner[rows[self.program.deps]].tolist())

    def _any(self, classes: frozenset[OpClass]) -> Mask:
        return self._inside & is_any(self.program, classes)

    def _reads(self, row: int) -> Int32s:
        start = self.program.dep_start
        return self.program.deps[start[row] : start[row + 1]]

    def _same_size(self, row: int, others: Int32s) -> Mask:
        sizes: Int64s = np.array([math.prod(s) for s in self.program.shapes], dtype=np.int64)
        of, types = sizes[self.program.shape], self.program.dtype
        found: Mask = (of[others] == of[row]) & (types[others] == types[row])
        return found
