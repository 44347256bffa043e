"""The program of one position of a pipeline so far, and what microbatches in flight hold there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flint.ir.builder import ProgramBuilder
from flint.ir.op_class import OpClass
from flint.ir.program import Kind
from flint.passes.pipeline.compose.plan import PipelinePlan
from flint.passes.pipeline.schedule.simulate import activations_held
from flint.passes.pipeline.schedule.units import Unit, UnitWork
from flint.passes.pipeline.split.parts import Key, Partial, Saved, StageParts, StageProgram
from flint.passes.pipeline.split.reduce_part import ReducePiece
from flint.steps.captured import Port, Role


@dataclass
class Chunk:
    """One of the stages that a position holds, and the rows of the program that are of it.

    `held` are what it keeps all step long, `summed` its partial gradients once the last microbatch
    has given them, `pieces` what of its reductions has not begun, `gradients` what they gave.
    """

    stage: int
    parts: StageParts
    norm: StageProgram | None
    update: StageProgram | None
    held: dict[Key, int] = field(default_factory=dict)
    accumulators: dict[Partial, int] = field(default_factory=dict)
    summed: dict[Key, int] = field(default_factory=dict)
    pieces: list[ReducePiece] = field(default_factory=list)
    gradients: dict[Key, int] = field(default_factory=dict)


@dataclass
class RankState:
    """The program of a position so far.

    `turn` is the row that what comes next waits for: the end of the unit before it. `returned` are
    rows that hold what the step gives, `loss` the row of the loss or -1. `stash` is what waits of other
    microbatches.
    """

    plan: PipelinePlan
    position: int
    builder: ProgramBuilder
    chunks: tuple[Chunk, ...]
    turn: int = -1
    loss: int = -1
    returned: list[int] = field(default_factory=list)
    stash: Stash = field(default_factory=lambda: Stash(0, 0))

    @property
    def order(self) -> tuple[Unit, ...]:
        """The units of this position."""
        return self.plan.orders[self.position]

    def end_turn(self, rows: Sequence[int]) -> None:
        """Let what comes next wait for `rows`."""
        self.turn = self.builder.add(
            "pipeline.turn", Kind.VALUE, op=OpClass.TURN, deps=rows or [self.turn]
        )


def first_state(plan: PipelinePlan, position: int) -> RankState:
    """The program of a position before its first row."""
    chunks = tuple(
        Chunk(stage, plan.parts[body], plan.norms[body], plan.updates[body])
        for stage in plan.stages_of(position)
        for body in (plan.captured.stages[stage],)
    )
    return RankState(plan, position, ProgramBuilder(plan.captured.mesh), chunks)


def in_flight(order: Sequence[Unit], chunk: int) -> int:
    """The most microbatches of a chunk whose saved activations a position holds at one time."""
    return activations_held([unit for unit in order if unit.chunk == chunk])


def saved_keys(parts: StageParts) -> dict[Key, tuple[StageProgram, int]]:
    """What a backward pass reads of its microbatch's forward pass: key to (part, PARAMETER row)."""
    gathered = parts.gather.outputs if parts.gather is not None else {}
    given = parts.backward.outputs if parts.backward is not None else {}
    found: dict[Key, tuple[StageProgram, int]] = {}
    for part in parts.backward_passes:
        for key, row in part.inputs.items():
            if is_saved(key) and key not in gathered and key not in given:
                found.setdefault(key, (part, row))
    return found


def is_saved(key: Key) -> bool:
    """Whether a backward pass reads this from an earlier pass of its microbatch."""
    return isinstance(key, Saved) or (isinstance(key, Port) and key.role is Role.INPUT)


def saved_bytes(parts: StageParts) -> int:
    """Bytes of activations that one microbatch keeps on a device until its backward pass."""
    return sum(int(part.program.result_bytes[row]) for part, row in saved_keys(parts).values())


def weights_bytes(parts: StageParts) -> int:
    """Bytes that one microbatch keeps from a backward pass that is split until its second part."""
    if parts.weights is None:
        return 0
    gathered = parts.gather.outputs if parts.gather is not None else {}
    kept = (
        row
        for key, row in parts.weights.inputs.items()
        if key not in gathered and (is_saved(key) or _is_received(key))
    )
    return int(parts.weights.program.result_bytes[list(kept)].sum())


def _is_received(key: Key) -> bool:
    return isinstance(key, Port) and key.role is Role.COTANGENT


class Stash(NamedTuple):
    """Values that wait for later passes: of how many microbatches (of a chunk), and their bytes.

    `after` says of how many of each chunk, by the pass that they wait after.
    """

    microbatches: int
    num_bytes: int
    after: Mapping[tuple[int, UnitWork], int] = {}

    def waiting(self, chunk: int, parts: StageParts, key: Key) -> int:
        """How many values of a key of `saved_keys` wait."""
        again = parts.weights is not None and key in parts.weights.inputs
        split = self.after.get((chunk, UnitWork.INPUT_BACKWARD), 0)
        return self.after.get((chunk, UnitWork.FORWARD), 0) + (split if again else 0)


def stash(order: Sequence[Unit], parts: Sequence[StageParts]) -> Stash:
    """The most that a position holds beside the microbatch that it works on; `parts` by chunk."""
    after = [_kept_after(p) for p in parts]
    kept: dict[tuple[int, int], tuple[UnitWork, int]] = {}
    most, held = Stash(0, 0), 0
    for unit in order:
        held -= kept.pop((unit.chunk, unit.microbatch), (unit.work, 0))[1]
        if held > most.num_bytes:
            waits = Counter((chunk, work) for (chunk, _), (work, _) in kept.items())
            most = Stash(len(kept), held, waits)
        if size := after[unit.chunk][unit.work]:
            kept[unit.chunk, unit.microbatch] = unit.work, size
            held += size
    return most


def _kept_after(parts: StageParts) -> dict[UnitWork, int]:
    """Bytes that a microbatch keeps after each of its passes."""
    return {
        UnitWork.FORWARD: saved_bytes(parts),
        UnitWork.BACKWARD: 0,
        UnitWork.INPUT_BACKWARD: weights_bytes(parts),
        UnitWork.WEIGHT_BACKWARD: 0,
    }


def memory_of(plan: PipelinePlan, position: int) -> list[Mapping[str, object]]:
    """For each stage of a position: its label, microbatches in flight, bytes that each one keeps."""
    captured = plan.captured
    return [
        {
            "stage": stage,
            "label": captured.labels[stage],
            "in_flight": in_flight(plan.orders[position], chunk),
            "saved_bytes_per_microbatch": saved_bytes(plan.parts[captured.stages[stage]]),
        }
        for chunk, stage in enumerate(plan.stages_of(position))
    ]
