"""The units of a region, which an order is of: rows, and loops and branches as a whole.

Unit u < n is row u of a program of n rows, unit n + j is region j.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flint.ir.columns import ROW_COLUMNS, edges, rewired
from flint.ir.program import Int64s, Program


def units(program: Program) -> dict[int, list[int]]:
    """The units directly inside each region (-1: the step), in program order."""
    count = len(program)
    found: dict[int, list[tuple[int, int]]] = {i: [] for i in range(-1, len(program.regions))}
    for row, region in enumerate(program.region.tolist()):
        found[region].append((row, row))
    for index, inner in enumerate(program.regions):
        found[inner.parent].append((inner.start, count + index))
    return {region: [unit for _, unit in sorted(units)] for region, units in found.items()}


def unit_edges(program: Program) -> tuple[Int64s, Int64s]:
    """Each dependency (reader, read) between units of the innermost region that holds both ends."""
    owner, target = edges(program)
    reader, read = owner.copy(), target.copy()
    chains = [*_chains(program), ()]
    regions = np.stack([program.region[owner], program.region[target]])
    for pair in np.unique(regions, axis=1).T.tolist():
        at = (regions[0] == pair[0]) & (regions[1] == pair[1])
        for side, ends in zip(pair, (reader, read), strict=True):
            below = len([r for r in chains[pair[0]] if r in chains[pair[1]]])
            if len(chains[side]) > below:
                ends[at] = len(program) + chains[side][below]
    return reader, read


def _chains(program: Program) -> list[tuple[int, ...]]:
    """For each region those around it, from outside, and itself."""
    found: list[tuple[int, ...]] = []
    for index, region in enumerate(program.regions):
        found.append((*(found[region.parent] if region.parent >= 0 else ()), index))
    return found


def moved(program: Program, order: Int64s, spans: list[tuple[int, int]]) -> Program:
    """A copy in which row i is row order[i], and region j is rows spans[j]."""
    place = np.empty(len(program) + 1, dtype=np.int64)  # the last entry answers for -1
    place[order] = np.arange(len(program))
    place[-1] = -1
    columns = {name: getattr(program, name)[order] for name in ROW_COLUMNS}
    columns["alias"] = place[columns["alias"]].astype(np.int32)
    regions = tuple(
        replace(
            region,
            start=start,
            stop=stop,
            carries=tuple((int(place[row]), int(place[made])) for row, made in region.carries),
        )
        for region, (start, stop) in zip(program.regions, spans, strict=True)
    )
    owner, target = edges(program)
    return rewired(replace(program, **columns, regions=regions), (place[owner], place[target]))
