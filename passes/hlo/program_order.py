"""The order of the program, which XLA forgets: instructions are sorted by the numbers in their names.

XLA lists the instructions of a computation as its results need them: gradients would all come last.
"""

from __future__ import annotations

import heapq
import re

from flint.passes.hlo.causes import is_written
from flint.passes.hlo.module import Computation, HloModule
from flint.passes.partition.prepare.positions import MARK

#: Collectives that change where data is, and no value.
_MOVES = frozenset(["all-gather", "all-to-all", "collective-permute"])
_MARKED = re.compile(MARK + r"(\d+)")
#: The position of an instruction: those of the calls that it is in, and its own.
_Position = tuple[int, ...]


def restore(module: HloModule) -> None:
    """Sort the instructions of each computation as the program has them, and give them their names."""
    for computation in module.proto.computations:
        _sort(computation)
        for i in computation.instructions:
            i.metadata.op_name = _MARKED.sub("", i.metadata.op_name)


def _sort(computation: Computation) -> None:
    made = {i.id: i for i in computation.instructions}
    readers: dict[int, list[int]] = {number: [] for number in made}
    waits: dict[int, int] = {}
    for i in computation.instructions:
        before = {*i.operand_ids, *i.control_predecessor_ids}
        waits[i.id] = len(before)
        for number in before:
            readers[number].append(i.id)
    positions = _positions(computation, readers)
    listed = {i.id: n for n, i in enumerate(computation.instructions)}
    ready = [(positions[n], listed[n], n) for n, count in waits.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        number = heapq.heappop(ready)[2]
        order.append(made[number])
        for reader in readers[number]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (positions[reader], listed[reader], reader))
    copies = [type(i).FromString(i.SerializeToString()) for i in order]
    del computation.instructions[:]
    computation.instructions.extend(copies)


def _positions(computation: Computation, readers: dict[int, list[int]]) -> dict[int, _Position]:
    """Of each instruction: its own, or that of the first that reads it, if it has none or comes later.

    XLA merges what it makes for two operations, and keeps the name of the later one: all that the
    earlier one waits for would come between. A collective that it makes to move data has the name of
    what reads it, or with newer JAX of what it reads: it comes where it is read.
    """
    found: dict[int, _Position] = {}
    for i in reversed(computation.instructions):
        name = i.metadata.op_name
        moves = i.opcode.removesuffix("-start") in _MOVES and not is_written(_MARKED.sub("", name))
        own = () if moves else tuple(map(int, _MARKED.findall(name)))
        found[i.id] = min(filter(None, [own, *(found[r] for r in readers[i.id])]), default=())
    return found
