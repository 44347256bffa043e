"""Who needs what in a program, around loops: a carried value stands for what the loop produces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from flint.ir.columns import Mask
from flint.ir.program import Int64s, Program, RegionKind, Row


def producers(program: Program) -> dict[int, int]:
    """For each carried row, the row that produces its value for the next iteration."""
    return dict(pair for region in program.regions for pair in region.carries)


def needed(program: Program, roots: Iterable[int]) -> Mask:
    """Rows from which `roots` are computed, the roots among them."""
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    produced = producers(program)
    found = bytearray(len(program))
    pending = list(roots)
    while pending:
        row = pending.pop()
        if found[row]:
            continue
        found[row] = 1
        pending.extend(deps[start[row] : start[row + 1]])
        if row in produced:
            pending.append(produced[row])
    return np.frombuffer(bytes(found), dtype=np.bool_).copy()


def dependent(program: Program, seeds: Mask) -> Mask:
    """Rows that are computed from `seeds`, the seeds among them.

    All rows of the branches of a choice count as one: which of them runs depends on its selector.
    """
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    pairs = [pair for region in program.regions for pair in region.carries]
    choices = choice_rows(program)
    found = seeds.tolist()
    grew = True
    while grew:
        for row in range(len(program)):
            if not found[row]:
                found[row] = any(found[d] for d in deps[start[row] : start[row + 1]])
        grew = _around(found, pairs) | _across(program, found, choices)
    return np.array(found, dtype=np.bool_)


def readers_as_bits(program: Program, roots: Mapping[int, int]) -> list[int]:
    """For each row, the union of the bits of the `roots` that are computed from it."""
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    pairs = [pair for region in program.regions for pair in region.carries]
    bits = [0] * len(program)
    for row, own in roots.items():
        bits[row] |= own
    grew = True
    while grew:
        for row in range(len(program) - 1, -1, -1):
            if bits[row]:
                for d in deps[start[row] : start[row + 1]]:
                    bits[d] |= bits[row]
        grew = False
        for carried, produced in pairs:
            if bits[carried] & ~bits[produced]:
                bits[produced] |= bits[carried]
                grew = True
    return bits


def choice_rows(program: Program) -> list[list[int]]:
    """For each choice, the rows of all its branches."""
    found: dict[int, list[int]] = {}
    for region in program.regions:
        if region.kind is RegionKind.BRANCH:
            found.setdefault(region.choice, []).extend(range(region.start, region.stop))
    return list(found.values())


def readers(program: Program) -> list[list[int]]:
    """For each row, the rows that read it, in order."""
    found: list[list[int]] = [[] for _ in range(len(program))]
    for owner, row in zip(program.dep_owner.tolist(), program.deps.tolist(), strict=True):
        found[row].append(owner)
    return found


def common_region(program: Program, first: int, second: int) -> int:
    """The innermost region that holds both rows, or -1."""
    a, b = int(program.region[first]), int(program.region[second])
    while a != b:  # a region's number is greater than its parent's
        if a > b:
            a = program.regions[a].parent
        else:
            b = program.regions[b].parent
    return a


def storage_bytes(program: Program, row: int) -> int:
    """Bytes of the whole value that a row gives: an update in place writes only some of it."""
    from flint.ir.program import Flag

    while program.flags[row] & Flag.IN_PLACE and program.alias[row] >= 0:
        row = int(program.alias[row])
    return int(program.result_bytes[row])


def whole_row(program: Program, row: int) -> Row:
    """A row with the bytes of its whole value, of which an update in place writes only some."""
    return program.row(row)._replace(result_bytes=storage_bytes(program, row))


def region_rows(program: Program) -> Int64s:
    """For each row, the outermost region that holds it, or -1."""
    outermost = np.array(
        [outermost_region(program, i) for i in range(len(program.regions))] + [-1], dtype=np.int64
    )
    return outermost[program.region]


def outermost_region(program: Program, region: int) -> int:
    """The region around a region that no other is around."""
    while program.regions[region].parent >= 0:
        region = program.regions[region].parent
    return region


def _around(found: list[bool], pairs: list[tuple[int, int]]) -> bool:
    grew = False
    for carried, produced in pairs:
        if found[produced] and not found[carried]:
            found[carried] = grew = True
    return grew


def _across(program: Program, found: list[bool], choices: list[list[int]]) -> bool:
    if not choices:
        return False
    grew = False
    reading = readers(program)
    for rows in choices:
        inside = set(rows)
        joins = [r for row in rows for r in reading[row] if r not in inside]
        if any(found[r] for r in (*rows, *joins)) and not all(found[r] for r in rows):
            grew = True
            for row in rows:
                found[row] = True
    return grew
