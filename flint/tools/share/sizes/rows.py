"""Rows of a program with the terms of their dimensions, as relations between them read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from itertools import combinations, islice, pairwise
from itertools import permutations as orders
from typing import TypeAlias

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.columns import bytes_of_type, is_any, type_bytes
from flint.ir.mesh import AxisRef
from flint.ir.op_class import ELEMENTWISE, OpClass
from flint.ir.program import Collective, Flag, Int64s, Kind, Program, RegionKind
from flint.tools.share.sizes.symbols import Symbols, Term, joined

# What each row reads: its dependencies without those that only order rows.


def reads_of(program: Program) -> list[list[int]]:
    """For each row the rows whose values it reads."""
    owner, read = program.dep_owner.astype(np.int64), program.deps.astype(np.int64)
    kept = ~_waits(program, owner, read)
    start = np.searchsorted(owner[kept], np.arange(len(program) + 1)).tolist()
    values = read[kept].tolist()
    return [values[a:b] for a, b in pairwise(start)]


def _waits(program: Program, owner: Int64s, read: Int64s) -> Mask:
    """Dependencies that order rows and read nothing.

    They are on rows without a value (ends of units of a pipeline), and on what was written into an array that the row reads as well. What a
    partitioned operation needs of other devices (borders of a value, or all of it) comes beside the value, which
    is read as well.
    """
    borders = program.collective == Collective.PERMUTE
    borders &= program.result_bytes < type_bytes(program)
    empty = (program.op == OpClass.TURN) | (program.result_bytes == 0) | borders
    alias = program.alias[read].astype(np.int64)
    into = (program.flags[read] & Flag.IN_PLACE) != 0
    again = _reads_both(program, owner, read, alias) & into & (alias >= 0)
    both = is_any(program, ELEMENTWISE | {OpClass.CONCATENATE}) | (program.kind > Kind.COMPUTE)
    return np.asarray(empty[read] | again | _beside(program, owner, read) & ~both[owner])


def _beside(program: Program, owner: Int64s, read: Int64s) -> Mask:
    """Dependencies on what other devices send of a value that the row reads as well: border or whole.

    Of element by element operations and concatenations both may be operands.
    """
    sent = np.isin(program.collective, (Collective.PERMUTE, Collective.ALL_GATHER))
    sent &= (np.diff(program.dep_start) > 0) & (program.kind == Kind.COLLECTIVE)
    source = np.zeros(len(program), dtype=np.int64)
    source[sent] = program.deps[program.dep_start[:-1][sent]]
    return np.asarray(sent[read] & _reads_both(program, owner, read, source[read]))


def _reads_both(program: Program, owner: Int64s, read: Int64s, other: Int64s) -> Mask:
    """Dependencies whose row depends on `other` as well."""
    rows = max(len(program), 1)
    return np.asarray(np.isin(owner * rows + other, owner * rows + read))


Shape: TypeAlias = tuple[int, ...]

# Ways to place the dimensions of one shape among those of another, by their sizes alone.

#: Ways beyond these are not looked at.
MOST_WAYS = 64


def embeddings(small: Shape, large: Shape) -> list[tuple[int, ...]]:
    """Places in `large` that have the sizes of `small`, in order; early places first."""
    return _fitting(combinations(range(len(large)), len(small)), large, small)


def permutations(one: Shape, other: Shape) -> list[tuple[int, ...]]:
    """For each dimension of `other` its place in `one`, each place once; in order first."""
    return _fitting(orders(range(len(one)), len(other)), one, other)


def _fitting(ways: Iterable[tuple[int, ...]], shape: Shape, wanted: Shape) -> list[tuple[int, ...]]:
    return list(islice((w for w in ways if tuple(shape[p] for p in w) == wanted), MOST_WAYS))


def cut(shape: Shape, *sizes: int) -> list[int] | None:
    """Where a shape of dimensions longer than 1 is cut into parts of so many elements; None: nowhere."""
    ends, at = [], 0
    for size in sizes:
        elements = 1
        while elements < size and at < len(shape):
            elements *= shape[at]
            at += 1
        if elements != size:
            return None
        ends.append(at)
    return ends if at == len(shape) else None


def sides(
    shape: Shape, batch: Shape, free: Shape, contracted: int
) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Ways to read an operand of a product: places of batch, free and contracted dimensions.

    Free dimensions come in their order; contracted ones have so many elements; all have a role.
    """
    if math.prod(shape) != math.prod(batch) * math.prod(free) * contracted:
        return []
    return list(_sides(shape, batch, free, contracted))


def _sides(
    shape: Shape, batch: Shape, free: Shape, contracted: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    left: list[tuple[tuple[tuple[int, int], ...], tuple[int, ...], tuple[int, ...]]] = [
        ((), (), ())
    ]
    for place, size in enumerate(shape):
        grown = []
        for taken, rows, inner in left:
            used = {b for b, _ in taken}
            grown += [
                (((b, place), *taken), rows, inner)
                for b, s in enumerate(batch)
                if s == size and b not in used
            ]
            if len(rows) < len(free) and free[len(rows)] == size:
                grown.append((taken, (*rows, place), inner))
            if contracted % (size * math.prod(shape[i] for i in inner)) == 0:
                grown.append((taken, rows, (*inner, place)))
        left = grown[:MOST_WAYS]
    for taken, rows, inner in left:
        whole = math.prod(shape[i] for i in inner) == contracted
        if len(taken) == len(batch) and len(rows) == len(free) and whole:
            yield tuple(p for _, p in sorted(taken)), rows, inner


class Outcome(Enum):
    """What a relation found out of a row."""

    DONE = auto()
    AMBIGUOUS = auto()  #: several readings fit: what is known of other rows will tell
    UNKNOWN = auto()  #: no reading fits


class Rows:
    """One program: `dims` holds the terms of each row's shape, `trips` that of each region.

    `work` are terms of a row's four dims where a relation found them. `within` are pairs of terms of
    which the second is no longer than the first, for what nobody says more of. `exchanged` are the
    members of all-to-alls whose results have the shape of what they read. `unexplained` are rows that no
    relation fits, or whose numbers follow from nothing. `is_plain` rows have one result of a known type,
    whole or written in part.
    """

    def __init__(self, program: Program, symbols: Symbols) -> None:
        self.program = program
        self.symbols = symbols
        self.shapes: list[Shape] = [program.shapes[s] for s in program.shape.tolist()]
        self.bits = [bytes_of_type(d, (8,)) for d in program.dtypes] + [0]
        typed = np.array([b > 0 for b in self.bits], dtype=np.bool_)[program.dtype]
        self.is_whole = program.result_bytes == type_bytes(program)
        self.is_plain = typed & (program.result_bytes <= type_bytes(program))
        self.dims = [tuple(symbols.new(d) for d in shape) for shape in self.shapes]
        self.reads = reads_of(program)
        self.trips = [
            symbols.new(r.trip_count) if r.kind is RegionKind.LOOP else (r.trip_count, ())
            for r in program.regions
        ]
        self.work: dict[int, tuple[Term, Term, Term, Term]] = {}
        self.within: list[tuple[Term, Term]] = []
        self.exchanged: dict[int, Term] = {}
        self.unexplained: set[int] = set()
        self.is_last_try = False

    def long(self, row: int) -> list[int]:
        """Places of dimensions longer than 1."""
        return [i for i, d in enumerate(self.shapes[row]) if d != 1]

    def long_shape(self, row: int) -> Shape:
        """The shape without dimensions of 1."""
        return tuple(d for d in self.shapes[row] if d != 1)

    def long_dims(self, row: int) -> list[Term]:
        """Terms of dimensions longer than 1."""
        pairs = zip(self.dims[row], self.shapes[row], strict=True)
        return [t for t, d in pairs if d != 1]

    def elements(self, row: int) -> Term:
        """How many elements a row has."""
        return joined(self.dims[row])

    def bytes(self, row: int) -> Term | None:
        """Bytes of the first result; None where elements of less than a byte do not fill bytes."""
        bits = self.bits[int(self.program.dtype[row])]
        coefficient, symbols = self.symbols.expand(self.elements(row))
        if coefficient * bits % 8:
            return None
        return coefficient * bits // 8, symbols

    def type_bytes(self, row: int) -> int:
        """Bytes of the first result, by its type."""
        return -(-math.prod(self.shapes[row]) * self.bits[int(self.program.dtype[row])] // 8)

    def equate_all(self, one: Sequence[Term], other: Sequence[Term]) -> None:
        """Equate terms pairwise."""
        for a, b in zip(one, other, strict=True):
            self.symbols.equate(a, b)

    def equate_rows(self, one: int, other: int) -> None:
        """Equate dimensions of two rows of one shape."""
        self.equate_all(self.dims[one], self.dims[other])

    def freeze(self, row: int) -> None:
        """Make the dimensions of a row and of what it reads constant."""
        for at in (row, *self.reads[row]):
            for term in self.dims[at]:
                self.symbols.freeze(term)

    def loop_of(self, row: int, trips: int) -> Term | None:
        """The trip count of the innermost loop around a row that runs so often."""
        region = int(self.program.region[row])
        while region >= 0:
            if self.program.regions[region].trip_count == trips and trips > 1:
                return self.trips[region]
            region = self.program.regions[region].parent
        return None

    def group_factor(self, row: int) -> Term:
        """Devices in the group of a row: sizes of axes, or a number where ranks are listed."""
        p = self.program
        group = p.groups[int(p.group[row])]
        if group.is_listed:
            self.symbols.pinned |= {AxisRef(name) for name in p.mesh.names}
            return group.size(p.mesh), ()
        return joined(self.symbols.axis(a, p.mesh.axis_size(a)) for a in group.axes)

    def choose(self, row: int, options: Sequence[Sequence[tuple[Term, Term]]]) -> Outcome:
        """Equate the pairs of one option: the only one, or on the last try the one known best."""
        if not options:
            return Outcome.UNKNOWN
        if len(options) > 1 and not self.is_last_try:
            return Outcome.AMBIGUOUS
        same = self.symbols.is_same
        best = max(options, key=lambda pairs: sum(same(a, b) for a, b in pairs))
        for a, b in best:
            self.symbols.equate(a, b)
        return Outcome.DONE
