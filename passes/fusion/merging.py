"""One row per kernel: the last step of every rule that decides which rows are one kernel."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flint.ir.columns import ROW_COLUMNS, Edges, Mask, edges, kept, rewired, yielded
from flint.ir.opcodes import opcode_mask
from flint.ir.product_types import kernel_products
from flint.ir.program import Flag, Int64s, Kind, Program
from flint.passes.fusion.roles import UPDATE


def segments(program: Program) -> Int64s:
    """For each row, a number that rows share if they are neighbours in one region.

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
    stays = kernel == np.arange(n)
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
    found = replace(program.with_rows(**{**values, **columns}), regions=_yields(program, kernel))
    inside = kernel[owner], kernel[target]
    apart = inside[0] != inside[1]
    found = rewired(found, (inside[0][apart], inside[1][apart]))
    return kept(*_in_order(_honest(found, program, kernel), stays))


def _honest(found: Program, before: Program, kernel: Int64s) -> Program:
    """Rows that write into what they no longer read are not in place."""
    lost = (found.alias < 0) & (before.alias >= 0)
    moved = (before.alias >= 0) & (kernel[before.alias] != before.alias) & ~lost
    flags = found.flags.copy()
    flags[lost] &= ~np.uint8(Flag.IN_PLACE | Flag.VIEW)
    alias = np.where(moved, -1, found.alias).astype(np.int32)
    flags[moved] &= ~np.uint8(Flag.IN_PLACE)
    return found.with_rows(flags=flags, alias=alias)


def _yields(program: Program, kernel: Int64s) -> tuple[Any, ...]:
    """Regions whose loops take values from kernels."""
    return tuple(
        replace(r, carries=tuple((of, int(kernel[to])) for of, to in r.carries))
        for r in program.regions
    )


def value_bytes(program: Program) -> Int64s:
    """Bytes of what each row stands for: for a row that writes in place, of the whole array."""
    found = program.result_bytes.copy()
    placed = ((program.flags & Flag.IN_PLACE) != 0) & (program.alias >= 0)
    for row in np.flatnonzero(placed).tolist():
        found[row] = max(found[row], found[program.alias[row]])
    return found


def _bytes_in(program: Program, kernel: Int64s, links: Edges) -> Int64s:
    """For each kernel, bytes that it reads from outside, each value once.

    A row that reads less than a value (a slice of it) counts what it reads, and a kernel no more
    than its rows read together.
    """
    n = len(program)
    owner, target = links
    computing = program.kind == Kind.COMPUTE
    seen = np.where(_is_written(program, links), 0, value_bytes(program)[target])
    seen = np.where(computing[owner], np.minimum(seen, program.operand_bytes[owner]), seen)
    key = kernel[owner] * n + target
    order = np.lexsort((seen, key))
    last = np.append(np.diff(key[order]) != 0, True)[: len(order)]
    total = np.zeros(n, dtype=np.int64)
    np.add.at(total, kernel[owner[order[last]]], seen[order[last]])
    most = np.zeros(n, dtype=np.int64)
    np.add.at(most, kernel[computing], program.operand_bytes[computing])
    return np.minimum(total, most)


def _is_written(program: Program, links: Edges) -> Mask:
    """Links to a value of which the reader only writes a part."""
    owner, target = links
    parts = opcode_mask(program, UPDATE)
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
    storage = _storage(program) if writes.any() else []
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


def _storage(program: Program) -> list[int]:
    """For each row, the row whose storage its result is in."""
    found: list[int] = []
    for row, alias in enumerate(program.alias.tolist()):
        found.append(found[alias] if alias >= 0 else row)
    return found


def _in_order(program: Program, keep: Mask) -> tuple[Program, Mask]:
    """Rows moved within their segments so that each follows what it reads, and `keep` with them.

    Rows stay in the order in which they are unless they must move.
    """
    owner, target = edges(program)
    wrong = target > owner
    if not wrong.any():
        return program, keep
    segment = segments(program)
    order = np.arange(len(program))
    for number in np.unique(segment[owner[wrong]]).tolist():
        low, high = np.searchsorted(segment, [number, number + 1]).tolist()
        here = (owner >= low) & (owner < high) & (target >= low)
        order[low:high] = _sorted(low, high, (owner[here], target[here]))
    return _moved(program, order, (owner, target)), keep[order]


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
    assert len(found) == high - low, "kernels read each other in a circle"
    return found


def _moved(program: Program, order: Int64s, links: Edges) -> Program:
    """The program whose row i was row order[i]."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    columns = {name: getattr(program, name)[order] for name in ROW_COLUMNS}
    alias = columns["alias"]
    columns["alias"] = np.where(alias >= 0, place[alias], -1).astype(np.int32)
    regions = tuple(
        replace(r, carries=tuple((int(place[of]), int(place[to])) for of, to in r.carries))
        for r in program.regions
    )
    none = replace(
        program,
        **columns,
        regions=regions,
        dep_start=np.zeros(len(order) + 1, dtype=np.int64),
        deps=np.zeros(0, dtype=np.int32),
    )
    aliased = rewired(none, (place[links[0]], place[links[1]]))
    return aliased.with_rows(alias=columns["alias"])
