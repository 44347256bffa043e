"""Which pass of a stage a row belongs to: by what it is computed from, and what needs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flint.ir.columns import Mask, carried, is_any
from flint.ir.op_class import LAYOUT, OpClass
from flint.ir.program import Flag, Int64s, Kind, Phase, Program
from flint.passes.pipeline.split.parts import Key, OpenBody, Partial
from flint.passes.pipeline.split.reach import (
    choice_rows,
    dependent,
    needed,
    readers_as_bits,
    region_rows,
)
from flint.steps.captured import Port, Role

#: Parts that run for each microbatch, in the order in which they do.
FORWARD, BACKWARD, WEIGHTS = 0, 1, 2
#: The part that runs before them, once in a step.
GATHER = -1


@dataclass(frozen=True, eq=False)
class RowClasses:
    """For each row, the part that has it.

    `shared` rows are the same for every microbatch (they depend on parameters and constants
    alone): each part that reads one computes it. A part does `cheap` rows again rather than read
    what an earlier part kept: they do no arithmetic, and what they read is not larger.
    """

    part: Int64s
    shared: Mask
    cheap: Mask

    def of_result(self, key: Key, row: int) -> int:
        """The part that gives a result. Gradients of shared values go where there is time."""
        if isinstance(key, Port) and key.role is Role.INPUT_GRADIENT:
            return BACKWARD
        if not self.shared[row]:
            return int(self.part[row])
        return BACKWARD if isinstance(key, Partial) else FORWARD


def classify(body: OpenBody, *, zero_bubble: bool = False) -> RowClasses:
    """Assign rows to parts; what only gradients of parameters need to WEIGHTS if `zero_bubble`."""
    shared = ~dependent(body.program, body.varying())
    forward = _forward(body, shared)
    part = np.where(forward, FORWARD, BACKWARD).astype(np.int64)
    if zero_bubble:
        part[~forward & ~_awaited(body)] = WEIGHTS
    for rows in choice_rows(body.program):
        _lower(body.program, part, rows, int(part[rows].min()))
    shared = shared | _recomputed(body, part, shared)
    return RowClasses(part, shared, _cheap(body.program, shared))


def _lower(program: Program, part: Int64s, rows: list[int], number: int) -> None:
    """Have `rows`, and what they need, in part `number` or before it."""
    cone = needed(program, rows)
    part[cone] = np.minimum(part[cone], number)


def _recomputed(body: OpenBody, part: Int64s, shared: Mask) -> Mask:
    """Bring values that loops carry to the part that produces them, in place.

    Returns rows for which that cannot be, so that each part computes them: where a loop carries
    what the forward pass computes, but began with what only the backward pass has.
    """
    program = body.program
    gradient = dependent(program, body.seeds(Role.COTANGENT))
    again = np.zeros(len(program), dtype=np.bool_)
    pairs = [pair for region in program.regions for pair in region.carries]
    moved = True
    while moved:
        moved = False
        for value, produced in pairs:
            low = int(min(part[value], part[produced]))
            if part[value] == part[produced] or shared[value] or again[produced]:
                continue
            cone = needed(program, [value])
            if low == FORWARD and gradient[cone].any():
                outermost = region_rows(program)
                again |= needed(program, [produced]) & (outermost == outermost[value])
            else:
                part[cone] = np.minimum(part[cone], low)
                moved = True
    return again


def _forward(body: OpenBody, shared: Mask) -> Mask:
    """Rows of the forward pass: outputs need them, or they are tagged so; loops go as a whole."""
    program = body.program
    gradient = dependent(program, body.seeds(Role.COTANGENT))
    given = [
        row
        for key, row in body.results.items()
        if isinstance(key, Port) and key.role in (Role.OUTPUT, Role.LOSS, Role.PARAMETER)
    ]
    wanted = needed(program, given)
    forward = wanted | ((program.phase == Phase.FORWARD) & ~gradient)
    outermost = region_rows(program)
    for region in np.unique(outermost[outermost >= 0]).tolist():
        rows = np.flatnonzero((outermost == region) & ~shared)
        if gradient[rows].any():
            forward[rows] = wanted[rows]
        else:
            tagged = not np.isin(program.phase[rows], (Phase.BACKWARD, Phase.REMAT)).any()
            forward[rows] = tagged or wanted[rows].any()
    forward = needed(program, np.flatnonzero(forward & ~shared).tolist())
    assert not (forward & gradient & ~wanted).any(), "the forward pass needs a cotangent"
    return forward


def _awaited(body: OpenBody) -> Mask:
    """Rows that the stage before waits for; in the first stage, those that two gradients need."""
    before = body.results.items()
    roots = [r for k, r in before if isinstance(k, Port) and k.role is Role.INPUT_GRADIENT]
    if roots:
        return needed(body.program, roots)
    bits: dict[int, int] = {}
    for number, row in enumerate(r for k, r in before if isinstance(k, Partial)):
        bits[row] = bits.get(row, 0) | 1 << number
    of = readers_as_bits(body.program, bits)
    return np.array([b & (b - 1) != 0 for b in of], dtype=np.bool_)


def _cheap(program: Program, shared: Mask) -> Mask:
    """Views; and conversions, broadcasts and slices of loops' stacks that read one other value."""
    view = (program.kind == Kind.VALUE) & ((program.flags & Flag.VIEW) != 0)
    moves = is_any(program, LAYOUT | {OpClass.CONVERT}) & (program.kind == Kind.COMPUTE)
    slices = is_any(program, OpClass.DYNAMIC_SLICE) & (program.region >= 0)
    bound = carried(program)
    found = ((view | moves | slices) & (program.flops == 0) & ~bound).tolist()
    for row in np.flatnonzero(found).tolist():
        read = [d for d in program.dependencies(row).tolist() if not shared[d]]
        if len(read) != 1:
            found[row] = False
        elif slices[row]:
            found[row] = bool(bound[read[0]] or program.region[read[0]] < 0)
        elif not view[row]:
            found[row] = bool(program.result_bytes[read[0]] < program.result_bytes[row])
    return np.array(found, dtype=np.bool_)
