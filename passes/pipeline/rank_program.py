"""The program of one position of a pipeline: its units in order, then what runs once in a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flint.builder import ProgramBuilder
from flint.mesh import AxisRef, Group
from flint.passes.pipeline.graft import LAST_ROWS, add_value, graft
from flint.passes.pipeline.parts import Key, Part, Partial, StageParts
from flint.passes.pipeline.pieces import Piece, pieces
from flint.passes.pipeline.plan import (
    Plan,
    gradient_dtype,
    in_flight,
    is_saved,
    partial_keys,
    saved_bytes,
)
from flint.passes.pipeline.runs import Run, runs
from flint.passes.pipeline.units import Unit, Work
from flint.program import Collective, Flag, Kind, Phase, Program, RegionKind
from flint.staged import Port, Role


@dataclass
class _Chunk:
    """One of the stages that a position holds, and the rows of what it keeps all step long."""

    stage: int
    parts: StageParts
    norm: Part | None
    update: Part | None
    held: dict[Key, int] = field(default_factory=dict)
    accumulators: dict[Partial, int] = field(default_factory=dict)
    summed: dict[Key, int] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    gradients: dict[Key, int] = field(default_factory=dict)


def rank_program(plan: Plan, position: int) -> Program:
    """Compose the program of all ranks at `position` of the pipeline's axis."""
    return _Composer(plan, position).compose()


class _Composer:
    def __init__(self, plan: Plan, position: int) -> None:
        self.plan = plan
        self.order = plan.orders[position]
        self.builder = ProgramBuilder(plan.captured.mesh)
        self.last_stage = len(plan.captured.stages) - 1
        stages = range(position, len(plan.captured.stages), plan.ranks)
        self.chunks = [self._chunk(s) for s in stages]
        self.batch: dict[str, int] = {}
        #: The row that what comes next waits for: the end of the unit before it.
        self.turn = -1
        self.returned: list[int] = []
        self.loss = -1

    def _chunk(self, stage: int) -> _Chunk:
        body = self.plan.captured.stages[stage]
        return _Chunk(stage, self.plan.parts[body], self.plan.norms[body], self.plan.updates[body])

    def compose(self) -> Program:
        for chunk in self.chunks:
            self._hold(chunk)
            self._accumulators(chunk)
        for number, chunk in enumerate(self.chunks):
            self._stash(chunk, number)
            self._gather(chunk)
        for segment in self._segments():
            for run in runs(segment):
                self._run(run)
        if self.plan.trains:
            self._finish()
        self.builder.add("func.return", Kind.VALUE, deps=self.returned)
        return self.builder.build()

    # what is held all step long ------------------------------------------------------------------

    def _hold(self, chunk: _Chunk) -> None:
        """PARAMETER rows: weights, the batch, optimizer state."""
        parts = chunk.parts
        for part in (parts.forward, parts.backward, parts.weights, parts.gather, chunk.update):
            for key, row in part.inputs.items() if part is not None else ():
                if key in chunk.held or not isinstance(key, Port):
                    continue
                assert part is not None
                if key.role in (Role.PARAMETER, Role.STATE):
                    chunk.held[key] = self._parameter(chunk, part.program, row)
                elif key.role is Role.BATCH:
                    chunk.held[key] = self._batch(key.name, part.program, row)

    def _parameter(self, chunk: _Chunk, program: Program, row: int) -> int:
        name = program.strings[program.name[row]]
        if len(self.chunks) > 1:
            name = f"stage{chunk.stage}.{name}"
        return add_value(self.builder, "parameter", program, row, kind=Kind.PARAMETER, name=name)

    def _batch(self, name: str, program: Program, row: int) -> int:
        """The batch of the whole step: all microbatches, one after another."""
        if name not in self.batch:
            tensor, count = program.row(row), self.plan.captured.microbatches
            shape = (tensor.shape[0] * count, *tensor.shape[1:]) if tensor.shape else ()
            self.batch[name] = self.builder.add(
                "parameter",
                Kind.PARAMETER,
                dtype=tensor.dtype,
                shape=shape,
                result_bytes=tensor.result_bytes * (count if shape else 1),
                name=tensor.name,
                cause=tensor.cause,
            )
        return self.batch[name]

    def _accumulators(self, chunk: _Chunk) -> None:
        if chunk.parts.reduce is not None:
            chunk.pieces = pieces(chunk.parts.reduce)
        if not self.plan.accumulates:
            return
        for key, (part, row) in partial_keys(chunk.parts).items():
            tensor = part.program.row(row)
            dtype, size = tensor.dtype, tensor.result_bytes
            if self.plan.captured.gradient_dtype:
                dtype, element = gradient_dtype(self.plan.captured.gradient_dtype)
                size = element * math.prod(tensor.shape)
            chunk.accumulators[key] = self.builder.add(
                "pipeline.accumulator",
                Kind.VALUE,
                dtype=dtype,
                shape=tensor.shape,
                result_bytes=size,
                name=key.name,
                scope=tensor.scope,
                phase=Phase.BACKWARD,
            )

    def _stash(self, chunk: _Chunk, number: int) -> None:
        """Memory of the activations of all microbatches in flight but the one that is worked on."""
        others = in_flight(self.order, number) - 1
        size = others * saved_bytes(chunk.parts)
        if size > 0:
            self.returned.append(
                self.builder.add(
                    "pipeline.stash",
                    Kind.VALUE,
                    shape=(size,),
                    dtype="int8",
                    result_bytes=size,
                    name=f"activations of {others} microbatches",
                    scope="pipeline/activations",
                    phase=Phase.FORWARD,
                )
            )

    def _gather(self, chunk: _Chunk) -> None:
        part = chunk.parts.gather
        if part is not None:
            done = graft(self.builder, part, chunk.held)
            chunk.held.update({key: done.output(key) for key in part.outputs})

    # units ---------------------------------------------------------------------------------------

    def _segments(self) -> Iterator[Sequence[Unit]]:
        """The order, cut after each last unit that gives gradients: reductions begin there."""
        start = 0
        for at, unit in enumerate(self.order):
            if unit.work is not Work.FORWARD and self._is_last(unit):
                if start < at:
                    yield self.order[start:at]
                yield self.order[at : at + 1]
                start = at + 1
        if start < len(self.order):
            yield self.order[start:]

    def _is_last(self, unit: Unit) -> bool:
        return unit.microbatch == self.plan.captured.microbatches - 1

    def _run(self, run: Run) -> None:
        if run.trip_count == 1:
            for unit in run.units:
                self._unit(unit, self._is_last(unit))
            return
        self.builder.begin_region(RegionKind.LOOP, run.trip_count, name="pipeline/microbatches")
        first = self.turn = self.builder.add("pipeline.turn", Kind.VALUE, deps=[self.turn])
        for unit in run.units:
            self._unit(unit, False)
        self.builder.end_region([(first, self.turn)])

    def _unit(self, unit: Unit, last: bool) -> None:
        chunk = self.chunks[unit.chunk]
        if unit.work is Work.FORWARD:
            self._forward(chunk)
            return
        part = chunk.parts.weights if unit.work is Work.WEIGHT_BACKWARD else chunk.parts.backward
        if part is not None:
            self._backward(chunk, part, last)

    def _forward(self, chunk: _Chunk) -> None:
        part = chunk.parts.forward
        done = graft(self.builder, part, self._inputs(chunk, part), turn=self.turn)
        ends = done.last_rows()
        for key, row in part.outputs.items():
            if not isinstance(key, Port):
                continue
            here = done.rows[row]
            if key.role is Role.OUTPUT and chunk.stage < self.last_stage:
                self._send(part.program, row, here, chunk, key.number, forward=True)
                ends.append(here)
            elif key.role is Role.LOSS:
                self.loss = here
            elif key.role in (Role.OUTPUT, Role.PARAMETER):
                self.returned.append(here)
        self._end_turn(ends)

    def _backward(self, chunk: _Chunk, part: Part, last: bool) -> None:
        """One pass back. Gradients of inputs are sent as soon as they are there.

        The stage before waits for them: reductions over devices, which nothing waits for, follow.
        """
        partials = _by_row(part, lambda key: isinstance(key, Partial))
        gradients = _by_row(part, lambda key: chunk.stage > 0 and _is(key, Role.INPUT_GRADIENT))
        ends: list[int] = []
        complete: list[tuple[Partial, int]] = []

        def after(row: int, here: int) -> None:
            for key in gradients.pop(row, ()):
                assert isinstance(key, Port)
                self._send(part.program, row, here, chunk, key.number, forward=False)
                ends.append(here)
            for partial in partials.get(row, ()):
                assert isinstance(partial, Partial)
                ends.append(self._accumulate(chunk, partial, part.program, row, here))
                complete.append((partial, ends[-1]))
            while last and complete and not gradients:
                self._reduce(chunk, *complete.pop(0))

        done = graft(self.builder, part, self._inputs(chunk, part), turn=self.turn, after=after)
        for row in sorted(set(part.inputs.values()) & (partials.keys() | gradients.keys())):
            after(row, done.rows[row])  # a gradient that is something the part was given
        self._end_turn([*done.last_rows(), *ends[-LAST_ROWS:]])

    def _inputs(self, chunk: _Chunk, part: Part) -> dict[Key, int]:
        """The rows that a part reads: held ones, messages, and what its microbatch has saved."""
        inputs = dict(chunk.held)
        is_forward = part is chunk.parts.forward
        backward = chunk.parts.backward
        received = backward.inputs if backward is not None and part is chunk.parts.weights else {}
        for key, row in part.inputs.items():
            if key in inputs:
                continue
            if isinstance(key, Port) and key.role is Role.INPUT and is_forward:
                inputs[key] = self._receive(part.program, row, chunk, key.number, forward=True)
            elif _is(key, Role.COTANGENT) and key not in received:
                assert isinstance(key, Port)
                inputs[key] = self._receive(part.program, row, chunk, key.number, forward=False)
            else:
                assert is_saved(key) or key in received, f"nothing gives {key}"
                inputs[key] = self._value("pipeline.saved", part.program, row)
        return inputs

    def _value(self, opcode: str, program: Program, row: int) -> int:
        return add_value(self.builder, opcode, program, row, deps=[self.turn])

    def _receive(
        self, program: Program, row: int, chunk: _Chunk, number: int, *, forward: bool
    ) -> int:
        at_end = chunk.stage == (0 if forward else self.last_stage)
        if at_end or self.plan.ranks == 1:
            return self._value("pipeline.neighbour", program, row)
        return self.plan.neighbours.receive(
            self.builder, [self.turn], program.row(row), chunk.stage, number, forward
        )

    def _send(
        self, program: Program, row: int, here: int, chunk: _Chunk, number: int, *, forward: bool
    ) -> None:
        if self.plan.ranks > 1:
            self.plan.neighbours.send(
                self.builder, here, program.row(row), chunk.stage, number, forward
            )

    def _end_turn(self, rows: Sequence[int]) -> None:
        self.turn = self.builder.add("pipeline.turn", Kind.VALUE, deps=rows or [self.turn])

    # gradients -----------------------------------------------------------------------------------

    def _accumulate(
        self, chunk: _Chunk, partial: Partial, program: Program, row: int, here: int
    ) -> int:
        """Add a microbatch's gradient to the sum; the row of the sum."""
        if partial not in chunk.accumulators:
            return here
        into, tensor = chunk.accumulators[partial], program.row(row)
        size = tensor.result_bytes
        if self.plan.captured.gradient_dtype:
            dtype, element = gradient_dtype(self.plan.captured.gradient_dtype)
            size = element * math.prod(tensor.shape)
        else:
            dtype = tensor.dtype
        return self.builder.add(
            "stablehlo.add",
            deps=[into, here],
            dtype=dtype,
            shape=tensor.shape,
            result_bytes=size,
            operand_bytes=size + tensor.result_bytes,
            flops=math.prod(tensor.shape),
            name=partial.name,
            scope=tensor.scope,
            phase=Phase.BACKWARD,
            flags=Flag.IN_PLACE,
            alias=into,
        )

    def _reduce(self, chunk: _Chunk, partial: Partial, summed: int) -> None:
        """Sum over devices whatever has become complete: once in a step, as soon as can be."""
        part = chunk.parts.reduce
        chunk.summed[partial] = summed
        if part is None:
            return
        complete = [p for p in chunk.pieces if p.partials <= chunk.summed.keys()]
        chunk.pieces = [p for p in chunk.pieces if p not in complete]
        for piece in complete:
            done = graft(
                self.builder, part, {**chunk.held, **chunk.summed}, turn=-1, only=piece.rows
            )
            chunk.gradients.update({g: done.output(g) for g in piece.gradients})

    # once in a step ------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._tie()
        norm = self._norm()
        self._share_loss()
        for chunk in self.chunks:
            if chunk.update is None:
                self.returned.extend(chunk.gradients.values())
                continue
            inputs: dict[Key, int] = {**chunk.held, **chunk.gradients}
            inputs.update({k: norm for k in chunk.update.inputs if _is(k, Role.SQUARED_NORM)})
            done = graft(self.builder, chunk.update, inputs, turn=self.turn)
            self.returned.extend(done.output(key) for key in chunk.update.outputs)

    def _tie(self) -> None:
        """Sum the gradients of one parameter that two stages hold."""
        for ends in self.plan.captured.tied:
            here = [(c, name) for stage, name in ends for c in self.chunks if c.stage == stage]
            if not here:
                continue
            found = [(c, Port(Role.GRADIENT, name)) for c, name in here]
            if len(found) == 2:
                self._tie_here(found)
            else:
                self._tie_across(*found[0], tuple(s % self.plan.ranks for s, _ in ends))

    def _tie_here(self, found: Sequence[tuple[_Chunk, Port]]) -> None:
        (a, key_a), (b, key_b) = found
        tensor = self._gradient_row(a, key_a)
        row = self.builder.add(
            "stablehlo.add",
            deps=[a.gradients[key_a], b.gradients[key_b]],
            dtype=tensor.dtype,
            shape=tensor.shape,
            result_bytes=tensor.result_bytes,
            operand_bytes=2 * tensor.result_bytes,
            flops=math.prod(tensor.shape),
            scope="pipeline/tied",
            phase=Phase.BACKWARD,
        )
        a.gradients[key_a] = b.gradients[key_b] = row

    def _tie_across(self, chunk: _Chunk, key: Port, positions: tuple[int, ...]) -> None:
        tensor = self._gradient_row(chunk, key)
        ends = tuple(sorted(set(positions)))
        chunk.gradients[key] = self._over_pipe(
            chunk.gradients[key],
            tensor.dtype,
            tensor.shape,
            tensor.result_bytes,
            f"{key.name} is one parameter with another stage's",
            ends if len(ends) < self.plan.ranks else (),
        )

    def _gradient_row(self, chunk: _Chunk, key: Port) -> _Tensor:
        assert chunk.parts.reduce is not None
        program = chunk.parts.reduce.program
        row = program.row(chunk.parts.reduce.outputs[key])
        return _Tensor(row.dtype, row.shape, row.result_bytes)

    def _norm(self) -> int:
        """Sum of the squares of all gradients of all stages, or -1."""
        found: list[int] = []
        for chunk in self.chunks:
            if chunk.norm is not None:
                done = graft(self.builder, chunk.norm, dict(chunk.gradients))
                found.extend(done.output(key) for key in chunk.norm.outputs)
        if all(norm is None for norm in self.plan.norms):
            return -1
        total = self.builder.add(  # a position without gradients contributes zero
            "pipeline.sum",
            Kind.VALUE,
            deps=found or [self.turn],
            dtype="float32",
            result_bytes=4,
            phase=_OPTIMIZER,
        )
        if self.plan.ranks == 1:
            return total
        cause = "the norm of the gradients of all stages"
        return self._over_pipe(total, "float32", (), 4, cause, phase=_OPTIMIZER)

    def _share_loss(self) -> None:
        """Every stage learns the loss of the last one: those that have none contribute zero."""
        if self.plan.ranks > 1:
            own = self.loss if self.loss >= 0 else self.turn
            cause = "the loss, for every stage"
            row = self._over_pipe(own, "float32", (), 4, cause, phase=Phase.FORWARD)
            self.returned.append(row)
        elif self.loss >= 0:
            self.returned.append(self.loss)

    def _over_pipe(
        self,
        row: int,
        dtype: str,
        shape: tuple[int, ...],
        size: int,
        cause: str,
        positions: tuple[int, ...] = (),
        phase: Phase = Phase.BACKWARD,
    ) -> int:
        return self.builder.add(
            "pipeline.all_reduce",
            Kind.COLLECTIVE,
            deps=[row, self.turn],
            dtype=dtype,
            shape=shape,
            result_bytes=size,
            operand_bytes=size,
            collective=Collective.ALL_REDUCE,
            group=Group((AxisRef(self.plan.captured.axis),), positions=positions),
            comm_bytes=size,
            scope="pipeline",
            cause=cause,
            phase=phase,
        )


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    shape: tuple[int, ...]
    result_bytes: int


_OPTIMIZER = Phase.OPTIMIZER


def _is(key: Key, role: Role) -> bool:
    return isinstance(key, Port) and key.role is role


def _by_row(part: Part, wanted: Callable[[Key], bool]) -> dict[int, list[Key]]:
    """Those outputs of a part that are wanted, by their row."""
    found: dict[int, list[Key]] = {}
    for key, row in part.outputs.items():
        if wanted(key):
            found.setdefault(row, []).append(key)
    return found


def memory_of(plan: Plan, position: int) -> list[Mapping[str, object]]:
    """For each stage of a position: its label, microbatches in flight, bytes that each one keeps."""
    captured = plan.captured
    return [
        {
            "stage": stage,
            "label": captured.labels[stage],
            "in_flight": in_flight(plan.orders[position], chunk),
            "saved_bytes_per_microbatch": saved_bytes(plan.parts[captured.stages[stage]]),
        }
        for chunk, stage in enumerate(range(position, len(captured.stages), plan.ranks))
    ]
