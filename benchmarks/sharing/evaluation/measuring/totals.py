"""A workload as a vector of totals: what surrogates of step time read. No price is in it."""

from __future__ import annotations

import numpy as np

from benchmarks.sharing.evaluation.measuring.attributes import layers_of
from flint.ir.arrays import Float64s
from flint.ir.columns import is_any
from flint.ir.op_class import (
    ATTENTION,
    DATA_MOVEMENT,
    ELEMENTWISE,
    GENERATED,
    LAYOUT,
    PRODUCT,
    REDUCTION,
    Classes,
    OpClass,
)
from flint.ir.program import Collective, Kind, Phase, Program
from flint.tools.share.rules.communication import group_sizes

#: Classes that are added up together.
GROUPS: tuple[tuple[str, Classes], ...] = (
    ("products", PRODUCT),
    ("attention", ATTENTION),
    ("element by element", ELEMENTWISE),
    ("reductions", REDUCTION),
    ("layout", LAYOUT),
    ("other copies", DATA_MOVEMENT),
    ("generated", GENERATED),
    ("sorts", frozenset({OpClass.SORT, OpClass.TOP_K, OpClass.FFT, OpClass.SOLVE})),
)
_KINDS = tuple(k for k in Collective if k is not Collective.NONE)


def totals_of(program: Program) -> Float64s:
    """A vector: by group of classes executions, FLOPs and bytes; by collective executions, bytes and
    size of groups; rows, layers, trips, devices, phases and where edges lead.

    All but shares are log2(1 + x). Loops count as often as they run.
    """
    trips = program.trips.astype(np.float64)
    work = program.kind == Kind.COMPUTE
    moved = program.result_bytes.astype(np.float64) + program.operand_bytes
    found: list[float] = []
    for _, classes in GROUPS:
        rows = is_any(program, classes) & work
        found += _sums(rows, trips, program.flops.astype(np.float64), moved)
        found.append(_read_share(program, rows))
    sent = program.comm_bytes.astype(np.float64)
    sizes = group_sizes(program).astype(np.float64)
    for kind in _KINDS:
        found += _sums(program.collective == kind, trips, sent, sizes * sent)
    parameters = program.kind == Kind.PARAMETER
    whole = [len(program), layers_of(program).max(), trips.max(), program.mesh.size]
    whole += [float((trips * c).sum()) for c in (program.flops, moved * work, sent)]
    whole.append(float(program.result_bytes[parameters].sum()))
    return np.concatenate(
        [np.log2(1.0 + np.array([*found, *whole])), _phases(program, trips * work)]
    )


def _phases(program: Program, executions: Float64s) -> Float64s:
    """Shares of executions that each phase has."""
    sums = np.bincount(program.phase, weights=executions, minlength=len(Phase))
    return np.asarray(sums / max(sums.sum(), 1.0))


#: Where the vector has the FLOPs of a step: of its totals before the shares of phases the fourth last.
FLOPS_AT = -(len(Phase) + 4)


def _sums(rows: np.ndarray, trips: Float64s, *columns: Float64s) -> list[float]:
    """Executions of rows, and totals of columns."""
    return [float(trips[rows].sum()), *(float((trips * c)[rows].sum()) for c in columns)]


def _read_share(program: Program, rows: np.ndarray) -> float:
    """How many rows read rows of the group that work."""
    return float(np.bincount(program.deps, minlength=len(program))[rows].sum())
