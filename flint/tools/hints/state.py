"""The optimizer's state split over devices that hold it whole, in a captured program (ZeRO-1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.backends.cost.memory.liveness import buffers
from flint.backends.cost.memory.memory import MemoryKind, kinds
from flint.ir.edit import Editor
from flint.ir.mesh import Group
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Phase, Program
from flint.tools.hints.hint import CheckedBy, HintCandidate, HintKind, StepOutcome, estimated
from flint.tools.hints.on_graph import changed

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.requests.estimate import EstimateRequest

#: Reductions of fewer bytes are none of gradients.
LEAST_GRADIENT = 1 << 20


def state_candidates(e: Estimate, request: EstimateRequest) -> Iterator[HintCandidate]:
    """A part of the optimizer's state on each device along the axes that gradients are added up over."""
    groups = {g for p in e.workload.programs if (g := gradient_group(p)) is not None}
    if len(groups) != 1:
        return
    (group,) = groups
    over = " and ".join(a.name for a in group.axes)
    yield HintCandidate(
        HintKind.MEMORY,
        f"split the optimizer's state over {over} ({group.size(e.workload.mesh)} devices hold it whole)",
        f"shard its moments over {over} (JAX), or use ZeroRedundancyOptimizer or FSDP (PyTorch)",
        CheckedBy.GRAPH,
        2 * sum(map(len, e.workload.programs)),
        partial(_split, e, request, group),
    )


def _split(e: Estimate, request: EstimateRequest, group: Group) -> StepOutcome:
    return estimated(changed(e.workload, partial(with_split_state, group=group)), request)


def gradient_group(program: Program) -> Group | None:
    """Who adds up most of the gradients, None without an optimizer that has a state."""
    reduces = (program.collective == Collective.ALL_REDUCE) & (program.phase == Phase.BACKWARD)
    rows = np.flatnonzero(reduces & (program.comm_bytes >= LEAST_GRADIENT))
    if not len(rows) or not (program.phase == Phase.OPTIMIZER).any():
        return None
    said = " ".join({program.strings[program.cause[row]] for row in _state(program)})
    sent = np.bincount(program.group[rows], program.comm_bytes[rows] * program.trips[rows])
    for number in np.argsort(-sent, kind="stable").tolist():
        group: Group = program.groups[number]
        whole = group.axes and not any(f'"{a.name}"' in said for a in group.axes)
        if sent[number] and whole and not group.is_listed:
            return group
    return None


def _state(program: Program, kind: MemoryKind = MemoryKind.OPTIMIZER_STATE) -> list[int]:
    layout = buffers(program)
    return [int(r) for r in layout.first[kinds(program, layout) == kind]]


def with_split_state(program: Program, group: Group) -> Program:
    """Each device updates its part of each weight, and gathers those of the others.

    Gradients are reduced and scattered; they keep their place, so that the memory is rather too much.
    """
    edit, parts = Editor(program), group.size(program.mesh)
    reduces = (program.collective == Collective.ALL_REDUCE) & (program.phase == Phase.BACKWARD)
    same = np.array([g == group for g in program.groups], dtype=np.bool_)
    for row in np.flatnonzero(reduces & (program.comm_bytes >= LEAST_GRADIENT)).tolist():
        if same[program.group[row]]:
            edit.change(row, collective=Collective.REDUCE_SCATTER)
    updates = np.flatnonzero((program.phase == Phase.OPTIMIZER) & (program.kind == Kind.COMPUTE))
    for row in [*_state(program), *updates.tolist()]:
        if math.prod(program.shapes[program.shape[row]]) >= parts:
            edit.change(row, **_part_of(program, row, parts))
    ends = np.flatnonzero(program.op == OpClass.RESULT).tolist()
    if ends and len(updates):
        _gather_weights(edit, int(updates[-1]), ends[-1], group, parts)
    return edit.build().program


def _part_of(program: Program, row: int, parts: int) -> dict[str, Any]:
    """The columns of a row that works on a part of the elements."""
    amounts = ("result_bytes", "operand_bytes", "flops")
    found: dict[str, Any] = {name: int(getattr(program, name)[row]) // parts for name in amounts}
    return {**found, "shape": (math.prod(program.shapes[program.shape[row]]) // parts,)}


def _gather_weights(edit: Editor, last: int, result: int, group: Group, parts: int) -> None:
    """Gather the weights, in their places, behind the last update."""
    program = edit.program
    size = sum(int(program.result_bytes[r]) for r in _state(program, MemoryKind.PARAMETERS))
    gather = edit.add(
        result,
        -1,
        [last],
        opcode="all_gather",
        op=OpClass.MOVE,
        kind=Kind.COLLECTIVE,
        collective=Collective.ALL_GATHER,
        group=group,
        comm_bytes=size // parts,
        phase=Phase.OPTIMIZER,
        stream="compute",
    )
    edit.change(result, deps=[*edit.reads(result), gather])
