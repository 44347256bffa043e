"""Conditions: the totals that a generated workload is asked for, or that a workload has.

Quantities are those of one device in one step, of the program with most FLOPs. A condition that is
None, or not in its mapping, is left to the generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh
from flint.ir.program import MOST_INT64, Kind, Phase, Program
from flint.ir.verify import exact_sum
from flint.ir.workload import Workload
from flint.passes.work.totals import total
from flint.tools.share.axis_labels import BETWEEN, LISTED, comm_bytes_by_label
from flint.tools.share.synth.depth import depth_of

#: Shares may miss 1 by so much (they are written with two digits), and are then made to add up.
SHARES_TOLERANCE = 0.02
#: Rows and layers beyond which no program is generated.
MOST_ROWS, MOST_LAYERS = 100_000, 10_000


@dataclass(frozen=True)
class Conditions:
    """What one device does in one step. Raises FlintError FL951, FL952 or FL953 when it is made.

    `flops`: floating point operations, a multiply-add counts 2. `axis_bytes`: bytes that the device
    puts into communication, by label of mesh axes (`data`, or `data,model`). `depth`: layers, how
    often the body with most FLOPs repeats. `phases`: shares of the FLOPs, which add up to 1.
    `memory_bytes`: the peak of a step, as `flint estimate` counts it for operations (without what
    the software keeps beside it). `rows`: rows of the program.
    """

    mesh: Mesh | None = None
    flops: float | None = None
    axis_bytes: Mapping[str, float] = field(default_factory=dict)
    depth: int | None = None
    phases: Mapping[Phase, float] = field(default_factory=dict)
    memory_bytes: float | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        _require_positive(self)
        _require_shares(self.phases)
        _require_axes(self.mesh, self.axis_bytes)
        _require_room(self)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON: the mesh by axis, phases by their name in small letters."""
        return {
            "mesh": None if self.mesh is None else dict(self.mesh.shape),
            "flops": self.flops,
            "axis_bytes": dict(self.axis_bytes),
            "layers": self.depth,
            "phases": {phase.name.lower(): share for phase, share in self.phases.items()},
            "memory_bytes": self.memory_bytes,
            "rows": self.rows,
        }


def conditions_of(workload: Workload) -> Conditions:
    """The totals of a workload: those of its program with most FLOPs, the first of equals.

    The peak of memory is that of `flint.backends.cost.memory.memory.step_memory`.
    """
    from flint.backends.cost.memory.memory import step_memory

    flops = [flops_of(p) for p in workload.programs]
    largest = workload.programs[flops.index(max(flops))]
    return Conditions(
        mesh=workload.mesh,
        flops=float(max(flops)),
        axis_bytes={k: float(v) for k, v in comm_bytes_by_label(largest).items()},
        depth=depth_of(largest),
        phases=phase_shares(largest),
        memory_bytes=float(max(use.peak_bytes for use in step_memory(workload))) or None,
        rows=len(largest),
    )


def flops_of(program: Program) -> int:
    """FLOPs of one device in one step; loops count as often as they run."""
    return total(program, program.flops)


def phase_shares(program: Program) -> Mapping[Phase, float]:
    """The share of the FLOPs that each phase has, of phases that have any; none without FLOPs."""
    times = program.flops.astype(np.float64) * program.trips
    sums = np.bincount(program.phase, weights=times, minlength=len(Phase))
    whole = float(sums.sum())
    return {p: float(sums[p]) / whole for p in Phase if sums[p]} if whole else {}


def parameter_bytes_of(program: Program) -> int:
    """Bytes of all arguments of a step on one device: weights, optimizer state, batch."""
    return exact_sum(program.result_bytes[program.kind == Kind.PARAMETER])


def _require_positive(asked: Conditions) -> None:
    limits = {
        "flops": (asked.flops, MOST_INT64, "FLOPs of a step"),
        "depth": (asked.depth, MOST_LAYERS, "layers"),
        "memory_bytes": (asked.memory_bytes, MOST_INT64, "bytes of memory"),
        "rows": (asked.rows, MOST_ROWS, "rows"),
    }
    least = {"flops": 0, "depth": 1, "memory_bytes": 1, "rows": 1}
    for name, (value, most, what) in limits.items():
        if value is not None and not least[name] <= value <= most:
            raise FlintError(
                "FL953",
                f"{value:g} {what} are not possible",
                help=f"give from {least[name]} to {most:,}",
            )


def _require_shares(phases: Mapping[Phase, float]) -> None:
    if not phases:
        return
    whole = sum(phases.values())
    wrong = [p for p, share in phases.items() if not 0 <= share <= 1]
    if wrong or abs(whole - 1) > SHARES_TOLERANCE:
        shares = ", ".join(f"{p.name.lower()} {share:g}" for p, share in phases.items())
        raise FlintError(
            "FL952",
            f"shares of phases do not add up to 1 but to {whole:g}: {shares}",
            help="give a share for each phase that there is, forward=0.33,backward=0.67",
        )


def _require_axes(mesh: Mesh | None, axis_bytes: Mapping[str, float]) -> None:
    """Axes with bytes are those of the mesh, with more than one device along them."""
    if axis_bytes and mesh is None:
        raise FlintError(
            "FL953", "bytes of axes without a mesh are not possible", help="give --mesh too"
        )
    for label, asked_bytes in axis_bytes.items():
        assert mesh is not None
        if not 0 <= asked_bytes <= MOST_INT64:
            raise FlintError("FL953", f"{asked_bytes:g} bytes over {label} are not possible")
        if label != LISTED:
            _require_label(mesh, label)


def _require_label(mesh: Mesh, label: str) -> None:
    names = [part.partition(":")[0] for part in label.split(",")]
    for name in names:
        if name not in mesh.names:
            raise FlintError(
                "FL951",
                f"mesh has no axis '{name}'{nearest(name, mesh.names)}",
                help=f"the mesh is {mesh}; of several axes, {BETWEEN} is between them",
            )
    if all(mesh.axis_size(name) == 1 for name in names):
        raise FlintError(
            "FL953",
            f"nothing can be sent over axis '{label}': its size is 1",
            help=f"the mesh is {mesh}",
        )


def _require_room(asked: Conditions) -> None:
    """Products with so many FLOPs fit into the memory.

    The operands and the result of (m, k) x (k, n) need mk + kn + mn bytes or more, so that in M
    bytes m * n * k is at most (M / 3)^1.5 (inequality of arithmetic and geometric means); in one
    step at most each row runs once a layer, also where loops are no layers.
    """
    if asked.flops is None or asked.memory_bytes is None:
        return
    most = MOST_ROWS * MOST_LAYERS * 2 * (asked.memory_bytes / 3) ** 1.5
    if asked.flops > most:
        raise FlintError(
            "FL953",
            f"{asked.flops:g} FLOPs are not possible in {asked.memory_bytes:g} bytes of memory: "
            f"what products that fit do is at most {most:.3g}",
            help="give more memory or fewer FLOPs",
        )
