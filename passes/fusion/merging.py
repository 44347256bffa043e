"""One row per kernel: the last step of every rule that decides which rows are one kernel."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from flint.ir.arrays import Float64s
from flint.ir.columns import Edges, Mask, bytes_in, consumers, edges, is_any, type_bytes, yielded
from flint.ir.edit import Editor
from flint.ir.op_class import ELEMENTWISE, OpClass
from flint.ir.product_types import kernel_products
from flint.ir.program import Flag, Int64s, Kind, Program

#: Opcodes of kernels that rules of fusion make, by class.
MERGED_NAMES = {
    OpClass.FUSED: "fusion",
    OpClass.FUSED_LOOP: "fusion.loop",
    OpClass.FUSED_LAYOUT: "fusion.layout",
    OpClass.FUSED_ATTENTION: "fusion.attention",
    OpClass.FUSED_ATTENTION_BACKWARD: "fusion.attention_backward",
    OpClass.FUSED_SOFTMAX: "fusion.softmax",
    OpClass.FUSED_NORM: "fusion.norm",
    OpClass.FUSED_REDUCTION: "fusion.reduction",
    OpClass.FUSED_OPTIMIZER: "fusion.optimizer",
}
#: Rows that write a part of an array.
_PARTLY = frozenset({OpClass.UPDATE_SLICE, OpClass.SCATTER})
#: Rows that read elements at places that are calculated: XLA does it wherever these are used.
LOOKED_UP = frozenset({OpClass.ALL_SLICE, OpClass.GATHER})


def segments(program: Program) -> Int64s:
    """For each row, a number that rows share if they are neighbors in one region.

    Between two rows of a segment no loop or branch begins or ends, so that they may change places.
    """
    begins = np.zeros(len(program) + 1, dtype=np.int64)
    bounds = [at for region in program.regions for at in (region.start, region.stop)]
    begins[bounds] = 1
    return np.cumsum(begins[:-1])


def merged(
    program: Program,
    kernel: Int64s,
    changed: Mask | None = None,
    known: Mapping[int, Mapping[str, int]] | None = None,
    **columns: Any,
) -> Program:
    """The program with one row per kernel.

    `kernel[row]` is the row that stands for the row's kernel: it keeps its place where it can,
    and its scope, location, phase, type and shape. All rows of a kernel are of one segment, and
    merging them makes no cycle. `columns` replace columns of the rows that stay, before rows move;
    `known` holds flops and bytes of some of them. Bytes are those that cross: `operand_bytes` each
    value once (also of rows in `changed`), `result_bytes` what rows outside, loops or storage
    take.
    """
    n = len(program)
    owner, target = edges(program)
    crosses = kernel[owner] != kernel[target]
    links = (owner[crosses], target[crosses])
    several = np.bincount(kernel, minlength=n) > 1
    crossed = several if changed is None else several | changed
    flops = np.zeros(n, dtype=np.int64)
    np.add.at(flops, kernel, program.flops)
    values: dict[str, Any] = {
        "flops": flops,
        "operand_bytes": np.where(
            crossed, _bytes_in(program, kernel, links), program.operand_bytes
        ),
        "result_bytes": np.where(several, _bytes_out(program, kernel), program.result_bytes),
        "product": kernel_products(program, kernel),
    }
    for row, quantities in (known or {}).items():
        for name, quantity in quantities.items():
            values[name][row] = quantity
    edit = Editor(program.with_rows(**{"alias": _outside(program, kernel), **values, **columns}))
    edit.merge(kernel)
    order = order_by(program, (kernel[owner], kernel[target]))
    if order is not None:
        edit.order(order)
    made, place = edit.build()
    return _honest(made, program, np.flatnonzero(place >= 0), place)


def _outside(program: Program, kernel: Int64s) -> Int64s:
    """For each row, the row outside its kernel whose storage it shares, past views that join the kernel."""
    found = program.alias.astype(np.int64)
    views = ((program.kind == Kind.VALUE) & (program.alias >= 0)).tolist()
    for row in np.flatnonzero(found >= 0).tolist():
        at = int(found[row])
        while views[at] and kernel[at] == kernel[row]:
            at = int(program.alias[at])
        found[row] = at
    return found


def _honest(found: Program, before: Program, rows: Int64s, place: Int64s) -> Program:
    """Rows that no longer share storage with what they wrote into are not in place."""
    lost = place[rows[before.alias[rows] >= 0]]
    lost = lost[found.alias[lost] < 0]
    flags = found.flags.copy()
    flags[lost] &= ~np.uint16(Flag.IN_PLACE | Flag.VIEW)
    return found.with_rows(flags=flags)


def value_bytes(program: Program) -> Int64s:
    """Bytes of what each row stands for: for a row that writes in place, of the whole array."""
    found = program.result_bytes.copy()
    placed = ((program.flags & Flag.IN_PLACE) != 0) & (program.alias >= 0)
    for row in np.flatnonzero(placed).tolist():
        found[row] = max(found[row], found[program.alias[row]])
    return found


def _bytes_in(program: Program, kernel: Int64s, links: Edges) -> Int64s:
    """For each kernel, bytes that it reads from outside; what it only writes a part of are none.

    Places that a scatter writes are read.
    """
    seen = np.where(_is_written(program, links), 0, value_bytes(program)[links[1]])
    seen = (seen * _looked_at(program, kernel)[links[0]]).astype(np.int64)
    found = bytes_in(program, kernel, links, seen)
    places = np.flatnonzero(is_any(program, OpClass.SCATTER) & (program.alias >= 0))
    whole = type_bytes(program)[program.alias[places]]
    np.add.at(found, kernel[places], np.minimum(program.result_bytes[places], whole))
    return found


def _looked_at(program: Program, kernel: Int64s) -> Float64s:
    """For each row, the share of its elements that its kernel computes: few, if only parts of it are read."""
    share = np.ones(len(program))
    looks = (is_any(program, LOOKED_UP) & (program.kind == Kind.COMPUTE)).tolist()
    narrow = _takes_slices(program).tolist()
    if not any(looks) and not any(narrow):
        return share
    first, rows = (column.tolist() for column in consumers(program))
    handed_on = yielded(program).tolist()
    stands, size = kernel.tolist(), np.maximum(type_bytes(program), 1).tolist()
    reads = program.operand_bytes.tolist()
    for row in range(len(program))[::-1]:
        readers = rows[first[row] : first[row + 1]]
        inside = readers and all(stands[r] == stands[row] for r in readers)
        if inside and not handed_on[row]:
            parts = (
                size[r] / size[row] if looks[r] else reads[r] / size[row] if narrow[r] else share[r]
                for r in readers
            )
            share[row] = min(sum(parts), 1.0)
    return share


def _takes_slices(program: Program) -> Mask:
    """Element-wise rows with fewer elements than what they read: slices became part of them."""
    elements = np.array([math.prod(shape) for shape in program.shapes] or [0], dtype=np.int64)
    owner, target = edges(program)
    smaller = elements[program.shape[owner]] < elements[program.shape[target]]
    found = np.zeros(len(program), dtype=np.bool_)
    found[owner[smaller]] = True
    found &= is_any(program, ELEMENTWISE) & (program.kind == Kind.COMPUTE)
    return found


def _is_written(program: Program, links: Edges) -> Mask:
    """Links to a value of which the reader only writes a part, itself or seen differently."""
    owner, target = links
    parts = is_any(program, _PARTLY) & (program.alias >= 0)
    if not parts.any():
        return np.zeros(len(owner), dtype=np.bool_)
    first, rows = consumers(program)
    for view in np.flatnonzero((program.kind == Kind.VALUE) & (program.alias >= 0)).tolist()[::-1]:
        readers = rows[first[view] : first[view + 1]]
        alike = parts[readers] & (program.alias[readers] == view)
        parts[view] = len(readers) > 0 and bool(alike.all())
    return np.asarray(parts[owner] & (program.alias[owner] == target), dtype=np.bool_)


def _bytes_out(program: Program, kernel: Int64s) -> Int64s:
    """For each kernel, bytes of its values that rows outside, loops or storage take.

    A view stands for what it shows.
    """
    n = len(program)
    owner, target = edges(program)
    placed = (program.flags & Flag.IN_PLACE) != 0
    again = np.flatnonzero(placed & (program.alias >= 0))
    again = again[kernel[again] == kernel[program.alias[again]]]
    leaves = placed.copy()
    leaves[program.alias[again]] = False  # what the kernel writes over stays on chip
    leaves |= yielded(program) | (np.bincount(target, minlength=n) == 0)
    leaves[target[(kernel[owner] != kernel[target]) & ~_only_waits(program)]] = True
    for row in np.flatnonzero((program.kind == Kind.VALUE) & leaves)[::-1].tolist():
        inner = [d for d in program.dependencies(row).tolist() if kernel[d] == kernel[row]]
        leaves[inner] = True
    counted = leaves & (program.kind == Kind.COMPUTE)
    out = np.zeros(n, dtype=np.int64)
    np.add.at(out, kernel[counted], program.result_bytes[counted])
    return out


def _only_waits(program: Program) -> Mask:
    """Links of rows that overwrite storage to rows that read it before: no bytes cross.

    That is so if the other rows that the writer reads have all the bytes that it reads.
    """
    owner, target = edges(program)
    found = np.zeros(len(owner), dtype=np.bool_)
    writes = ((program.flags & Flag.IN_PLACE) != 0) & (program.alias >= 0)
    storage = storage_rows(program) if writes.any() else []
    for row in np.flatnonzero(writes).tolist():
        links = slice(int(program.dep_start[row]), int(program.dep_start[row + 1]))
        written = storage[row]
        before = [
            d != program.alias[row]
            and any(storage[r] == written for r in program.dependencies(d).tolist())
            for d in target[links].tolist()
        ]
        others = target[links][~np.array(before, dtype=np.bool_)]
        if program.result_bytes[others].sum() >= program.operand_bytes[row]:
            found[links] = before
    return found


def storage_rows(program: Program) -> list[int]:
    """For each row, the row whose storage its result is in."""
    found: list[int] = []
    for row, alias in enumerate(program.alias.tolist()):
        found.append(found[alias] if alias >= 0 else row)
    return found


def overwritten(program: Program, storage: list[int]) -> set[tuple[int, int]]:
    """Storage that is overwritten in a region, in part or whole, as (region, row)."""
    placed = ((program.flags & Flag.IN_PLACE) != 0) & (program.alias >= 0)
    return {(int(program.region[row]), storage[row]) for row in np.flatnonzero(placed).tolist()}


def order_by(program: Program, links: Edges) -> Int64s | None:
    """Rows moved within their segments so that each follows what it reads by `links`.

    They stay as they are unless they must move: None if none must.
    """
    across = links[0] != links[1]
    owner, target = links[0][across], links[1][across]
    wrong = target > owner
    if not wrong.any():
        return None
    segment = segments(program)
    order = np.arange(len(program))
    for number in np.unique(segment[owner[wrong]]).tolist():
        low, high = np.searchsorted(segment, [number, number + 1]).tolist()
        here = (owner >= low) & (owner < high) & (target >= low)
        pairs = np.unique(np.stack([owner[here], target[here]]), axis=1)
        order[low:high] = _sorted(low, high, (pairs[0], pairs[1]))
    return order


def _sorted(low: int, high: int, links: Edges) -> list[int]:
    """Rows `low:high` so that each follows what it reads, the smallest that can come first."""
    waits = np.bincount(links[0] - low, minlength=high - low).tolist()
    by_read = np.argsort(links[1], kind="stable")
    start = np.searchsorted(links[1][by_read], np.arange(low, high + 1)).tolist()
    readers = links[0][by_read].tolist()
    ready = [row for row in range(low, high) if not waits[row - low]]
    found = []
    while ready:
        row = heapq.heappop(ready)
        found.append(row)
        for reader in readers[start[row - low] : start[row - low + 1]]:
            waits[reader - low] -= 1
            if not waits[reader - low]:
                heapq.heappush(ready, reader)
    if len(found) < high - low:
        raise CircleError(_circle(links, {*range(low, high)} - {*found}))
    return found


class CircleError(Exception):
    """Kernels read each other in a circle: `kernels`, by the rows that stand for them."""

    def __init__(self, kernels: list[int]) -> None:
        super().__init__("kernels read each other in a circle")
        self.kernels = kernels


def _circle(links: Edges, left: set[int]) -> list[int]:
    """Rows of `left`, each of which reads one of `left`, that read each other."""
    reads = dict(zip(links[0].tolist(), links[1].tolist(), strict=True))
    for row, read in zip(links[0].tolist(), links[1].tolist(), strict=True):
        if row in left and read in left:
            reads[row] = read
    way: dict[int, None] = {}
    at = min(left)
    while at not in way:
        way[at] = None
        at = reads[at]
    rows = list(way)
    return rows[rows.index(at) :]


def without_circles(kernel: Int64s, circle: CircleError) -> Int64s:
    """The smallest of several rows among the kernels of a circle taken apart.

    `Groups` looks for ways between kernels up to the last row of one. A way through a kernel that
    reaches further and comes back is rare, and found when the kernels are put in order.
    """
    sizes = {k: int((kernel == k).sum()) for k in circle.kernels}
    several = [k for k in circle.kernels if sizes[k] > 1]
    gone = kernel == min(several, key=lambda k: (sizes[k], k))
    return np.where(gone, np.arange(len(kernel)), kernel)
