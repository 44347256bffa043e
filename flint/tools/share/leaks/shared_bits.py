"""Shared bits: an upper bound of what a program tells, as trace wringing counts it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from flint.ir.program import Program
from flint.ir.workload import Workload

_LEVEL = 6


@dataclass(frozen=True, slots=True)
class SharedBits:
    """Bits of the programs of a workload, compressed: less may tell the same, never more.

    `structure` are op classes, kinds and edges (how far behind each dependency lies); `sizes` are
    shapes, bytes, flops and dims beside them.
    """

    structure: int
    sizes: int
    rows: int

    @property
    def structure_per_row(self) -> float:
        """Bits of structure a row."""
        return self.structure / max(self.rows, 1)


def shared_bits(workload: Workload) -> SharedBits:
    """Bits of all programs, each compressed (zlib) by itself."""
    return SharedBits(
        sum(map(_structure, workload.programs)),
        sum(map(_sizes, workload.programs)),
        sum(map(len, workload.programs)),
    )


def _structure(program: Program) -> int:
    behind = program.dep_owner - program.deps
    counts = np.diff(program.dep_start).astype(np.uint16)
    columns = (program.op, program.kind, program.collective, counts, behind.astype(np.uint16))
    return _bits(b"".join(c.tobytes() for c in columns))


def _sizes(program: Program) -> int:
    columns = (program.shape, program.result_bytes, program.operand_bytes, program.flops)
    table = repr(program.shapes).encode()
    return _bits(b"".join(c.tobytes() for c in (*columns, program.dims)) + table)


def _bits(data: bytes) -> int:
    return 8 * len(zlib.compress(data, _LEVEL))
