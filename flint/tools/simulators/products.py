"""The distinct products of matrices of a step, and what they take on one systolic array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flint.backends.cost.chips.families.systolic.constants import systolic_of
from flint.backends.cost.chips.families.systolic.scalesim import cycles
from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.cluster.models import Chip
from flint.ir.workload import Workload


@dataclass(frozen=True, slots=True)
class Array:
    """One systolic array, as SCALE-Sim describes it. `sram_kib` is that of each operand."""

    rows: int
    columns: int
    dataflow: str
    sram_kib: int


@dataclass(frozen=True, slots=True)
class SimulatedProduct:
    """m x k times k x n, how often all ranks do it in a step, and the cycles of one by Flint's model."""

    m: int
    n: int
    k: int
    count: int
    cycles: int


def array_of(chip: Chip) -> Array:
    """An array of a chip. Raises FlintError FL705 for a chip without arrays."""
    found = systolic_of(chip)
    sram = max(1, int(found.vmem_bytes.value / 3) >> 10)
    return Array(int(found.rows.value), int(found.columns.value), found.dataflow, sram)


def products_of(kernels: Workload, array: Array) -> tuple[SimulatedProduct, ...]:
    """The distinct products of a workload, the one with most cycles in all first.

    Convolutions are the products that they are as matrices; what attention multiplies within its
    own kernels is not there. A batch counts as so many products.
    """
    sizes = np.bincount(kernels.class_of_ranks(), minlength=len(kernels.classes)).tolist()
    counts: dict[tuple[int, int, int], int] = {}
    for rank_class, ranks in zip(kernels.classes, sizes, strict=True):
        program = kernels.programs[rank_class.program]
        table, rows = kernels_of(program)
        chosen = np.flatnonzero(table.kind <= KernelKind.CONVOLUTION)
        dims, trips = table.dims[chosen], program.trips[rows[chosen]]
        for (batch, m, n, k), times in zip(dims.tolist(), trips.tolist(), strict=True):
            key = max(m, 1), max(n, 1), max(k, 1)
            counts[key] = counts.get(key, 0) + max(batch, 1) * times * ranks
    shape = array.rows, array.columns, array.dataflow
    found = [
        SimulatedProduct(*key, count, int(cycles(*key, *shape))) for key, count in counts.items()
    ]
    return tuple(sorted(found, key=lambda p: (-p.count * p.cycles, p.m, p.n, p.k)))
