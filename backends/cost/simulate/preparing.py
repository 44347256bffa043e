"""Kernels that only prepare communication: slices and casts of parameters before they are gathered.

They wait for no computation, so a runtime that gathers parameters ahead runs them ahead too: PyTorch's
FSDP on its copy-in stream, XLA where it pipelines the collectives of a loop. In the compute stream
they would tie each gather to its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.ir.columns import consumers
from flint.ir.program import Kind, Program

Mask = NDArray[np.bool_]
#: The stream of such kernels in traces.
PREPARATION = "preparation"
#: Bytes of the result of a kernel that counts a loop's iterations, at most.
_SCALAR_BYTES = 8


def _light(program: Program) -> Mask:
    """For each row whether it is no work, a copy, or element-wise."""
    kernels, rows = kernels_of(program)
    light = np.isin(kernels.kind, (KernelKind.COPY, KernelKind.ELEMENTWISE))
    found = np.asarray(program.kind <= Kind.VALUE)
    found[rows[light]] = True
    return found


def made_of_parameters(program: Program) -> Mask:
    """For each row whether copies and element-wise kernels make it of parameters and counters."""
    found = _light(program)
    owner, target = program.dep_owner.astype(np.int64), program.deps.astype(np.int64)
    pairs = [pair for region in program.regions for pair in region.carries]
    if pairs:
        value, produced = np.array(pairs, dtype=np.int64).T
        owner, target = np.append(owner, value), np.append(target, produced)
    while (wrong := found[owner] & ~found[target]).any():
        found[owner[wrong]] = False
    return found


@dataclass(frozen=True, eq=False)
class Preparation:
    """Kernels that count a loop's iterations, and what gathers parameters.

    `ahead` are the rows that copies and element-wise kernels make of parameters and counters.
    `feeds` has the kernels that only collectives read, each with the first of these.
    """

    ahead: Mask
    counts: Mask
    feeds: Mapping[int, int]
    gathers: Mask

    @property
    def is_early(self) -> Mask:
        """For each row whether a runtime that gathers ahead runs it ahead."""
        found = self.gathers.copy()
        if found.any():
            found |= self.counts
        found[list(self.feeds)] = True
        return found


def preparation(program: Program) -> Preparation:
    """What of a program prepares communication, and the communication that waits for nothing else."""
    ahead = made_of_parameters(program)
    scalar = (program.result_bytes <= _SCALAR_BYTES) & (program.operand_bytes <= 4 * _SCALAR_BYTES)
    counts = ahead & scalar & (program.kind == Kind.COMPUTE) & (program.region >= 0)
    gathers = (program.kind == Kind.COLLECTIVE) & _reads_only(program, ahead)
    return Preparation(ahead, counts, _feeds(program, ahead & ~counts, gathers), gathers)


def _reads_only(program: Program, rows: Mask) -> Mask:
    """For each row whether all that it reads is in `rows`."""
    found = np.ones(len(program), dtype=np.bool_)
    found[program.dep_owner[~rows[program.deps]]] = False
    return found


def _feeds(program: Program, rows: Mask, gathers: Mask) -> dict[int, int]:
    """Of kernels in `rows` those that, through others, only `gathers` read: the first of these."""
    reached: dict[int, int] = {}
    start, readers = consumers(program)
    taken = {produced for region in program.regions for _, produced in region.carries}
    for row in np.flatnonzero(rows)[::-1].tolist():
        mine = readers[start[row] : start[row + 1]].tolist()
        ends = [r if gathers[r] else reached.get(r, -1) for r in mine]
        if ends and min(ends) >= 0 and row not in taken:
            reached[row] = min(ends)
    return {r: to for r, to in reached.items() if program.kind[r] == Kind.COMPUTE}


def prepared_apart(program: Program) -> Program:
    """The program with these kernels on a stream of their own, unless they have one already.

    So traces do not put them in order with other kernels, as the timeline does not.
    """
    early = preparation(program).is_early & (program.kind == Kind.COMPUTE) & (program.stream == 0)
    if not early.any():
        return program
    stream = np.where(early, len(program.streams), program.stream).astype(np.uint8)
    return program.with_rows(stream=stream, streams=(*program.streams, PREPARATION))
