"""Add rows to a Program: copies of rows, each placed before another one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flint.ir.columns import ROW_COLUMNS, edges, rewired
from flint.ir.program import Int64s, Program, Region


@dataclass(frozen=True, eq=False)
class Inserted:
    """A longer program: `place[i]` is the number of old row i, `rows[j]` that of new row j."""

    program: Program
    place: Int64s
    rows: Int64s


def with_copies(program: Program, source: Int64s, before: Int64s, region: Int64s) -> Inserted:
    """Add a copy of each row `source[j]` before row `before[j]`, as part of region `region[j]`.

    Copies read nothing yet and share no storage. `before` ascends, and where it stays the same
    regions come before those inside of them. A copy before the first row of a region that it is not
    part of is placed before the region.
    """
    count = len(program)
    ahead = np.cumsum(np.bincount(before, minlength=count)[:count])
    place = np.arange(count) + ahead
    rows = before + np.arange(len(before))
    merged = np.empty(count + len(before), dtype=np.int64)
    merged[place], merged[rows] = np.arange(count), source
    columns = {name: getattr(program, name)[merged] for name in ROW_COLUMNS}
    columns["alias"] = np.append(place, -1)[columns["alias"]].astype(np.int32)
    columns["alias"][rows] = -1
    columns["region"][rows] = region
    regions = tuple(
        _moved(program, index, place, before, region) for index in range(len(program.regions))
    )
    owner, target = edges(program)
    links = (place[owner], place[target])
    return Inserted(rewired(replace(program, **columns, regions=regions), links), place, rows)


def _moved(program: Program, index: int, place: Int64s, before: Int64s, region: Int64s) -> Region:
    moved = program.regions[index]
    first = before == moved.start
    outside = [not is_within(program, int(r), index) for r in region[first]]
    return replace(
        moved,
        start=moved.start + int((before < moved.start).sum()) + sum(outside),
        stop=moved.stop + int((before < moved.stop).sum()),
        carries=tuple((int(place[row]), int(place[made])) for row, made in moved.carries),
    )


def is_within(program: Program, inner: int, outer: int) -> bool:
    """Whether region `inner` is `outer` or inside of it; -1, the step, is around all."""
    while inner >= 0 and inner != outer:
        inner = program.regions[inner].parent
    return inner == outer
