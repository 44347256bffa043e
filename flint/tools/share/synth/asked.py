"""Conditions as numbers for the row model: logarithms and shares, each with a flag that it is given."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Phase
from flint.tools.share.conditions import Conditions

#: Axes of a mesh that have numbers of their own.
_AXES = 3
#: Logarithms to base 2 are divided by these, so that all numbers are about 0 to 1.
_FLOPS, _BYTES, _DEPTH, _ROWS, _DEVICES = 64.0, 44.0, 8.0, 12.0, 12.0
#: How many numbers there are, and which belong to one condition: they are given together or not.
CONDITION_GROUPS: tuple[tuple[int, ...], ...] = (
    (0, 1),
    (2, 3),
    (4, 5),
    (6, 7),
    tuple(range(8, 14)),
    tuple(range(14, 19)),
    (19, 20),
    (21, 22),
    (23, 24),
    (25, 26),
)
CONDITIONS = 27


def condition_vector(asked: Conditions) -> NDArray[np.float32]:
    """(CONDITIONS,) numbers; 0 for what is not asked for."""
    found = np.zeros(CONDITIONS, dtype=np.float32)
    for at, value, scale in (
        (0, asked.flops, _FLOPS),
        (2, asked.memory_bytes, _BYTES),
        (4, asked.depth, _DEPTH),
        (6, asked.rows, _ROWS),
    ):
        if value is not None:
            found[at : at + 2] = 1, np.log2(1 + value) / scale
    if asked.phases:
        found[8] = 1
        for phase in Phase:
            found[9 + phase] = asked.phases.get(phase, 0.0)
    if asked.mesh is not None:
        sizes = asked.mesh.sizes[:_AXES]
        found[14:16] = 1, len(asked.mesh.sizes) / 4
        found[16 : 16 + len(sizes)] = np.log2(sizes) / _DEVICES
        _axis_bytes(asked, found)
    return found


def _axis_bytes(asked: Conditions, found: NDArray[np.float32]) -> None:
    """Bytes over each of the first axes alone, and over all other sets of axes together."""
    assert asked.mesh is not None
    if not asked.axis_bytes:
        return
    alone = asked.mesh.names[:_AXES]
    for number, name in enumerate(alone):
        found[19 + 2 * number : 21 + 2 * number] = 1, _log_bytes(asked.axis_bytes.get(name, 0.0))
    others = sum(b for label, b in asked.axis_bytes.items() if label not in alone)
    found[25:27] = 1, _log_bytes(others)


def _log_bytes(num_bytes: float) -> float:
    return float(np.log2(1 + num_bytes) / _BYTES)
