"""Memory at moments of a step as expressions: what lies there where most does, piece by piece of the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from flint.backends.cost.memory.liveness import Buffers
from flint.backends.cost.memory.memory import layouts, stored_programs
from flint.ir.columns import bytes_of_type
from flint.ir.program import Program
from flint.tools.share.sizes import Expression, Sizes
from flint.tools.share.sizes.columns import Columns

#: Pieces of a step, of which those are looked at whose peak is such a part of the largest.
_PIECES, _PART = 16, 0.5
_Type = tuple[str, tuple[int, ...]]


def peaks(sizes: Sizes) -> list[list[Expression]]:
    """For each program, bits in use at moments when much is in use.

    The program is as memory is laid out for it: kernels. A buffer's size is told by its type: it is what the rows of that
    type are made of, most of them.
    """
    stored = stored_programs(sizes.workload)
    return [
        _of_program(program, _types(columns, sizes.table.entries))
        for program, columns in zip(stored, sizes.columns, strict=True)
    ]


def _of_program(program: Program, types: Mapping[_Type, Expression]) -> list[Expression]:
    layout, _ = layouts(program)
    live = layout.live_bytes
    if not len(live):
        return []
    starts = np.unique(np.linspace(0, len(live), _PIECES, endpoint=False).astype(np.int64))
    pieces = zip(starts.tolist(), [*starts[1:].tolist(), len(live)], strict=True)
    moments = [a + int(live[a:b].argmax()) for a, b in pieces]
    return [
        _held(program, layout, moment, types)
        for moment in moments
        if live[moment] >= _PART * live.max()
    ]


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
