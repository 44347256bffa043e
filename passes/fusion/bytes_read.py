"""Bytes that kernels read from outside."""

from __future__ import annotations

import numpy as np

from flint.ir.columns import Edges
from flint.ir.program import Int64s, Kind, Program


def bytes_in(program: Program, kernel: Int64s, links: Edges, seen: Int64s) -> Int64s:
    """For each kernel, bytes that it reads from outside, each value once: `seen` by each link.

    A row that reads less than a value (a slice of it) counts what it reads, and a kernel no more
    than its rows read together.
    """
    n = len(program)
    owner, target = links
    computing = program.kind == Kind.COMPUTE
    seen = np.where(computing[owner], np.minimum(seen, program.operand_bytes[owner]), seen)
    key = kernel[owner] * n + target
    order = np.lexsort((seen, key))
    last = np.append(np.diff(key[order]) != 0, True)[: len(order)]
    total = np.zeros(n, dtype=np.int64)
    np.add.at(total, kernel[owner[order[last]]], seen[order[last]])
    most = np.zeros(n, dtype=np.int64)
    np.add.at(most, kernel[computing], program.operand_bytes[computing])
    return np.minimum(total, most)
