"""How the numbers of a row follow from dimensions: bytes, FLOPs, dims, payload.

A number is a sum of terms. Of the ways in which numbers of rows come about (`flint.passes.work.formulas`) the
first that gives the number that the row has is taken. Where none does, the dimensions of the row and of
what it reads become constant, and so is the number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import NamedTuple, TypeAlias

from flint.ir.op_class import ATTENTION, ELEMENTWISE, REDUCTION, OpClass
from flint.ir.program import Kind
from flint.tools.share.sizes.rows import Rows, cut
from flint.tools.share.sizes.symbols import ONE, Term, joined

#: A number as a sum of terms.
Sum: TypeAlias = tuple[Term, ...]
#: Operations for each element beyond which they are not taken to be for each element.
MOST_PER_ELEMENT = 64
#: Operands beyond which none is taken to be read twice.
_MOST_OPERANDS = 4
#: Bytes that a kernel returns beside arrays: states of random numbers.
_MOST_BESIDE = 64
_PER_ELEMENT = (
    ELEMENTWISE
    | (REDUCTION - {OpClass.REDUCE})
    | frozenset(
        {
            *(OpClass.RANDOM, OpClass.DROPOUT, OpClass.FILL, OpClass.SCAN, OpClass.OPTIMIZER),
            *(OpClass.SORT, OpClass.TOP_K),
        }
    )
)

#: So many operations for each element of what is reduced, written or searched.
_OF_WHOLE = frozenset({OpClass.REDUCE, OpClass.SCATTER, OpClass.NORM, OpClass.TOP_K})


class SizedWork(NamedTuple):
    """Numbers of a row, each as a sum of terms."""

    result_bytes: Sum
    operand_bytes: Sum
    flops: Sum
    dims: tuple[Sum, Sum, Sum, Sum]
    comm_bytes: Sum


def work_of(rows: Rows, row: int) -> SizedWork:
    """How the numbers of a row come about. It freezes what it does not find out."""
    finder = _Finder(rows, row)
    found = finder.found()
    if found is None:
        rows.unexplained.add(row)
        rows.freeze(row)
        return finder.constant()
    return found


class _Finder:
    def __init__(self, rows: Rows, row: int) -> None:
        self._rows, self._row = rows, row
        self._program = rows.program
        self._own = rows.bytes(row)
        self._op = OpClass(int(rows.program.op[row]))
        self._read = [rows.bytes(r) for r in rows.reads[row]]

    def found(self) -> SizedWork | None:
        p, row = self._program, self._row
        dims = self._dims()
        result = self._first(int(p.result_bytes[row]), self._results())
        operands = self._first(int(p.operand_bytes[row]), self._operands())
        flops = self._first(int(p.flops[row]), self._flops(int(p.flops[row])))
        comm = self._first(int(p.comm_bytes[row]), self._payloads(operands))
        if dims is None or result is None or operands is None or flops is None or comm is None:
            return None
        return SizedWork(result, operands, flops, dims, comm)

    def constant(self) -> SizedWork:
        p, row = self._program, self._row
        a, b, c, d = (((int(x), ()),) for x in p.dims[row])
        return SizedWork(
            ((int(p.result_bytes[row]), ()),),
            ((int(p.operand_bytes[row]), ()),),
            ((int(p.flops[row]), ()),),
            (a, b, c, d),
            ((int(p.comm_bytes[row]), ()),),
        )

    def _first(self, number: int, ways: Iterable[Sequence[Term | None]]) -> Sum | None:
        if number == 0:
            return ()
        value = self._rows.symbols.value
        for way in ways:
            terms = [t for t in way if t is not None]
            if len(terms) == len(way) and sum(map(value, terms)) == number:
                return tuple(terms)
        return None

    def _results(self) -> Iterator[Sequence[Term | None]]:
        """Its type; what is written in part; all of several results."""
        yield (self._own,)
        alias = int(self._program.alias[self._row])
        reads = self._rows.reads[self._row]
        yield from ((t,) for r, t in zip(reads, self._read, strict=True) if r != alias)
        yield self._read
        work = self._rows.work.get(self._row)
        if work is not None and self._op in ATTENTION:
            yield from self._of_attention(joined(work[:2]))
        if work is not None and self._op is OpClass.NORM:
            yield from ((self._own, (width * work[1][0], work[1][1])) for width in (4, 8))
        yield from self._multiples(int(self._program.result_bytes[self._row]), self._own)

    def _of_attention(self, scores: Term) -> Iterator[Sequence[Term | None]]:
        """The result and a number for each query; or gradients of the operands."""
        own = self._rows.type_bytes(self._row)
        for width in (4, 8):
            each = width * scores[0], scores[1]
            more = int(self._program.result_bytes[self._row]) - own - self._rows.symbols.value(each)
            if 0 <= more <= _MOST_BESIDE:
                yield self._own, each, (more, ())
        yield from (list(some) for some in combinations(self._read, 3))

    def _operands(self) -> Iterator[Sequence[Term | None]]:
        """All operands once; what slices, look-ups and updates read; some operands once or twice."""
        own, read = self._own, self._read
        if self._op in (OpClass.SLICE, OpClass.DYNAMIC_SLICE):
            yield (own,)
        yield read
        yield (own,)
        yield from ((own, t) for t in read)
        yield from ((a, a, b) for a in read for b in read)
        if len(read) <= _MOST_OPERANDS:
            for times in product((1, 0, 2), repeat=len(read)):
                yield [t for t, n in zip(read, times, strict=True) for _ in range(n)]
        yield from self._multiples(int(self._program.operand_bytes[self._row]), own)

    def _flops(self, flops: int) -> Iterator[Sequence[Term | None]]:
        """By class: of products, for each element, for each element that is reduced or written."""
        elements = self._rows.elements(self._row)
        work = self._rows.work.get(self._row)
        if work is not None:
            yield from self._of_work(flops, joined(work), elements)
        if self._op in _PER_ELEMENT:
            yield from self._multiples(flops, elements)
            for read in self._rows.reads[self._row]:
                yield from self._multiples(flops, self._rows.elements(read))

    def _of_work(self, flops: int, whole: Term, elements: Term) -> Iterator[Sequence[Term | None]]:
        value = self._rows.symbols.value
        if self._op is OpClass.MATMUL:
            double = (2 * whole[0], whole[1])
            yield (double,)
            more, rest = divmod(flops - value(double), max(value(elements), 1))
            if not rest and 0 < more <= MOST_PER_ELEMENT:
                yield double, (more * elements[0], elements[1])
        elif self._op in ATTENTION | _OF_WHOLE:
            yield from self._multiples(flops, whole)

    def _multiples(self, number: int, term: Term | None) -> Iterator[Sequence[Term]]:
        if term is None or (size := self._rows.symbols.value(term)) == 0:
            return
        times, rest = divmod(number, size)
        if not rest and 0 < times <= MOST_PER_ELEMENT:
            yield ((times * term[0], term[1]),)

    def _payloads(self, operands: Sum | None) -> Iterator[Sequence[Term | None]]:
        if operands is not None:
            yield operands
        yield (self._own,)

    def _dims(self) -> tuple[Sum, Sum, Sum, Sum] | None:
        """Terms that a relation found, or (1, rows, 1, reduced) of the row or of what it reads."""
        rows, row = self._rows, self._row
        numbers = rows.program.dims[row].tolist()
        work = rows.work.get(row)
        if work is not None and list(map(rows.symbols.value, work)) == numbers:
            a, b, c, d = ((t,) for t in work)
            return a, b, c, d
        if not any(numbers):
            return (), (), (), ()
        if rows.program.kind[row] != Kind.COMPUTE:
            return self.constant().dims
        return self._reduction(numbers)

    def _reduction(self, numbers: list[int]) -> tuple[Sum, Sum, Sum, Sum] | None:
        rows = self._rows
        if (
            self._op not in REDUCTION | {OpClass.SORT, OpClass.TOP_K, OpClass.NORM}
            or numbers[0] != 1
            or numbers[2] != 1
        ):
            return None
        for at in (self._row, *rows.reads[self._row]):
            ends = cut(rows.long_shape(at), numbers[1], numbers[3])
            if ends is not None:
                dims = rows.long_dims(at)
                outer, inner = joined(dims[: ends[0]]), joined(dims[ends[0] :])
                rows.work[self._row] = (ONE, outer, ONE, inner)
                return (ONE,), (outer,), (ONE,), (inner,)
        return None
