"""How much of an estimate rests on kernels that were measured in exactly their shape."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind, measured_ns
from flint.cluster.models import Chip
from flint.ir.arrays import Float64s
from flint.ir.program import Program
from flint.text import plural


def exact_shape_notes(
    program: Program, duration_ns: Float64s, chip: Chip, tf32: Collection[KernelKind]
) -> tuple[str, ...]:
    """A sentence on the kernels of a program whose times are those of a table; none without one.

    `duration_ns` are the times of the program's rows.
    """
    table = chip.measured_kernels
    if table is None:
        return ()
    kernels, rows = kernels_of(program, tf32=tf32)
    known = ~np.isnan(measured_ns(table, kernels))
    runs = program.trips[rows]
    times = duration_ns[rows] * runs
    total = float(times.sum())
    share = float(times[known].sum()) / total if total else 0.0
    count = f"{int(runs[known].sum()):,} of {plural(int(runs.sum()), 'kernel')}"
    said = f"{count} ({share:.1%} of their time) have the times that {table.name} has for"
    return (f"{said} exactly their shapes",)
