"""Totals of a step for many values of the variables at once, in floating point.

The totals of `Change` and of the bound are those of real workloads. Here they steer a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.memory.liveness import Buffers
from flint.backends.cost.memory.memory import layouts, stored_programs
from flint.ir.arrays import Float64s
from flint.ir.columns import bytes_of_type
from flint.ir.program import Kind, Program
from flint.tools.share.sizes import Expression, Sizes
from flint.tools.share.sizes.columns import Columns
from flint.tools.share.sizes.expression import Factor
from flint.tools.share.totals import senders_by_label

# Memory at moments of a step as expressions: what lies there where most does, piece by piece of the step.

#: Pieces of a step, of which those are looked at whose peak is such a part of the largest.
_PIECES, _PART = 16, 0.5
_Type = tuple[str, tuple[int, ...]]


def peaks(sizes: Sizes) -> list[Expression]:
    """Bits in use at moments when much is in use.

    The program is as memory is laid out for it: kernels. A buffer's size is told by its type: it is what the rows of that
    type are made of, most of them.
    """
    (program,) = stored_programs(sizes.workload)
    layout, _ = layouts(program)
    live = layout.live_bytes
    if not len(live):
        return []
    types = _types(sizes.columns, sizes.table.entries)
    starts = np.unique(np.linspace(0, len(live), _PIECES, endpoint=False).astype(np.int64))
    pieces = zip(starts.tolist(), [*starts[1:].tolist(), len(live)], strict=True)
    moments = [a + int(live[a:b].argmax()) for a, b in pieces]
    most = _PART * live.max()
    return [_held(program, layout, at, types) for at in moments if live[at] >= most]


def _held(
    program: Program, layout: Buffers, moment: int, types: Mapping[_Type, Expression]
) -> Expression:
    held = layout.at(moment)
    kinds = Counter(zip(layout.first[held].tolist(), layout.num_bytes[held].tolist(), strict=True))
    parts = []
    for (row, num_bytes), count in kinds.items():
        dtype = program.dtypes[int(program.dtype[row])]
        shape = program.shapes[int(program.shape[row])]
        size, rest = divmod(num_bytes, max(bytes_of_type(dtype, shape), 1))
        known = types.get((dtype, shape))
        if known is None or rest:
            parts.append(Expression.constant(8 * num_bytes * count))
        else:
            bits = bytes_of_type(dtype, (8,))
            parts.append(known.times(bits * size * count))
    return Expression.sum(parts)


def _types(columns: Columns, entries: Sequence[Expression]) -> dict[_Type, Expression]:
    """For each type, how many elements an array of it has, as most rows of it say."""
    p = columns.program
    keys = np.stack([p.dtype, p.shape, columns.shape], axis=1)
    table, count = np.unique(keys, axis=0, return_counts=True)
    found: dict[_Type, Expression] = {}
    for at in np.argsort(count, kind="stable").tolist():
        dtype, shape, own = table[at].tolist()
        dims = columns.shapes[own]
        found[p.dtypes[dtype] if dtype < len(p.dtypes) else "", p.shapes[shape]] = (
            Expression.product(entries[e] for e in dims)
        )
    return found


#: FLOPs for each byte of memory traffic at which usual accelerators take as long for both.
BALANCE = 200.0
#: Sizes that units of GPUs, and of TPUs, multiply at once: m, n and k of a product are rounded up to them.
TILES = ((128, 128, 32), (128, 128, 128))
#: Kinds of kernels that are looked at one by one.
_MOST_KERNELS = 40
#: Bytes and FLOPs of a kernel in all of its runs, and m, n and k of a product.
_Kernel = tuple[Expression, Expression, tuple[Expression, ...]]
_NO_PRODUCT = (Expression.constant(1),) * 3


@dataclass(frozen=True, eq=False)
class Totals:
    """Totals: FLOPs, bytes moved, parameters, payload by axes; time of kernels; memory.

    `exponents` are those of variables by monomial; `sums` are coefficients by total and monomial. Time
    is not a polynomial: kernels take as long as their bytes or their FLOPs (`BALANCE`), whichever is more, with
    products rounded up to `TILES`; `moved`, `flops` and `dims` are coefficients by kernel and monomial,
    `number` is how many rows are alike. Memory is the most of what is in use at some moments: `held` are
    coefficients by moment and monomial.
    """

    exponents: Float64s
    sums: Float64s
    moved: Float64s
    flops: Float64s
    dims: tuple[Float64s, ...]
    number: Float64s
    held: Float64s
    own: Float64s

    @classmethod
    def of(cls, sizes: Sizes) -> Totals:
        """Compile the expressions of a workload."""
        own = np.array([float(v.value) for v in sizes.variables])
        compiler = _Compiler({f: v for f, v in sizes.values().items() if not isinstance(f, int)})
        entries = _Entries(sizes.columns, sizes.table.entries)
        kernels = _largest(entries.kernels(), sizes.values())
        moved, flops, dims = zip(*kernels, strict=True) if kernels else ((), (), ())
        tables = [
            compiler.add(expressions)
            for expressions in (
                *(entries.totals(), moved, flops, peaks(sizes)),
                *([sides[i] for sides in dims] for i in range(3)),
            )
        ]
        sums, of_bytes, of_flops, held, *sides = map(compiler.matrix, tables)
        number = np.array(list(kernels.values()), dtype=np.float64)[None, :]
        exponents = compiler.exponents(len(own))
        return cls(exponents, sums, of_bytes, of_flops, tuple(sides), number, held, own)

    def __len__(self) -> int:
        return self.memory + 1

    def time(self, tiles: int) -> int:
        """Which total is the time of kernels, with products rounded up to one of `TILES`."""
        return len(self.sums) + tiles

    @property
    def memory(self) -> int:
        """Which total is memory in use."""
        return len(self.sums) + len(TILES)

    def logs(self, values: Float64s) -> Float64s:
        """log of each total against the original's, for rows of values of the variables."""
        return np.asarray(self._logs(values) - self._own_logs)

    @cached_property
    def _own_logs(self) -> Float64s:
        return self._logs(self.own[None, :])

    def _logs(self, values: Float64s) -> Float64s:
        products = np.exp(_times(np.log(values), self.exponents))
        moved, flops = _times(products, self.moved), _times(products, self.flops) / BALANCE
        dims = [_times(products, d) for d in self.dims]
        times = [
            _times(np.maximum(moved, flops * _rounded(dims, tiles)), self.number) for tiles in TILES
        ]
        memory = _times(products, self.held).max(axis=1, initial=1.0)[:, None]
        found = np.concatenate([_times(products, self.sums), *times, memory], axis=1)
        return np.asarray(np.log(np.maximum(found, 1.0)))


def _rounded(dims: Sequence[Float64s], tiles: Sequence[int]) -> Float64s:
    """By how much products grow when their sizes are rounded up; a size below a tile is not a tile's."""
    found = np.ones_like(dims[0])
    for size, tile in zip(dims, tiles, strict=True):
        up = np.ceil(size / tile - 1e-6) * tile
        found = found * np.where(size < tile / 2, 1.0, up / size)
    return found


def _times(one: Float64s, other: Float64s) -> Float64s:
    """Rows of one by rows of the other, without threads: those of BLAS cost more than they save here."""
    return np.asarray(np.einsum("ik,jk->ij", one, other))


def _largest(kernels: Mapping[_Kernel, int], of: Mapping[Factor, int]) -> dict[_Kernel, int]:
    """Kernels that most of the time goes to; bytes of all others are one more kernel."""
    cost = {
        kernel: number * max(kernel[0].value(of), kernel[1].value(of) / BALANCE)
        for kernel, number in kernels.items()
    }
    order = sorted(kernels, key=lambda kernel: -cost[kernel])
    kept = {kernel: kernels[kernel] for kernel in order[:_MOST_KERNELS]}
    rest = [k[0].times(kernels[k]) for k in kernels if k not in kept]
    if rest:
        kept[Expression.sum(rest), Expression.constant(0), _NO_PRODUCT] = 1
    return kept


class _Entries:
    """Numbers of rows of a program, with the loops around them, as expressions."""

    def __init__(self, columns: Columns, entries: Sequence[Expression]) -> None:
        self._columns, self._entries = columns, entries
        p = columns.program
        self._trips = [Expression.constant(1)]
        for number, region in enumerate(p.regions):
            outer = self._trips[region.parent + 1]
            own = entries[columns.trips[number]]
            self._trips.append(Expression.product((outer, own)))
        self._region = p.region.astype(np.int64) + 1
        self._products: dict[tuple[int, int], Expression] = {}

    def totals(self) -> list[Expression]:
        """FLOPs, bytes moved, of parameters, and communicated over each label of axes."""
        p, numbers = self._columns.program, self._columns.numbers
        works = p.kind >= Kind.COMPUTE
        result, operand = numbers["result_bytes"], numbers["operand_bytes"]
        moved = Expression.sum((self._sum(works, result), self._sum(works, operand)))
        return [
            self._sum(works, numbers["flops"]),
            moved,
            self._sum(p.kind == Kind.PARAMETER, result),
            *(self._sum(rows, numbers["comm_bytes"]) for rows in senders_by_label(p).values()),
        ]

    def kernels(self) -> dict[_Kernel, int]:
        """Bytes and FLOPs of rows that compute, and how many rows are alike."""
        p, numbers = self._columns.program, self._columns.numbers
        at = np.flatnonzero(p.kind == Kind.COMPUTE)
        columns = [numbers[n][at] for n in ("result_bytes", "operand_bytes", "flops")]
        dims = self._columns.dims[at]
        table, count = np.unique(
            np.stack([*columns, self._region[at], *dims.T[1:]], axis=1), axis=0, return_counts=True
        )
        found: dict[_Kernel, int] = {}
        for row, number in zip(table.tolist(), count.tolist(), strict=True):
            a, b, flops, region, *product = row
            moved = Expression.sum((self._times(a, region), self._times(b, region)))
            sizes = tuple(self._entries[e] for e in product)
            is_product = all(s.terms for s in sizes) and sizes[1] != Expression.constant(1)
            kernel = (moved, self._times(flops, region), sizes if is_product else _NO_PRODUCT)
            found[kernel] = found.get(kernel, 0) + number
        return found

    def _sum(self, rows: NDArray[np.bool_], column: NDArray[np.int64]) -> Expression:
        at = np.flatnonzero(rows)
        keys = np.stack([column[at], self._region[at]], axis=1)
        table, count = np.unique(keys, axis=0, return_counts=True)
        return Expression.sum(
            self._times(entry, region).times(rows)
            for (entry, region), rows in zip(table.tolist(), count.tolist(), strict=True)
        )

    def _times(self, entry: int, region: int) -> Expression:
        """A number in all runs of a row."""
        key = (entry, region)
        if key not in self._products:
            parts = (self._entries[entry], self._trips[region])
            self._products[key] = Expression.product(parts)
        return self._products[key]


class _Compiler:
    """Expressions as rows of coefficients of monomials of variables; axes have their sizes."""

    def __init__(self, fixed: Mapping[Factor, int]) -> None:
        self._fixed = fixed
        self._monomials: dict[tuple[int, ...], int] = {}

    def add(self, expressions: Sequence[Expression]) -> list[dict[int, float]]:
        found = []
        for expression in expressions:
            row: dict[int, float] = {}
            for factors, coefficient in expression.terms:
                value = float(coefficient)
                for f in factors:
                    value *= self._fixed.get(f, 1)
                key = tuple(f for f in factors if isinstance(f, int))
                at = self._monomials.setdefault(key, len(self._monomials))
                row[at] = row.get(at, 0.0) + value
            found.append(row)
        return found

    def matrix(self, rows: Sequence[Mapping[int, float]]) -> Float64s:
        found = np.zeros((len(rows), len(self._monomials)))
        for number, row in enumerate(rows):
            found[number, list(row)] = list(row.values())
        return found

    def exponents(self, variables: int) -> Float64s:
        found = np.zeros((len(self._monomials), variables))
        for key, row in self._monomials.items():
            np.add.at(found[row], list(key), 1.0)
        return found
