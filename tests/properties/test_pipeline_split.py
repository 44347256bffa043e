"""Parts of a random body compute what the body computes, symbol for symbol, and nothing twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Flag, Kind, Phase, Program, RegionKind
from flint.passes.pipeline.split.parts import (
    Partial,
    PartitionedBody,
    Saved,
    StageParts,
    StageProgram,
)
from flint.passes.pipeline.split.reach import dependent, needed
from flint.passes.pipeline.split.split import split
from flint.steps.captured import Port, Role
from tests.program_rows import ProgramBuilder
from tests.random_programs import QUICK

MESH = Mesh(("pipe", "data"), (2, 4))
DATA = Group((AxisRef("data"),))
ARGUMENTS = (
    Port(Role.PARAMETER, "v"),
    Port(Role.PARAMETER, "w"),
    Port(Role.BATCH, "tokens"),
    Port(Role.INPUT),
    Port(Role.COTANGENT),
)
#: (opcode, kind, is a view); rows of the first kind do arithmetic.
ROWS = (
    ("stablehlo.dot_general", Kind.COMPUTE, False),
    ("stablehlo.dot_general", Kind.COMPUTE, False),
    ("stablehlo.broadcast_in_dim", Kind.COMPUTE, False),
    ("stablehlo.reshape", Kind.VALUE, True),
    ("sdy.all_gather", Kind.COLLECTIVE, False),
    ("sdy.all_reduce", Kind.COLLECTIVE, False),
)
KINDS = {"sdy.all_gather": Collective.ALL_GATHER, "sdy.all_reduce": Collective.ALL_REDUCE}


@dataclass
class Bodies:
    """Draws a body: rows and loops of loops, first those that no gradient is needed for."""

    draw: Any
    builder: ProgramBuilder = field(default_factory=lambda: ProgramBuilder(MESH))
    backward: bool = False

    def body(self) -> PartitionedBody:
        """Arguments, rows, and results that are rows of any kind and any loop."""
        for port in ARGUMENTS:
            self.builder.add(
                "parameter", Kind.PARAMETER, shape=(8,), result_bytes=8, name=port.name
            )
        self.rows(0)
        self.backward = True
        self.rows(0)
        count = len(self.builder)
        ports = [Port(Role.OUTPUT), Port(Role.INPUT_GRADIENT)]
        ports += [Port(Role.GRADIENT, name) for name in ("v", "w")]
        if not self.draw(st.booleans()):
            ports.remove(Port(Role.INPUT_GRADIENT))
        program = self.builder.build()
        cotangent = dependent(program, _only(program, len(ARGUMENTS) - 1))
        found = []
        for port in ports:
            allowed = [r for r in range(count) if cotangent[r] == (port.role is not Role.OUTPUT)]
            found.append(self.draw(st.sampled_from(allowed[-8:] or allowed)))
        arguments = tuple(range(len(ARGUMENTS)))
        return PartitionedBody(program, ARGUMENTS, tuple(ports), arguments, tuple(found))

    def rows(self, depth: int) -> None:
        """Some rows and loops."""
        for _ in range(self.draw(st.integers(2, 4 if depth else 6))):
            if depth < 2 and self.draw(st.integers(0, 3)) == 0:
                self.loop(depth)
            else:
                self.row()

    def row(self) -> None:
        """A row that reads up to three earlier ones."""
        opcode, kind, view = self.draw(st.sampled_from(ROWS))
        deps = self.deps(1 if opcode != "stablehlo.dot_general" else 3)
        if opcode == "sdy.all_gather" and self.draw(st.booleans()):
            deps = (self.draw(st.integers(0, 1)),)  # a parameter
        collective = KINDS.get(opcode, Collective.NONE)
        self.builder.add(
            opcode,
            kind,
            deps=deps,
            shape=(8,),
            result_bytes=self.draw(st.sampled_from((8, 16))),
            flops=int(opcode == "stablehlo.dot_general"),
            collective=collective,
            group=DATA if collective else None,
            comm_bytes=8 if collective else 0,
            scope=f"row{len(self.builder)}",
            phase=self.draw(st.sampled_from((Phase.FORWARD, Phase.BACKWARD, Phase.REMAT))),
            flags=Flag.VIEW if view else 0,
            alias=deps[0] if view else -1,
        )

    def loop(self, depth: int) -> None:
        """A loop that carries up to three values, some of them as they come."""
        initial = [self.deps(1) for _ in range(self.draw(st.integers(0, 3)))]
        self.builder.begin_region(RegionKind.LOOP, self.draw(st.integers(1, 3)))
        first = len(self.builder)
        carried = [
            self.builder.add(
                "while.carry",
                Kind.VALUE,
                deps=deps,
                shape=(8,),
                result_bytes=8,
                flags=Flag.VIEW,
                alias=deps[0],
                scope=f"row{first + i}",
            )
            for i, deps in enumerate(initial)
        ]
        self.rows(depth + 1)
        last = len(self.builder) - 1
        produced = [
            value if self.draw(st.booleans()) else self.draw(st.integers(first, last))
            for value in carried
        ]
        self.builder.end_region(list(zip(carried, produced, strict=True)))

    def deps(self, most: int) -> tuple[int, ...]:
        """One to `most` earlier rows, mostly the last ones."""
        count = len(self.builder)
        near = st.integers(max(0, count - 5), count - 1)
        anywhere, argument = st.integers(0, count - 1), st.integers(0, len(ARGUMENTS) - 1)
        picks = st.lists(near | near | anywhere | argument, min_size=1, max_size=most)
        found = self.draw(picks)
        if most > 1:
            found.append(count - 1)
        if not self.backward:
            found = [min(d, len(ARGUMENTS) - 2) if d < len(ARGUMENTS) else d for d in found]
        return tuple(found)


bodies = st.composite(lambda draw: Bodies(draw).body())


@dataclass
class Stack:
    """A value for each iteration of a loop."""

    slices: dict[tuple[int, ...], Any]

    def at(self, iteration: tuple[int, ...]) -> Any:
        """The slice that an iteration wrote, or the last one for those that are outside."""
        return self.slices[iteration] if iteration in self.slices else self.slices[max(self.slices)]


class Run:
    """Symbols for the values of a program's rows: equal if computed alike from the same."""

    def __init__(self, program: Program, given: dict[int, Any]) -> None:
        self.program, self.given = program, given
        self.value: dict[int, Any] = {}
        self.history: dict[int, dict[tuple[int, ...], Any]] = {}
        self.carried: dict[int, Any] = {}
        self._block(0, len(program), -1, ())

    def _block(self, start: int, stop: int, region: int, iteration: tuple[int, ...]) -> None:
        row = start
        while row < stop:
            inner = self._child(row, region)
            if inner >= 0:
                self._loop(inner, iteration)
                row = self.program.regions[inner].stop
                continue
            self.value[row] = self._evaluate(row, iteration)
            self.history.setdefault(row, {})[iteration] = self.value[row]
            row += 1

    def _child(self, row: int, region: int) -> int:
        inner = int(self.program.region[row])
        while inner >= 0 and inner != region:
            if self.program.regions[inner].parent == region:
                return inner
            inner = self.program.regions[inner].parent
        return -1

    def _loop(self, number: int, iteration: tuple[int, ...]) -> None:
        region = self.program.regions[number]
        for value, _ in region.carries:
            self.carried.pop(value, None)
        for trip in range(region.trip_count):
            self._block(region.start, region.stop, number, (*iteration, trip))
            self.carried.update({v: self.value[p] for v, p in region.carries})

    def _evaluate(self, row: int, iteration: tuple[int, ...]) -> Any:
        of = self.program.row(row)
        if of.kind is Kind.PARAMETER:
            return self.given[row]
        if of.opcode == "stack":
            return ("stack",)
        if row in self.carried:
            return self.carried[row]
        deps = [self.value[d] for d in of.deps]
        if len(deps) == 1 and of.kind is Kind.VALUE:
            return deps[0].at(iteration) if isinstance(deps[0], Stack) else deps[0]
        name = "" if of.opcode == "sdy.all_gather" else of.scope  # equal ones may become one
        return hash((name, of.opcode, frozenset(deps)))

    def stack(self, row: int) -> Stack:
        """What row `row` writes into a stack, by iterations of its loop."""
        (source,) = (int(d) for d in self.program.dependencies(row) if d != self.program.alias[row])
        found: dict[tuple[int, ...], Any] = {}
        depth = len(next(iter(self.history[row])))
        for iteration in sorted(self.history[source]):
            found[iteration[:depth]] = self.history[source][iteration]
        return Stack(found)


def _only(program: Program, row: int) -> Any:
    mask = program.kind == 255
    mask[row] = True
    return mask


def _carries_forward_from_gradients(program: Program) -> bool:
    """Whether a loop carries what is no gradient from a gradient on: parts then repeat it."""
    gradient = dependent(program, _only(program, len(ARGUMENTS) - 1))
    return any(
        gradient[value] and not gradient[produced]
        for region in program.regions
        for value, produced in region.carries
    )


def run_parts(parts: StageParts, given: dict[Any, Any]) -> dict[Any, Any]:
    """What all parts give, run one after the other."""
    known = dict(given)
    for part in each(parts):
        inputs = {row: known[key] for key, row in part.inputs.items()}
        run = Run(part.program, inputs)
        for key, row in part.outputs.items():
            stacked = part.program.opcodes[part.program.opcode[row]] == "stack"
            known[key] = run.stack(row) if stacked else run.value[row]
    return known


def each(parts: StageParts) -> list[StageProgram]:
    """Parts in the order in which they run."""
    found = (parts.gather, parts.forward, parts.backward, parts.weights, parts.reduce)
    return [part for part in found if part is not None]


@QUICK
@given(bodies(), st.booleans(), st.booleans())
def test_parts_compute_what_the_body_computes(
    body: PartitionedBody, zero_bubble: bool, keep_gathered: bool
) -> None:
    parts = split(body, zero_bubble=zero_bubble, keep_gathered=keep_gathered, accumulates=False)
    given = {port: str(port) for port in ARGUMENTS}
    whole = Run(body.program, dict(enumerate(given.values())))
    found = run_parts(parts, given)
    for port, row in zip(body.results, body.result_rows, strict=True):
        assert found[port] == whole.value[row]
        if port.role is Role.GRADIENT:
            assert found[Partial(port.name)] == whole.value[row]


@QUICK
@given(bodies(), st.booleans(), st.booleans(), st.booleans())
def test_parts_are_programs_and_do_all_work_once(
    body: PartitionedBody, zero_bubble: bool, keep_gathered: bool, accumulates: bool
) -> None:
    parts = split(
        body, zero_bubble=zero_bubble, keep_gathered=keep_gathered, accumulates=accumulates
    )
    program = body.program
    seeds = program.kind == 255
    seeds[2 : len(ARGUMENTS)] = True
    varies = dependent(program, seeds)
    live = needed(program, body.result_rows)
    mixed = _carries_forward_from_gradients(program)
    times: Counter[str] = Counter()
    for part in each(parts):
        part.program.verify()
        assert list(part.inputs.values()) == list(range(len(part.inputs)))
        for row in map(part.program.row, range(len(part.program))):
            times[row.scope] += row.flops > 0
    for row in map(program.row, range(len(program))):
        if row.flops and varies[row.number] and not mixed:
            assert times[row.scope] == live[row.number]
        elif row.flops:
            assert times[row.scope] <= 4 * live[row.number]


@QUICK
@given(bodies(), st.booleans())
def test_what_is_kept_is_what_is_read(body: PartitionedBody, zero_bubble: bool) -> None:
    parts = split(body, zero_bubble=zero_bubble)
    kept = {key for part in each(parts) for key in part.outputs if isinstance(key, Saved)}
    read = {key for part in each(parts) for key in part.inputs if isinstance(key, Saved)}
    assert kept == read


def test_a_view_is_seen_again_after_what_the_part_itself_calculates() -> None:
    """Found by chance: the broadcast is done in the backward pass, its view in a forward loop."""
    builder = ProgramBuilder(MESH)

    def add(opcode: str, *deps: int, kind: Kind = Kind.COMPUTE, size: int = 8, **other: Any) -> int:
        scope = f"row{len(builder)}"
        return builder.add(
            opcode, kind, deps=deps, shape=(8,), result_bytes=size, scope=scope, **other
        )

    for port in ARGUMENTS:
        builder.add("parameter", Kind.PARAMETER, shape=(8,), result_bytes=8, name=port.name)
    small = add("stablehlo.broadcast_in_dim", 2)
    large = add("stablehlo.broadcast_in_dim", small, size=16)
    builder.begin_region(RegionKind.LOOP, 1)
    out = add(
        "sdy.all_gather", 3, kind=Kind.COLLECTIVE, group=DATA, comm_bytes=8,
        collective=Collective.ALL_GATHER,
    )  # fmt: skip
    view = add("stablehlo.reshape", large, kind=Kind.VALUE, flags=Flag.VIEW, alias=large)
    builder.end_region([])
    seen = add("stablehlo.broadcast_in_dim", view)
    gradient = add("stablehlo.dot_general", 4, seen, flops=1)
    ports = (Port(Role.OUTPUT), Port(Role.GRADIENT, "v"), Port(Role.GRADIENT, "w"))
    rows = (out, 4, gradient)
    body = PartitionedBody(builder.build(), ARGUMENTS, ports, tuple(range(5)), rows)
    parts = split(body, accumulates=False)
    for part in each(parts):
        part.program.verify()
    given = {port: str(port) for port in ARGUMENTS}
    whole = Run(body.program, dict(enumerate(given.values())))
    assert run_parts(parts, given)[ports[2]] == whole.value[gradient]
