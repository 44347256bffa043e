"""Phases of rows that carry no tag of their own."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Mask
from flint.ir.columns import consumers, is_any
from flint.ir.op_class import DATA_MOVEMENT, GENERATED, LAYOUT, OpClass
from flint.ir.program import Kind, Phase, Program

#: Rows that calculate nothing of what they read.
_MOVES = LAYOUT | DATA_MOVEMENT | GENERATED | {OpClass.CONVERT}
Phases: TypeAlias = NDArray[np.uint8]


def with_phases(program: Program) -> Program:
    """Fill in UNKNOWN phases, in the order of these rules.

    Of what depends on the backward pass, what a gradient flows through is BACKWARD, what is
    calculated again for it REMAT (see `_of_gradients`), and the rest is OPTIMIZER: JAX tags what it
    differentiates (`jvp`, `transpose`), and the optimizer is what comes after and carries no tag.
    What only rows of one phase read (`b1 * m`, constants) is of that phase. The rest is FORWARD.
    Values that a loop carries count as depending on what the loop produces.
    """
    phase = _with_shared_integers(program)
    after = reached(program, _is_any(phase, Phase.BACKWARD, Phase.REMAT))
    unknown = (phase == Phase.UNKNOWN) & after
    gradients = unknown & _of_gradients(program, phase, after)
    again = gradients & _runs_again(program, phase)
    phase[unknown] = Phase.OPTIMIZER
    phase[gradients] = Phase.BACKWARD
    phase[again] = Phase.REMAT
    return program.with_rows(phase=_as_their_readers(program, phase))


def _with_shared_integers(program: Program) -> Phases:
    """The tags, with FORWARD for integers that are tagged BACKWARD and read by the forward pass.

    XLA computes once what both passes need (offsets of shards), under the name of either.
    """
    phase = program.phase.copy()
    whole = np.array([not d.startswith(("float", "bfloat")) for d in program.dtypes] or [False])
    shared = ((phase == Phase.BACKWARD) & whole[program.dtype]).tolist()
    forward = (phase == Phase.FORWARD).tolist()
    readers, rows = program.dep_owner[::-1].tolist(), program.deps[::-1].tolist()
    for reader, row in zip(readers, rows, strict=True):  # all of a reader's own readers were before
        forward[row] |= forward[reader] and shared[row]
    phase[forward] = Phase.FORWARD
    return phase


def _of_gradients(program: Program, phase: Phases, after: Mask) -> Mask:
    """What belongs to the backward pass though nothing says so: bodies of `shard_map` in HLO.

    Tagged rows of the backward pass read it and none of a forward pass does; or it is in a loop
    that holds rows of the backward pass alone; or it is calculated by a line of the source that
    also calculates something before: derivatives are where what they are of is.
    """
    tags = _tags_reached(program, phase)
    wanted, forward = (1 << Phase.BACKWARD) | (1 << Phase.REMAT), 1 << Phase.FORWARD
    serves: Mask = ((tags & wanted) != 0) & ((tags & forward) == 0)
    before = (program.kind >= Kind.COMPUTE) & ~after & ((tags != 0) | (phase == Phase.FORWARD))
    texts = np.array([bool(s) for s in program.strings] or [False], dtype=np.bool_)
    lines = np.unique(program.location[before & texts[program.location]])
    return serves | _in_backward_loop(program, phase) | np.isin(program.location, lines)


def _tags_reached(program: Program, phase: Phases) -> NDArray[np.int64]:
    """For each row, bits of the tags of what reads it, directly or by rows without a tag."""
    own = np.where(phase == Phase.UNKNOWN, 0, 1 << phase.astype(np.int64)).tolist()
    reached = [0] * len(program)
    readers, rows = program.dep_owner[::-1].tolist(), program.deps[::-1].tolist()
    for reader, row in zip(readers, rows, strict=True):  # all of a reader's own readers were before
        reached[row] |= own[reader] or reached[reader]
    return np.array(reached, dtype=np.int64)


def _in_backward_loop(program: Program, phase: Phases) -> Mask:
    """Rows of loops that hold tagged rows of the backward pass and none of a forward pass.

    So do loops inside such loops.
    """
    tags = [set[int]() for _ in program.regions]
    for region in np.unique(program.region[program.region >= 0]).tolist():
        mine = set(np.unique(phase[program.region == region]).tolist())
        while region >= 0:
            tags[region] |= mine
            region = program.regions[region].parent
    wanted, forward = {int(Phase.BACKWARD), int(Phase.REMAT)}, int(Phase.FORWARD)
    holds = np.zeros(len(program.regions) + 1, dtype=np.bool_)
    for number, region in enumerate(program.regions):  # a region comes after the one around it
        holds[number] = forward not in tags[number] and bool(
            tags[number] & wanted or holds[region.parent]
        )
    found: Mask = holds[program.region]
    return found


def _runs_again(program: Program, phase: Phases) -> Mask:
    """Rows that read no gradient, in a program that tags some of its recomputation.

    Gradients begin with the tagged rows of the backward pass that calculate; slices of what the
    forward pass kept, and weights, only move.
    """
    if not (phase == Phase.REMAT).any() or not (phase == Phase.BACKWARD).any():
        return np.zeros(len(program), dtype=np.bool_)
    moves = is_any(program, _MOVES)
    floating = np.array([d.startswith(("float", "bfloat")) for d in program.dtypes] or [False])
    floats: Mask = floating[program.dtype]
    seeds = (phase == Phase.BACKWARD) & (program.kind == Kind.COMPUTE) & ~moves & floats
    return ~reached(program, seeds, through=floats & (phase != Phase.REMAT))


def _as_their_readers(program: Program, phase: Phases) -> Phases:
    """Give UNKNOWN rows the phase of all their readers, last row first; FORWARD where they differ.

    What the step returns is read by nobody in particular and does not count.
    """
    start, readers = consumers(program)
    result = (program.op == OpClass.RESULT).tolist()
    first, reader, found = start.tolist(), readers.tolist(), phase.tolist()
    for row in range(len(program) - 1, -1, -1):
        if found[row] == Phase.UNKNOWN:
            of = {found[r] for r in reader[first[row] : first[row + 1]] if not result[r]}
            found[row] = of.pop() if len(of) == 1 else int(Phase.FORWARD)
    return np.array(found, dtype=np.uint8)


def _is_any(phase: Phases, one: Phase, other: Phase) -> Mask:
    found: Mask = (phase == one) | (phase == other)
    return found


def reached(program: Program, marked: Mask, through: Mask | None = None) -> Mask:
    """`marked` and the rows that depend on them, directly or by rows of `through` (None: any)."""
    found = marked.copy()
    for _ in range(2):
        _spread(program, found, through)
        for region in program.regions:
            for carried, produced in region.carries:
                found[carried] |= found[produced]
    return found


def _spread(program: Program, found: Mask, through: Mask | None) -> None:
    """Mark every row that depends on a marked row, in one sweep in row order."""
    marked = found.tolist()
    allowed = [True] * len(program) if through is None else through.tolist()
    for row, read in zip(program.dep_owner.tolist(), program.deps.tolist(), strict=True):
        if marked[read] and allowed[row]:
            marked[row] = True
    found[:] = marked
