"""Kinds of kernels by row, also of those that an operator launches beside its main one."""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.ir.op_class import OpClass
from flint.ir.program import Int64s, Kind, Program

#: What the host does, and kernels of which nothing is known but their time.
HOST = "host"
OTHER = "other"
#: Kernels that communicate, of which nothing is known but their time.
COMMUNICATION = "communication"


def kernel_kinds(program: Program) -> Int64s:
    """For each row its `KernelKind`, -1 where it is no kernel or of no kind that is known.

    What an operator's call launches beside its main kernel is of the kind of that.
    """
    kernels, rows = kernels_of(program)
    found: Int64s = np.full(len(program), -1, dtype=np.int64)
    found[rows] = kernels.kind
    found[(found == KernelKind.UNPRICED) & (program.measured_ns > 0)] = -1
    mains = main_rows(program)
    beside = np.flatnonzero((found < 0) & (mains >= 0) & on_device(program))
    found[beside] = found[mains[beside]]
    return found


def main_rows(program: Program) -> Int64s:
    """For each row that an operator's call launched the row with the work of that call, else -1."""
    found: Int64s = np.full(len(program), -1, dtype=np.int64)
    if not program.launcher.any():
        return found
    _, rows = kernels_of(program)
    mains = rows[program.launcher[rows] > 0]
    calls, number = np.unique(program.launcher, return_inverse=True)
    of_call: Int64s = np.full(len(calls), -1, dtype=np.int64)
    of_call[number[mains][::-1]] = mains[::-1]
    launched = (program.launcher > 0) & on_device(program)
    found[launched] = of_call[number[launched]]
    return found


def on_device(program: Program) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each row whether it is a kernel or copy of the device: no host, no communication."""
    calculates = (program.op != OpClass.HOST) & (program.op != OpClass.COMMUNICATION)
    return np.asarray((program.kind == Kind.COMPUTE) & calculates)


def communicates(program: Program) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each row whether it is communication, also of which neither bytes nor ends are known."""
    return np.asarray((program.kind >= Kind.COLLECTIVE) | (program.op == OpClass.COMMUNICATION))
