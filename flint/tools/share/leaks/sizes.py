"""Totals of a workload: what remains of sizes where single sizes are changed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Kind, Program
from flint.ir.workload import Workload

#: Totals of one device and step, and devices, in the order of `log_totals`.
TOTALS = ("flops", "moved bytes", "communicated bytes", "bytes of parameters", "devices")


def log_totals(workload: Workload) -> NDArray[np.float64]:
    """log2(1 + total) for each of `TOTALS`, of the program that has most of it.

    A level that keeps totals within 2 % moves each by at most 0.03.
    """
    most = np.max([_totals(p) for p in workload.programs], axis=0)
    logs: NDArray[np.float64] = np.log2(1.0 + np.append(most, workload.mesh.size))
    return logs


def _totals(program: Program) -> list[float]:
    moved = program.operand_bytes + program.result_bytes
    columns = (program.flops, moved, program.comm_bytes)
    parameters = program.kind == Kind.PARAMETER
    worked = np.where(program.kind >= Kind.COMPUTE, program.trips, 0).astype(np.float64)
    return [
        *(float(np.dot(worked, column)) for column in columns),
        float(program.result_bytes[parameters].sum()),
    ]
