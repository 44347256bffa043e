"""Which variables are numbers of layers: trip counts of loops along stacked arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flint.ir.op_class import Collective
from flint.ir.program import Program, Region, RegionKind
from flint.ir.workload import Workload
from flint.tools.share.growing.structure import Structure


def layer_variables(structure: Structure) -> tuple[int, ...]:
    """Variables that are the trip count of loops over layers, those of most FLOPs first.

    A loop over microbatches stacks as well: a loop in which another stacked one lies is none over layers. Nor
    is one that passes something around the devices of an axis, once less than there are (`rings_of`).
    """
    flops = _flops_of_trips(structure)
    return tuple(sorted(flops, key=lambda v: (-flops[v], v)))


def _flops_of_trips(structure: Structure) -> dict[int, int]:
    p, sizes = structure.program, structure.sizes
    columns = sizes.columns[structure.number]
    trips = [sizes.table.entries[t].variables for t in columns.trips]
    loops = [i for i, r in enumerate(p.regions) if r.kind is RegionKind.LOOP and trips[i]]
    outer = {around for i in loops for around in _around(p.regions, i)} | set(rings_of(p))
    found: dict[int, int] = {}
    for i in loops:
        if i in outer:
            continue
        region = p.regions[i]
        inner = int(p.flops[region.start : region.stop].sum()) * region.trip_count
        for variable in trips[i]:
            found[variable] = found.get(variable, 0) + inner
    return found


def rings_of(program: Program) -> dict[int, tuple[str, int]]:
    """Loops that pass something around an axis: by region, the axis and its devices less the trips.

    They permute along one axis in each iteration, and run as often as there are devices along it, or once less.
    """
    found: dict[int, tuple[str, int]] = {}
    for row in np.flatnonzero(program.collective == Collective.PERMUTE).tolist():
        number, route = int(program.region[row]), program.routes[int(program.route[row])]
        if (
            number < 0
            or len(route.axes) != 1
            or program.regions[number].kind is not RegionKind.LOOP
        ):
            continue
        less = program.mesh.axis_size(route.axes[0]) - program.regions[number].trip_count
        if less in (0, 1):
            found[number] = route.axes[0].name, less
    return found


def ring_axes(program: Program) -> frozenset[str]:
    """Axes around which all permutations go in loops, one step each time: how often follows from their size."""
    rings = rings_of(program)
    inside: set[str] = set()
    outside: set[str] = set()
    for row in np.flatnonzero(program.collective == Collective.PERMUTE).tolist():
        route = program.routes[int(program.route[row])]
        axes = {a.name for a in route.axes}
        is_ring = int(program.region[row]) in rings and route.wrap and not route.pairs
        (inside if is_ring and abs(route.offset) == 1 else outside).update(axes)
    return frozenset(inside - outside)


def with_rings(before: Workload, after: Workload) -> Workload:
    """The workload with trip counts of loops around axes, where nothing else is as long as they run."""
    programs = []
    for one, other in zip(before.programs, after.programs, strict=True):
        regions = list(other.regions)
        for number, (axis, less) in rings_of(one).items():
            trips = after.mesh.axis_size(axis) - less
            regions[number] = replace(regions[number], trip_count=trips)
        programs.append(replace(other, regions=tuple(regions)))
    return replace(after, programs=tuple(programs))


def _around(regions: tuple[Region, ...], number: int) -> list[int]:
    found, parent = [], regions[number].parent
    while parent >= 0:
        found.append(parent)
        parent = regions[parent].parent
    return found
