"""Attention written as product, softmax, product becomes one kernel; its backward pass another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flint.ir.columns import edges, is_any, past_barriers, rewired, with_value
from flint.ir.dims import AttentionDims, ProductDims
from flint.ir.op_class import ATTENTION, MERGED, OpClass
from flint.ir.program import CAUSAL, PERHAPS_A_WINDOW, Int64s, Kind, Phase, Program
from flint.passes.base import Pass
from flint.passes.fusion.groups import Groups
from flint.passes.fusion.merging import MERGED_NAMES, merged, value_bytes
from flint.passes.fusion.roles import RowRole, named_kernels, roles_of
from flint.passes.fusion.split_attention import (
    SoftmaxGraph,
    SoftmaxReach,
    SplitAttention,
    SplitFinder,
    without_unread,
)
from flint.passes.rewrites.dead_code import DropDeadCode

#: Ends of the names of kernels, for people, by mask.
_MASK_NAMES = {0: "", CAUSAL: "[causal]", PERHAPS_A_WINDOW: "[causal][window?]"}
#: Bytes of the logarithm of the sum of exponentials that the forward pass keeps for each row.
STATISTIC_BYTES = 4


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Recognize attention that a program writes out, and make flash attention of it.

    * `attention`: a product (scores) that element-wise rows, a mask and a softmax along rows lead
      to exactly one other product. Nothing else of size leaves: what the backward pass reads of it
      becomes the statistic of each row.
    * `attention_backward`: the products of the backward pass (of values, weights, queries and keys)
      and all between them. It computes the scores again, so that weights that the program stored
      for it, in stacks of a loop too, are stored no more; nor those that a stage of a pipeline
      saved for another unit (see `split_attention`).

    A mask made from positions alone costs nothing and makes the kernel causal; one of several
    comparisons may be a window, whose length a program does not hold. A changed layout
    of what goes in or comes out is part of the kernel. dims are (batch x heads, queries, keys, head
    size); flops those of all products, of the full square; bytes what crosses, not the scores.
    With `named`, a softmax in a kernel that the program names stays there; with `compiled`, only
    what one compiled call writes out is recognized.
    """

    operators: bool = True
    named: bool = False
    compiled: bool = False
    name: ClassVar[str] = "fuse-attention"

    def apply(self, program: Program) -> Program:
        """Return the program with a row for each attention."""
        bare = past_barriers(program)
        roles = roles_of(bare, operators=self.operators, compiled=self.compiled)
        graph = SoftmaxGraph(bare, roles)
        finder = _AttentionFinder(bare, graph, named_kernels(bare, self.named).tolist())
        found = finder.kernels()
        if not found:
            return program
        inside = np.zeros(len(program), dtype=np.bool_)
        for kernel in found:
            inside[list(kernel.rows | kernel.cut | kernel.stored)] = True
        program = past_barriers(program, inside)
        rewritten = DropDeadCode().apply(_rewritten(program, found, finder.groups))
        return without_unread(program, rewritten)


def attention_turns(program: Program, *, named: bool = False) -> int:
    """How often a step calculates an attention that it writes out, in forward passes and again.

    These are softmaxes of a batched product; with `named` not those in kernels that the program
    names, which stay as they are.
    """
    program = past_barriers(program)
    graph = SoftmaxGraph(program, roles_of(program, operators=True))
    names = named_kernels(program, named).tolist()
    found = set[int]()
    for softmax in graph.softmaxes():
        size = graph.results[softmax]
        products, _, _ = graph.products_above(
            {softmax}, size, frozenset(RowRole) - {RowRole.MATMUL}
        )
        if not names[softmax]:
            found |= {p for p in products if ProductDims.of(program.dims[p]).batch > 1}
    return int(program.trips[list(found)].sum())


@dataclass(frozen=True)
class FusedTurns:
    """How often a step runs fused attention: forward, forward but not again, and backward."""

    forward: int
    first: int
    backward: int


def fused_turns(program: Program) -> FusedTurns:
    """How often a step of a program of kernels runs fused attention."""
    back = is_any(program, OpClass.FUSED_ATTENTION_BACKWARD)
    forward = is_any(program, OpClass.FUSED_ATTENTION)
    rows = (forward, forward & (program.phase == Phase.FORWARD), back)
    return FusedTurns(*(int(program.trips[r].sum()) for r in rows))


def has_fused_attention(program: Program) -> bool:
    """Whether attention was turned into kernels that store no scores."""
    return bool(is_any(program, MERGED & ATTENTION).any())


@dataclass(frozen=True)
class _AttentionKernel:
    """Rows of a kernel; `ends` stands for it; it no longer reads what is in `cut`.

    What only waited for a row of `stored` waits for the kernel.
    """

    op: OpClass
    mask: int
    rows: frozenset[int]
    ends: int
    cut: frozenset[int]
    dims: AttentionDims[int]
    flops: int
    operand_bytes: int
    result_bytes: int
    stored: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Pattern:
    """An attention by its products; the backward pass may be missing, or the forward pass."""

    scores: int
    softmax: int
    reach: SoftmaxReach
    above: frozenset[int]
    masks: frozenset[int]
    weighted: int = -1  #: weights x values
    backward: frozenset[int] = frozenset()  #: the four products of the backward pass
    gradient: int = -1  #: of the weights
    derived: frozenset[int] = frozenset()  #: rows computed from it


class _AttentionFinder:
    def __init__(self, program: Program, graph: SoftmaxGraph, named: list[int]) -> None:
        self._program = program
        self._graph = graph
        self._bytes = value_bytes(program).tolist()
        self._named = named
        self.groups = Groups(program)

    def kernels(self) -> list[_AttentionKernel]:
        """All attention kernels of the program whose rows can be together."""
        found: list[_AttentionKernel] = []
        seen: set[int] = set()
        for softmax in self._graph.softmaxes():
            if self._named[softmax]:
                continue
            pattern = self._pattern(softmax)
            if pattern is None or pattern.scores in seen:
                continue
            seen.add(pattern.scores)
            for kernel in (self._forward(pattern), self._backward(pattern)):
                if kernel and self._one_call(kernel) and self.groups.merge_all(set(kernel.rows)):
                    found.append(kernel)
        for split in SplitFinder(self._graph).found():
            kernel = self._backward(_of_split(split))
            if kernel and self._one_call(kernel) and self.groups.merge_all(set(kernel.rows)):
                found.append(kernel)
        return found

    def _one_call(self, kernel: _AttentionKernel) -> bool:
        """Whether what works in a kernel is of one compiled call, or of none."""
        rows = np.array(sorted(kernel.rows))
        working = rows[self._program.kind[rows] == Kind.COMPUTE]
        return len(np.unique(self._program.compiled[working])) <= 1

    def _pattern(self, softmax: int) -> _Pattern | None:
        graph = self._graph
        size = graph.results[softmax]
        products, above, masks = graph.products_above({softmax}, size)
        if len(products) != 1:
            return None
        scores = products.pop()
        reach = graph.reach(scores)
        if reach is None or softmax not in reach.rows:
            return None
        basis = _Pattern(scores, softmax, reach, frozenset(above), frozenset(masks))
        return self._with_products(basis, size)

    def _with_products(self, p: _Pattern, size: int) -> _Pattern | None:
        """The pattern with its other products, if they are those of an attention."""
        inside = p.reach.rows
        gradients, between, masks = self._graph.products_above(inside, size)
        gradients -= {p.scores}
        if not gradients:
            taken = p.reach.products
            if len(taken) != 1:
                return None
            return _replace(p, weighted=min(taken))
        if len(gradients) != 1:
            return None
        gradient = gradients.pop()
        derived = self._derived(gradient, inside | between)
        late = {d for d in p.reach.products if derived & set(self._graph.reads(d))}
        early = sorted(p.reach.products - late)
        if len(late) != 2 or not 1 <= len(early) <= 2:
            return None
        weighted = self._weighted(early, gradient)
        values = [d for d in early if d != weighted]
        if len(values) != 1:
            return None
        return _replace(
            p,
            weighted=weighted,
            gradient=gradient,
            backward=frozenset({gradient, *values, *late}),
            derived=frozenset(derived | (between & self._derived(gradient, between))),
            masks=p.masks | masks,
        )

    def _weighted(self, early: list[int], gradient: int) -> int:
        """Of the products that take the weights, that of the forward pass, or -1."""
        phase = self._program.phase
        first = early[0]
        if len(early) == 1:
            forward = phase[first] in (Phase.FORWARD, Phase.REMAT)
            return first if forward else -1
        return first if first < gradient else -1

    def _derived(self, row: int, inside: set[int]) -> set[int]:
        found: set[int] = set()
        pending = [row]
        while pending:
            for reader in self._graph.readers(pending.pop()):
                if reader in inside and reader not in found:
                    found.add(reader)
                    pending.append(reader)
        return found

    def _needed(self, row: int, inside: set[int]) -> set[int]:
        """Rows of `inside` that lead to a row."""
        found: set[int] = set()
        pending = [row]
        while pending:
            for read in self._graph.reads(pending.pop()):
                if read in inside and read not in found:
                    found.add(read)
                    pending.append(read)
        return found

    def _forward_rows(self, p: _Pattern) -> set[int]:
        if p.weighted < 0:
            return set()
        early = p.reach.rows - p.derived - p.reach.stored
        return self._needed(p.weighted, early) | {p.scores, p.weighted}

    def _forward(self, p: _Pattern) -> _AttentionKernel | None:
        rows = self._forward_rows(p)
        if not rows:
            return None
        rows |= self._layouts(rows, {p.scores, p.weighted})
        cut = frozenset(d for r in rows for d in self._graph.reads(r) if self._graph.made[d])
        dims = self._dims(p)
        statistic = dims.heads * dims.queries * STATISTIC_BYTES if p.gradient >= 0 else 0
        return _AttentionKernel(
            op=OpClass.FUSED_ATTENTION,
            mask=self._mask(p),
            rows=frozenset(rows),
            ends=p.weighted,
            cut=cut,
            dims=dims,
            flops=self._flops(p.scores, p.weighted),
            operand_bytes=self._read(rows, cut),
            result_bytes=self._bytes[p.weighted] + statistic,
            stored=frozenset(p.reach.stored),
        )

    def _backward(self, p: _Pattern) -> _AttentionKernel | None:
        if p.gradient < 0:
            return None
        region = self._program.region[p.gradient]
        rest = p.reach.rows - self._forward_rows(p) - p.reach.stored
        rows = {r for r in rest | p.derived if self._program.region[r] == region}
        rows |= p.backward
        if p.weighted < 0:
            rows |= {p.scores}
        if any(self._program.region[r] != region for r in rows):
            return None
        rows |= self._layouts(rows, p.backward)
        made = {d for r in rows for d in self._graph.reads(r) if self._graph.made[d]}
        before = p.reach.rows - rows
        dims = self._dims(p)
        lines = dims.heads * dims.queries * STATISTIC_BYTES
        gradient = self._gradient_bytes(p, rows)
        return _AttentionKernel(
            op=OpClass.FUSED_ATTENTION_BACKWARD,
            mask=self._mask(p),
            rows=frozenset(rows),
            ends=max(p.backward),
            cut=frozenset(made | (before & p.reach.stored)),
            dims=dims,
            flops=self._flops(*p.backward, p.scores),
            operand_bytes=self._read(rows, frozenset(made | before)) + gradient + lines,
            result_bytes=sum(self._bytes[d] for d in p.backward - {p.gradient}),
        )

    def _gradient_bytes(self, p: _Pattern, rows: set[int]) -> int:
        """Bytes of the result of the forward pass, of which the backward pass reads each row."""
        if p.weighted >= 0:
            return int(self._bytes[p.weighted])
        batch, queries, _, size = self._dims(p)
        width = self._bytes[p.scores] // max(1, self._graph.results[p.scores])
        return batch * queries * size * int(width)

    def _layouts(self, rows: set[int], products: set[int] | frozenset[int]) -> set[int]:
        """Changes of layout right before or after the products of a kernel, read nowhere else."""
        graph, found = self._graph, set[int]()
        for product in products:
            for read in graph.reads(product):
                while read not in rows and self._is_layout(read):
                    if any(r not in rows and r not in found for r in graph.readers(read)):
                        break
                    found.add(read)
                    read = graph.reads(read)[0]
            readers = graph.readers(product)
            while len(readers) == 1 and readers[0] not in rows and self._is_layout(readers[0]):
                found.add(readers[0])
                readers = graph.readers(readers[0])
        return found

    def _is_layout(self, row: int) -> bool:
        """Whether a row is another layout of all elements of one value."""
        graph, reads = self._graph, self._graph.reads(row)
        moves = graph.role[row] == RowRole.ELEMENT and graph.moves[row]
        if len(reads) != 1 or not (moves or graph.role[row] == RowRole.VIEW):
            return False
        return graph.results[row] == graph.results[reads[0]]

    def _read(self, rows: set[int], cut: frozenset[int]) -> int:
        """Bytes of the arrays that cross into a kernel, each once; scalars are not worth a read."""
        crossing = {d for r in rows for d in self._graph.reads(r)} - rows - cut
        return sum(self._bytes[d] for d in crossing if self._graph.results[d] > 1)

    def _flops(self, *products: int) -> int:
        return sum(int(self._program.flops[d]) for d in products)

    def _mask(self, p: _Pattern) -> int:
        comparisons = self._graph.comparisons(p.masks)
        return 0 if not comparisons else CAUSAL if comparisons == 1 else PERHAPS_A_WINDOW

    def _dims(self, p: _Pattern) -> AttentionDims[int]:
        shape = self._program.shapes[self._program.shape[p.softmax]]
        queries = shape[-2] if len(shape) > 1 else 1
        size = int(ProductDims.of(self._program.dims[p.scores]).k)
        return AttentionDims(math.prod(shape[:-2]), queries, shape[-1], size)


def _of_split(split: SplitAttention) -> _Pattern:
    """Of attention whose weights were saved: the gradient of the weights stands for the scores,
    which the kernel computes again with as much work."""
    return _Pattern(
        scores=split.gradient,
        softmax=split.gradient,
        reach=split.reach,
        above=frozenset(),
        masks=split.masks,
        backward=frozenset({split.gradient, split.values, *split.late}),
        gradient=split.gradient,
    )


def _replace(pattern: _Pattern, **fields: Any) -> _Pattern:
    return _Pattern(**{**vars(pattern), **fields})


def _rewritten(program: Program, found: list[_AttentionKernel], groups: Groups) -> Program:
    """The program with one row for each kernel of `found`."""
    owner, target = edges(program)
    keep = np.ones(len(owner), dtype=np.bool_)
    start = program.dep_start.tolist()
    stands: Int64s = np.zeros(len(program), dtype=np.int64)
    opcode, dims, opcodes = program.opcode.copy(), program.dims.copy(), program.opcodes
    op, mask = program.op.copy(), program.mask.copy()
    known = {}
    waits = is_any(program, OpClass.TURN)[owner]
    for kernel in found:
        target = np.where(waits & np.isin(target, list(kernel.stored)), kernel.ends, target)
        for row in kernel.rows:
            links = slice(start[row], start[row + 1])
            keep[links] &= ~np.isin(target[links], list(kernel.cut))
        stands[kernel.ends] = 1
        name = MERGED_NAMES[kernel.op] + _MASK_NAMES[kernel.mask]
        opcodes, opcode[kernel.ends] = with_value(opcodes, name)
        op[kernel.ends], mask[kernel.ends], dims[kernel.ends] = kernel.op, kernel.mask, kernel.dims
        names = ("flops", "operand_bytes", "result_bytes")
        known[kernel.ends] = {name: getattr(kernel, name) for name in names}
    shorter = rewired(program, (owner[keep], target[keep]))
    columns: dict[str, Any] = {"opcode": opcode, "op": op, "mask": mask, "dims": dims}
    return merged(shorter, groups.kernels(stands), known=known, opcodes=opcodes, **columns)
