"""How much longer a step takes because its devices wait for the slowest of them.

Chips of one kind differ: silicon, cooling and the power that it gets. Between two collectives every
device computes the same, and the next collective begins when the slowest is done. With speeds that
differ by a standard deviation `variation` of their mean, normally distributed, the slowest of n takes

    1 + variation * m(n),  m(n) the expected largest of n standard normal numbers

times the mean (m: 0 for one, 1.42 for 8, 2.97 for 512, 4.2 for 100,000; Blom's approximation, G. Blom,
"Statistical Estimates and Transformed Beta-Variables", 1958). The same chip is the slowest in every
interval, so that intervals do not average it out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flint.cluster.models import Cluster
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload

T = TypeVar("T")

#: Blom's constant.
_BLOM = 0.375


def expected_largest(count: int) -> float:
    """The expected largest of `count` standard normal numbers, to 1 %; 0 for one."""
    if count <= 1:
        return 0.0
    return NormalDist().inv_cdf((count - _BLOM) / (count + 1 - 2 * _BLOM))


def slower_than_mean(workload: Workload, cluster: Cluster) -> float:
    """How many times longer a workload's kernels take than on the mean chip of a cluster.

    1 for one that was measured: its times are of devices that did wait.
    """
    variation = cluster.chip.variation
    if variation is None or workload.measured_by:
        return 1.0
    return 1.0 + variation.value * expected_largest(waiting_devices(workload))


def alike(cluster: Cluster) -> Cluster:
    """The cluster with chips that do not differ: for times that were measured on devices that did wait."""
    return cluster.model_copy(update={"chip": cluster.chip.model_copy(update={"variation": None})})


def waiting_devices(workload: Workload) -> int:
    """How many devices wait for each other in a step: all along the axes that anything is sent over."""
    return workload.kept.get("waiting devices", None, lambda: _waiting_devices(workload))


def _waiting_devices(workload: Workload) -> int:
    mesh, axes = workload.mesh, set[str]()
    for program in workload.programs:
        for group in _used(program, program.group, program.groups):
            if group.ranks:  # of no axes: it may be any of them
                return mesh.size
            axes |= {a.name for a in group.axes}
        for route in _used(program, program.route, program.routes):
            if not route.axes:  # between any ranks of the mesh
                return mesh.size
            axes |= {a.name for a in route.axes}
    sizes = (s for n, s in zip(mesh.names, mesh.sizes, strict=True) if n in axes)
    return math.prod(sizes)


def _used(program: Program, column: NDArray[Any], table: Sequence[T]) -> list[T]:
    """The entries of a table that rows of communication mean."""
    used = column[(program.kind >= Kind.COLLECTIVE) & (column >= 0)]
    return [table[n] for n in np.unique(used).tolist()]


def slowest_notes(workload: Workload, cluster: Cluster) -> tuple[str, ...]:
    """What of a step is waiting for the slowest of its devices; empty if nothing."""
    slower, variation = slower_than_mean(workload, cluster), cluster.chip.variation
    if slower == 1 or variation is None:
        return ()
    count = waiting_devices(workload)
    note = (
        f"kernels take {slower - 1:.1%} longer than on a mean chip: {count:,} devices wait for the slowest of "
        f"them (chip.variation, {variation.value:.1%}, {variation.kind})"
    )
    return (note,)
