"""Constants of one tier from measured collectives in closed form: what presets are fitted by.

With `own_part` given the collective model is linear in its other constants, so the mean absolute
percentage error is brought down by reweighted least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.collectives.algorithm import LinkUse
from flint.backends.cost.collectives.algorithms.all_to_all import direct_all_to_all
from flint.backends.cost.collectives.algorithms.in_switch import in_switch_all_reduce
from flint.backends.cost.collectives.algorithms.ring import ring
from flint.backends.cost.collectives.algorithms.tree import tree_all_reduce
from flint.backends.cost.network.calls import CollectiveCall
from flint.ir.op_class import Collective

Float64s = NDArray[np.float64]
#: No link carries more of its bandwidth as payload.
MOST_EFFICIENT = 0.95


@dataclass(frozen=True)
class MeasuredCall:
    """A call, how long it took, and the type and the "size" that nccl-tests says of it."""

    call: CollectiveCall
    measured_ns: float
    dtype: str
    size_bytes: int


def schedule_of(call: CollectiveCall) -> LinkUse:
    """What NCCL runs when it does not reduce in the switch."""
    if call.collective is Collective.ALL_TO_ALL:
        return direct_all_to_all(call.comm_bytes, call.size)
    return ring(call.collective, call.comm_bytes, call.size)


def solve(design: Float64s, measured: Float64s, of: Float64s | None = None) -> Float64s:
    """Factors >= 0 of the columns with the least mean absolute error in percent of `of`.

    `of` is what is measured, unless given.
    """
    scale = measured if of is None else of
    relative, target = design / scale[:, None], measured / scale
    weight = np.ones(len(measured))
    for _ in range(80):
        used = np.ones(design.shape[1], dtype=np.bool_)
        while True:
            scaled = relative * weight[:, None]
            factors = np.zeros(design.shape[1])
            factors[used] = np.linalg.lstsq(scaled[:, used], target * weight, rcond=None)[0]
            if (factors >= 0).all():
                break
            used &= factors > 0
        error = np.abs(relative @ factors - target)
        weight = 1 / np.sqrt(np.maximum(error, 0.01))
    return factors


def fit_rings(
    measured: Sequence[MeasuredCall], bandwidth: float, own_part: float
) -> dict[str, float]:
    """a0, a1, c and efficiency, from rings and direct all-to-alls; `bandwidth` in bytes per ns."""
    schedules = [schedule_of(r.call) for r in measured]
    moved = np.array([s.wire_bytes + own_part * s.own_bytes for s in schedules])
    steps = np.array([s.steps for s in schedules])
    columns = [np.ones(len(moved)), steps, moved / bandwidth, np.sqrt(moved) / bandwidth]
    design = np.stack(columns, axis=1)
    a0, a1, per_byte, per_root = solve(design, np.array([r.measured_ns for r in measured]))
    return {
        "a0_ns": float(a0),
        "a1_ns": float(a1),
        "c": float(per_root / per_byte),
        "efficiency": float(1 / per_byte),
        "own_part": own_part,
    }


def ring_error(measured: Sequence[MeasuredCall], bandwidth: float, own_part: float) -> float:
    """Mean absolute percentage error of a fit on its own rows."""
    k = fit_rings(measured, bandwidth, own_part)
    errors = []
    for row in measured:
        s = schedule_of(row.call)
        moved = s.wire_bytes + own_part * s.own_bytes
        transfer = (moved + k["c"] * moved**0.5) / (k["efficiency"] * bandwidth)
        errors.append(abs((k["a0_ns"] + s.steps * k["a1_ns"] + transfer) / row.measured_ns - 1))
    return 100 * float(np.mean(errors))


def fit_in_switch(
    points: Sequence[tuple[int, int, float]],
    members: int,
    bandwidth: float,
    rings: dict[str, float],
) -> dict[str, float]:
    """Start and efficiency of the reduction in the switch, which is taken from `members` members on.

    `points` are input bytes, members and time in ns.
    """
    schedules = [in_switch_all_reduce(size, n) for size, n, _ in points]
    moved = np.array([s.wire_bytes for s in schedules])
    known = np.array([rings["a0_ns"] + s.steps * rings["a1_ns"] for s in schedules])
    time = np.array([t for _, _, t in points])
    transfer = (moved + rings["c"] * np.sqrt(moved)) / bandwidth
    start, per_byte = solve(np.stack([np.ones(len(moved)), transfer], axis=1), time - known)
    return {
        "nvls_a0_ns": float(start),
        "nvls_efficiency": float(1 / per_byte),
        "nvls_from": float(members),
    }


def fit_host(measured: Sequence[MeasuredCall], rings: dict[str, float]) -> dict[str, float]:
    """What the host of a server carries of groups of more than two, from rings and all-to-alls."""
    schedules = [schedule_of(r.call) for r in measured]
    moved = np.array([s.wire_bytes + rings["own_part"] * s.own_bytes for s in schedules])
    known = np.array([rings["a0_ns"] + s.steps * rings["a1_ns"] for s in schedules])
    members = np.array([r.call.size for r in measured])
    time = np.array([r.measured_ns for r in measured])
    transfer = (moved + rings["c"] * np.sqrt(moved)) * members
    (per_byte,) = solve(transfer[:, None], time - known, of=time)
    return {"host_bytes_per_s": 1e9 / float(per_byte)}


def fit_over_nodes(
    measured: Sequence[MeasuredCall], a0_ns: float, a1_ns: float, bandwidth: float
) -> dict[str, float]:
    """Time of a step between nodes, c and efficiency of an adapter, from all-reduces over nodes.

    NCCL runs a tree between them. `a0_ns` and `a1_ns` are those of the tier inside a node,
    `bandwidth` is the adapter's in bytes per ns.
    """
    inside = [ring(r.call.collective, r.call.comm_bytes, r.call.spans[0].size) for r in measured]
    trees = [
        tree_all_reduce(r.call.comm_bytes / r.call.spans[0].size, r.call.spans[1].size)
        for r in measured
    ]
    known = np.array([a0_ns + s.steps * a1_ns for s in inside])
    moved = np.array([s.wire_bytes for s in trees])
    columns = [np.array([s.steps for s in trees]), moved, np.sqrt(moved)]
    time = np.array([r.measured_ns for r in measured]) - known
    _, per_byte, _ = solve(np.stack(columns, axis=1), time)
    efficiency = min(float(1 / per_byte / bandwidth), MOST_EFFICIENT)
    left = time - moved / (efficiency * bandwidth)
    a1, per_root = solve(np.stack([columns[0], columns[2]], axis=1), left, of=time)
    root = float(per_root) * efficiency * bandwidth
    return {"a1_ns": float(a1), "c": root, "efficiency": efficiency}
