"""Generation of tokens in one program: what prefills, and loops of which each iteration decodes a token."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.columns import dtype_bits, is_any
from flint.ir.op_class import ATTENTION, DATA_MOVEMENT, LAYOUT, PRODUCT, OpClass
from flint.ir.program import Int32s, Int64s, Phase, Program, RegionKind
from flint.passes.extract.phases import reached
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
    the first such loop is the prefill, which has to give the loop its first token. A program that calculates
    more after its loops than one iteration does is none: a second prompt, or images of the tokens.
    """
    loops = [n for n in range(len(program.regions)) if _Loop(program, n).decodes]
    if not loops or not all(_follows(program, *pair) for pair in pairwise(loops)):
        return program
    first, rows = program.regions[loops[0]], np.arange(len(program))
    flops = np.where(is_any(program, PRODUCT | ATTENTION), program.flops, 0)
    after = rows >= first.start
    for number in loops:
        after[program.regions[number].start : program.regions[number].stop] = False
    one = total(program, np.where((rows >= first.start) & (rows < first.stop), flops, 0))
    if total(program, np.where(after, flops, 0)) * first.trip_count > one:
        return program
    phase = np.where(rows < first.start, Phase.PREFILL, Phase.DECODE)
    return program.with_rows(phase=phase.astype(np.uint8))


def _follows(program: Program, number: int, other: int) -> bool:
    """Whether the loop `other` goes on with what the loop `number` decodes."""
    made = reached(program, _Loop(program, number).inside)
    later = program.regions[other]
    return any(made[c] and c != produced for c, produced in later.carries)


class _Loop:
    """A loop around which there is no other, and what its iterations do with what they carry."""

    def __init__(self, program: Program, number: int) -> None:
        self.program, self.region = program, program.regions[number]
        rows = np.arange(len(program))
        self.inside: Mask = (rows >= self.region.start) & (rows < self.region.stop)

    @property
    def decodes(self) -> bool:
        """Whether it is of a generation: it has a cache, and what attention makes of that comes back as tokens.

        Of what comes back something must come from products before the loop at first: the first token.
        """
        r, p = self.region, self.program
        if r.kind != RegionKind.LOOP or r.parent >= 0 or r.trip_count < 1:
            return False
        if not self._any(_WRITES).any() or not self._caches.any() or not self._attends.any():
            return False
        made = reached(p, self._attends, self.inside)
        back = [(c, f) for c, f in self._changing if made[f] and not self._caches[c]]
        before = reached(p, is_any(p, PRODUCT | ATTENTION) & (np.arange(len(p)) < r.start))
        given = [c for c, _ in back if before[self._reads(c)].any()]
        return bool(given) and any(self._counts[c] for c, _ in back)

    @property
    def _changing(self) -> list[tuple[int, int]]:
        return [(c, produced) for c, produced in self.region.carries if c != produced]

    @cached_property
    def _counts(self) -> Mask:
        """Rows of integers that are wide enough for positions and tokens."""
        wide = [d.startswith(("int", "uint")) and dtype_bits(d) >= 16 for d in self.program.dtypes]
        found: Mask = np.array(wide or [False])[self.program.dtype]
        return found

    @cached_property
    def _moving(self) -> Mask:
        """Integers that differ from one iteration to the next."""
        marked = np.zeros(len(self.program), dtype=np.bool_)
        marked[[c for c, _ in self._changing if self._counts[c]]] = True
        return reached(self.program, marked, self.inside & self._counts)

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
        p, carried = self.program, np.zeros(len(self.program), dtype=np.bool_)
        carried[[c for c, _ in self._changing if not self._counts[c]]] = True
        held = reached(p, carried, self._keeps)
        written = np.zeros(len(p), dtype=np.bool_)
        found = np.zeros(len(p), dtype=np.bool_)
        for row in np.flatnonzero(self._any(_WRITES) & ~self._counts).tolist():
            read = self._reads(row)
            whole = read[self._same_size(row, read) & held[read]]
            if len(whole) and self._moving[read].any():
                if not self._writes_one(row, read, int(whole[0])):
                    return found
                written[row] = True
        back = reached(p, written, self._keeps)
        found[[c for c, produced in self._changing if carried[c] and back[produced]]] = True
        return found

    def _writes_one(self, row: int, read: Int32s, whole: int) -> bool:
        p = self.program
        part = [r for r in read.tolist() if r != whole and p.dtype[r] == p.dtype[row]]
        sizes = p.shapes[p.shape[row]]
        if not part:
            return False
        written = p.shapes[p.shape[part[-1]]]
        if p.op[row] == OpClass.UPDATE_SLICE:
            pairs = zip(sizes, written, strict=True)
            return sizes != written and all(b in (a, 1) for a, b in pairs)
        places, rest = divmod(math.prod(sizes), max(math.prod(written), 1))
        return not rest and places > 1 and places in {*sizes, *(sizes[0] * d for d in sizes)}

    @cached_property
    def _attends(self) -> Mask:
        """Products of what is an exponential of a product with a cache, with a cache again; or one kernel."""
        p = self.program
        held = reached(p, self._caches, self._keeps)
        reads = np.zeros(len(p), dtype=np.bool_)
        reads[p.dep_owner[held[p.deps]]] = True
        products = self._any(PRODUCT)
        between = self.inside & ~products
        scores = reached(p, products & reads, between)
        weights = reached(p, scores & is_any(p, _EXPONENTIALS), between)
        weighs = np.zeros(len(p), dtype=np.bool_)
        weighs[p.dep_owner[weights[p.deps]]] = True
        return (products & reads & weighs) | (self._any(ATTENTION) & reads)

    def _any(self, classes: frozenset[OpClass]) -> Mask:
        return self.inside & is_any(self.program, classes)

    def _reads(self, row: int) -> Int32s:
        start = self.program.dep_start
        return self.program.deps[start[row] : start[row + 1]]

    def _same_size(self, row: int, others: Int32s) -> Mask:
        sizes: Int64s = np.array([math.prod(s) for s in self.program.shapes], dtype=np.int64)
        of, types = sizes[self.program.shape], self.program.dtype
        found: Mask = (of[others] == of[row]) & (types[others] == types[row])
        return found
