"""What one side, captured or compiled, says about one program, in a form that can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flint.ir.mesh import Mesh, Route
from flint.ir.program import Collective, Kind, Program, Row
from flint.passes.work.totals import totals

#: (kind, axes) to (executions, input bytes) of one device in one step.
Traffic = dict[tuple[str, str], tuple[int, int]]


@dataclass(frozen=True)
class Side:
    """One program of one device and one step; None: not measured.

    `collectives` are bytes of the rank's input by kind and axes, loops multiplied out; axes are the
    mesh axes (or parts of them) of the group, of a permute those that any of its pairs crosses.
    `ring_bytes` is what rings would send of them.
    """

    collectives: Traffic
    ring_bytes: float
    product_flops: int
    kernels: int | None = None
    kernel_bytes: int | None = None
    memory_bytes: int | None = None
    step_ns: float | None = None

    @property
    def payload_bytes(self) -> int:
        """Input bytes of all collectives."""
        return sum(size for _, size in self.collectives.values())


def side(program: Program, memory_bytes: int | None = None) -> Side:
    """Add up a partitioned program."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    ring = 0.0
    for row in map(program.row, range(len(program))):
        times = int(program.trips[row.number])
        if row.kind not in (Kind.COLLECTIVE, Kind.SEND) or not times:
            continue
        key = _key(row, program.mesh)
        count, size = found.get(key, (0, 0))
        found[key] = count + times, size + times * row.comm_bytes
        members = row.group.size(program.mesh) if row.group is not None else 0
        ring += times * row.comm_bytes * ring_factor(row.collective, members)
    flops = totals(program).matmul_flops
    return Side(dict(sorted(found.items())), ring, flops, memory_bytes=memory_bytes)


def ring_factor(kind: Collective, n: int) -> float:
    """Bytes that a rank sends for each byte of its input when a ring of n does the collective."""
    if kind is Collective.ALL_REDUCE:
        return 2 * (n - 1) / n
    if kind is Collective.ALL_GATHER:
        return float(n - 1)
    if kind in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL):
        return (n - 1) / n
    return 1.0


def _key(row: Row, mesh: Mesh) -> tuple[str, str]:
    kind = row.collective.name.lower() if row.kind is Kind.COLLECTIVE else "send"
    if row.route is not None:
        return kind, ",".join(_crossed(row.route, mesh))
    return kind, str(row.group)


def _crossed(route: Route, mesh: Mesh) -> list[str]:
    """Names of the axes along which any device sends to another place than its own."""
    targets = route.targets(mesh)
    sources = np.flatnonzero(targets >= 0)
    before = np.unravel_index(sources, mesh.sizes)
    after = np.unravel_index(targets[sources], mesh.sizes)
    moved = [bool((b != a).any()) for b, a in zip(before, after, strict=True)]
    return [name for name, does in zip(mesh.names, moved, strict=True) if does]
