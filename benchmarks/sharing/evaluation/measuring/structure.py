"""A program's structure as bytes, row by row: what its shared bits are counted of."""

from __future__ import annotations

import numpy as np

from flint.ir.program import Program


def structure_bytes(program: Program) -> bytes:
    """Op class, kind, kind of collective and number of operands of a row, and how far each is behind.

    They are the columns that `flint.tools.share.leaks.shared_bits` compresses, but a row stands together:
    rows that two programs share are then one match.
    """
    n, width = len(program), 4
    counts = np.diff(program.dep_start)
    starts = width * np.arange(n) + 2 * program.dep_start[:-1]
    found = np.zeros(width * n + 2 * len(program.deps), dtype=np.uint8)
    fixed = (program.op, program.kind, program.collective, np.minimum(counts, 255))
    for i, column in enumerate(fixed):
        found[starts + i] = column.astype(np.uint8)
    owner = program.dep_owner.astype(np.int64)
    behind = np.minimum(owner - program.deps, 0xFFFF)
    at = width * (owner + 1) + 2 * np.arange(len(behind))
    found[at], found[at + 1] = behind & 0xFF, behind >> 8
    return found.tobytes()
