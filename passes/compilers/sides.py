"""What one side, captured or compiled, says about a step, in a form that can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from flint.ir.mesh import Mesh, Route
from flint.ir.program import Collective, Kind, Program, Row
from flint.passes.work.totals import totals

#: Kind and axes of a collective.
Key = tuple[str, str]
#: (kind, axes) to (executions, input bytes) of one device in one step.
Traffic = dict[Key, tuple[int, int]]


@dataclass(frozen=True)
class Side:
    """One step of one device; of several programs their sum. None: not measured.

    `collectives` are bytes of the rank's input by kind and axes, loops multiplied out; axes are the
    mesh axes (or parts of them) of the group, of a permute those that any of its pairs crosses.
    `ring_bytes` is what rings would send of them, `wires` the same for each kind and axes by the line
    of the user's source that it comes from (or the scope, where no line is known).
    """

    collectives: Traffic
    ring_bytes: float
    product_flops: int
    memory_bytes: int | None = None
    wires: Mapping[Key, Counter[str]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def payload_bytes(self) -> int:
        """Input bytes of all collectives."""
        return sum(size for _, size in self.collectives.values())


def side(*programs: Program, memory_bytes: int | None = None) -> Side:
    """Add up partitioned programs."""
    found: Traffic = {}
    wires: dict[Key, Counter[str]] = {}
    ring = 0.0
    for program in programs:
        sends = np.isin(program.kind, (Kind.COLLECTIVE, Kind.SEND)) & (program.trips > 0)
        for row in map(program.row, np.flatnonzero(sends).tolist()):
            times = int(program.trips[row.number])
            key = _key(row, program.mesh)
            count, size = found.get(key, (0, 0))
            found[key] = count + times, size + times * row.comm_bytes
            members = row.group.size(program.mesh) if row.group is not None else 0
            sent = times * row.comm_bytes * ring_factor(row.collective, members)
            wires.setdefault(key, Counter())[row.location or row.scope] += round(sent)
            ring += sent
    flops = sum(totals(program).matmul_flops for program in programs)
    return Side(dict(sorted(found.items())), ring, flops, memory_bytes, wires)


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


def relative(mine: float, other: float) -> float:
    """How much more `mine` is, as a share of `other`; 1 where only one of them is 0."""
    return (mine - other) / other if other else float(mine != other)
