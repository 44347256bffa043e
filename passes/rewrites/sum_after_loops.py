"""Sums that a loop only adds up are added up first and summed over devices once, after the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Program, Region, RegionKind
from flint.passes.base import Pass

#: Between an all-reduce and what adds it up: only the order of elements changes.
_ORDERS = (OpClass.RESHAPE, OpClass.TRANSPOSE)
#: What a sum may begin as: the same everywhere, zeros as frontends write them.
_FILLS = (OpClass.BROADCAST, OpClass.CONSTANT)


@dataclass(frozen=True)
class SumAfterLoops(Pass):
    """Move all-reduces whose results a loop only adds up behind the loop.

    A carried value that begins as a fill, and that one addition in the loop reads, with an
    all-reduce as its other operand (perhaps transposed or reshaped): every turn adds its part, and
    one all-reduce of the total follows. XLA for GPUs does the same (WhileLoopAllReduceCodeMotion);
    it meets the gradients of weights that a loop over time or over microbatches shares.
    """

    name: ClassVar[str] = "sum-after-loops"

    def apply(self, program: Program) -> Program:
        """Return the program with such all-reduces after their loops."""
        edit = Editor(program)
        found = [
            (region, produced, chain)
            for region in program.regions
            if region.kind is RegionKind.LOOP and region.trip_count > 1
            for produced, chain in _sums(edit, region)
        ]
        for region, produced, chain in found:
            _move(edit, region, produced, chain)
        return edit.build().program if found else program


def _sums(edit: Editor, region: Region) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """(carried row, addition) and the rows from the addition's operand down to the all-reduce."""
    p = edit.program
    for carried, add in region.carries:
        inside = region.start <= add < region.stop and p.region[add] == p.region[carried]
        if not inside or p.op[add] != OpClass.ADD or edit.uses(carried) != 1:
            continue
        parts = [r for r in edit.reads(add) if r != carried]
        begins = edit.reads(carried)
        if len(parts) != 1 or len(edit.reads(add)) != 2 or len(begins) != 1:
            continue
        if p.op[begins[0]] not in _FILLS or _read_inside(p, region, add):
            continue
        chain = _chain(edit, parts[0])
        if chain is not None and p.region[chain[-1]] == p.region[add]:
            yield (carried, add), chain


def _chain(edit: Editor, row: int) -> list[int] | None:
    p, chain = edit.program, [row]
    while p.op[chain[-1]] in _ORDERS and edit.uses(chain[-1]) == 1:
        reads = edit.reads(chain[-1])
        if len(reads) != 1:
            return None
        chain.append(reads[0])
    last = chain[-1]
    group = int(p.group[last])
    sums = p.collective[last] == Collective.ALL_REDUCE and p.op[last] == OpClass.ADD
    listed = group < 0 or p.groups[group].is_listed
    return chain if sums and not listed and edit.uses(last) == 1 else None


def _readers(program: Program, row: int) -> list[int]:
    places = np.flatnonzero(program.deps == row)
    readers = np.searchsorted(program.dep_start, places, side="right") - 1
    return [int(reader) for reader in readers]


def _read_inside(program: Program, region: Region, row: int) -> bool:
    return any(region.start <= reader < region.stop for reader in _readers(program, row))


def _move(edit: Editor, region: Region, pair: tuple[int, int], chain: list[int]) -> None:
    """Take the all-reduce out of the chain, and put one of the total behind the loop."""
    p, (carried, add), reduce = edit.program, pair, chain[-1]
    below = chain[-2] if len(chain) > 1 else add
    edit.change(below, deps=[*(r for r in edit.reads(below) if r != reduce), *edit.reads(reduce)])
    edit.remove([reduce])
    whole = int(p.result_bytes[add])
    total = edit.copy(
        reduce,
        region.stop,
        region.parent,
        [add],
        shape=p.shape[add],
        result_bytes=whole,
        operand_bytes=whole,
        comm_bytes=whole,
    )
    for reader in {*_readers(p, add), *_readers(p, carried)}:
        if not region.start <= reader < region.stop and edit.stays(reader):
            reads = edit.reads(reader)
            edit.change(reader, deps=[total if r in pair else r for r in reads])
