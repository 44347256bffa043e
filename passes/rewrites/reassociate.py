"""Sum first, communicate once: add(all-reduce x, all-reduce y) -> all-reduce(add(x, y))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import edges, kept, permuted, rewired, use_counts
from flint.ir.opcodes import ADD, SUM_ALL_REDUCE, opcode_mask
from flint.ir.program import Collective, Kind, Program
from flint.passes.base import Pass


@dataclass(frozen=True)
class ReassociateAllReduce(Pass):
    """Turn a sum of all-reduces into one all-reduce of the sum; chains and trees of sums too.

    Two all-reduces take part if they sum over one group, have one size and type, lie in one
    region, and the addition alone reads them. The later one's row becomes the addition, the
    addition's row becomes the all-reduce, and the earlier one goes. XLA does the same
    (AllReduceReassociate); it meets the input gradients of q, k and v, and of gate and up.
    """

    name: ClassVar[str] = "reassociate"

    def apply(self, program: Program) -> Program:
        """Return the program with fewer all-reduces and the same additions."""
        work = _Sums(program)
        for row in np.flatnonzero(work.is_add).tolist():
            work.rewrite(row)
        return work.result()


class _Sums:
    """The state of one application: for each row, whose columns it has now and what it reads."""

    def __init__(self, program: Program) -> None:
        self.program = program
        compute = program.kind == Kind.COMPUTE
        reduces = (program.collective == Collective.ALL_REDUCE) & (program.group >= 0)
        whole = reduces & (program.comm_bytes == program.result_bytes)
        self.is_add = opcode_mask(program, ADD) & compute
        self._is_sum = whole & opcode_mask(program, SUM_ALL_REDUCE)
        self._uses = use_counts(program)
        self._source = np.arange(len(program))
        self._gone = np.zeros(len(program), dtype=np.bool_)
        self._deps: dict[int, list[int]] = {}

    def rewrite(self, row: int) -> None:
        """Rewrite the addition at `row`, then those that this makes possible below it."""
        pending = [row]
        while pending:
            add = pending.pop()
            reads = self._reads(add)
            if len(reads) == 2 and self._match(add, *reads):
                self._swap(add, *reads)
                pending.append(reads[1])

    def result(self) -> Program:
        """The program as rewritten."""
        if not self._deps:
            return self.program
        owner, target = edges(self.program)
        new = np.zeros(len(self.program), dtype=np.bool_)
        new[list(self._deps)] = True
        old = ~new[owner] & ~self._gone[owner]
        pairs = [(r, d) for r, deps in self._deps.items() if not self._gone[r] for d in deps]
        fresh = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        links = (np.append(owner[old], fresh[:, 0]), np.append(target[old], fresh[:, 1]))
        return kept(rewired(permuted(self.program, self._source), links), ~self._gone)

    def _reads(self, row: int) -> list[int]:
        known = self._deps.get(row)
        return self.program.dependencies(row).tolist() if known is None else known

    def _match(self, add: int, first: int, second: int) -> bool:
        p, region = self.program, self.program.region
        a, b, c = (int(self._source[r]) for r in (first, second, add))
        return bool(
            self._is_sum[first]
            and self._is_sum[second]
            and self._uses[first] == self._uses[second] == 1
            and region[add] == region[first] == region[second]
            and p.groups[p.group[a]] == p.groups[p.group[b]]
            and p.comm_bytes[a] == p.comm_bytes[b] == p.result_bytes[c]
            and p.dtype[a] == p.dtype[b] == p.dtype[c]
            and p.shape[a] == p.shape[b] == p.shape[c]
        )

    def _swap(self, add: int, first: int, second: int) -> None:
        read_first, read_second = self._reads(first), self._reads(second)
        for shared in set(read_first) & set(read_second):
            self._uses[shared] -= 1
        self._deps[second] = sorted({*read_first, *read_second})
        self._deps[add] = [second]
        self._gone[first] = True
        self._source[[add, second]] = self._source[[second, add]]
        self._is_sum[add], self._is_sum[second] = True, False
