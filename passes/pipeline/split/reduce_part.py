"""The part that runs once in a step: accumulated partial gradients become gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flint.errors import FlintError, nearest
from flint.ir.builder import ProgramBuilder
from flint.ir.columns import with_value
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase, Program, RegionKind
from flint.passes.pipeline.split.parts import Key, Partial, StageProgram
from flint.passes.pipeline.split.reductions import (
    TRANSPOSES,
    Apply,
    StackTail,
    Step,
    Tail,
    Type,
    is_constant,
)
from flint.steps.captured import Port, Role


def reduce_part(
    program: Program, types: Mapping[str, Type], tails: Mapping[str, Tail]
) -> StageProgram:
    """The tails of gradients as a program; `types` are those of the partial gradients, by name.

    Tails come in the order in which the backward pass gives what they start from, and slices that
    one loop of it wrote are reduced in one loop. A gradient without a tail is its partial.
    """
    return _Reduce(program).part(types, tails)


class _Reduce:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.builder = ProgramBuilder(program.mesh)
        self.types: dict[int, Type] = {}
        self.constants: dict[tuple[int, int], int] = {}
        self.inside = -1  # the first row of the loop that is open

    def part(self, types: Mapping[str, Type], tails: Mapping[str, Tail]) -> StageProgram:
        inputs: dict[Key, int] = {}
        for name, of in types.items():
            inputs[Partial(name)] = self.builder.add(
                "parameter",
                Kind.PARAMETER,
                name=name,
                phase=Phase.BACKWARD,
                dtype=of.dtype,
                shape=of.shape,
                result_bytes=of.num_bytes,
            )
            self.types[inputs[Partial(name)]] = of
        rows = {name: inputs[Partial(name)] for name in types}
        for names in self._batches(tails):
            firsts = [tails[name].steps[0] for name in names]
            stacks = [step for step in firsts if isinstance(step, StackTail)]
            if stacks:
                done = self._loop([rows[name] for name in names], stacks)
                rows.update(zip(names, done, strict=True))
            for name in names:
                rows[name] = self._steps(rows[name], tails[name].steps[len(stacks) > 0 :])
        outputs: dict[Key, int] = {Port(Role.GRADIENT, name): row for name, row in rows.items()}
        return StageProgram(self.builder.build(), inputs, outputs)

    def _batches(self, tails: Mapping[str, Tail]) -> Iterable[list[str]]:
        """Names whose tails run together, in order of what they start from."""
        found: dict[tuple[int, int], list[str]] = {}
        for name in sorted(tails, key=lambda n: (tails[n].base, n)):
            tail = tails[name]
            first = tail.steps[0]
            key = (0, first.loop) if isinstance(first, StackTail) else (1, tail.base)
            found.setdefault(key, []).append(name)
        return found.values()

    def _steps(self, value: int, steps: Iterable[Step]) -> int:
        for step in _slices_next_to_reductions(self.program, list(steps)):
            if isinstance(step, StackTail):
                (value,) = self._loop([value], [step])
            else:
                value = self._apply(value, step)
        return value

    def _apply(self, value: int, step: Apply) -> int:
        p, row = self.program, step.row
        shared = [d for d in p.dependencies(row).tolist() if is_constant(p, d)]
        moved: dict[str, Any] = {}
        if step.type is not None:
            size = step.type.num_bytes
            moved = {"shape": step.type.shape, "result_bytes": size}
            moved |= self._moved(row, value, size)
        deps = [value, *(self._constant(d) for d in shared)]
        return self._copy(row, deps, alias=value if p.alias[row] >= 0 else -1, **moved)

    def _moved(self, row: int, value: int, size: int) -> dict[str, Any]:
        """Bytes that a step reads where it is applied to a value of another size."""
        read = self.types[value].num_bytes
        if self.program.kind[row] == Kind.COLLECTIVE:
            return {"operand_bytes": read, "comm_bytes": read}
        in_part = self.program.op[row] == OpClass.ALL_SLICE
        return {"operand_bytes": size if in_part else read}

    def _constant(self, row: int) -> int:
        known = self.constants.get((self.inside, row))
        if known is None:
            deps = [self._constant(d) for d in self.program.dependencies(row).tolist()]
            alias = int(self.program.alias[row])
            alias = self._constant(alias) if alias >= 0 else -1
            known = self.constants[self.inside, row] = self._copy(row, deps, alias=alias)
        return known

    def _loop(self, values: list[int], stacks: list[StackTail]) -> list[int]:
        """Reduce stacks of one length slice by slice."""
        builder, region = self.builder, self.program.regions[stacks[0].loop]
        initial = [self._constant(s.initial) for s in stacks]
        builder.begin_region(
            RegionKind.LOOP, region.trip_count, name=region.name, location=region.location
        )
        outside, self.inside = self.inside, len(builder)
        read = [
            self._view("while.carry", OpClass.VALUE, value, self.types[value]) for value in values
        ]
        write = [
            self._view("while.carry", OpClass.VALUE, value, self.types[value]) for value in initial
        ]
        done = []
        for stack, source, target in zip(stacks, read, write, strict=True):
            whole = self.types[source]
            count = whole.shape[0]
            one = Type(whole.dtype, whole.shape[1:], whole.num_bytes // count)
            reduced = self._steps(
                self._view("stablehlo.dynamic_slice", OpClass.DYNAMIC_SLICE, source, one),
                stack.steps,
            )
            row = self._copy(stack.write, [target, reduced], alias=target)
            self.types[row] = self.types[target]
            done.append(row)
        builder.end_region([*zip(read, read, strict=True), *zip(write, done, strict=True)])
        self.inside = outside
        return done

    def _view(self, opcode: str, op: OpClass, of: int, type_: Type) -> int:
        row = self.builder.add(
            opcode,
            Kind.VALUE,
            op=op,
            deps=(of,),
            dtype=type_.dtype,
            shape=type_.shape,
            result_bytes=type_.num_bytes,
            phase=Phase.BACKWARD,
            flags=Flag.VIEW,
            alias=of,
        )
        self.types[row] = type_
        return row

    def _copy(self, row: int, deps: list[int], alias: int, **columns: Any) -> int:
        values = self.program.row(row)._asdict() | {"phase": Phase.BACKWARD} | columns
        for name in ("number", "region", "deps", "alias"):
            values.pop(name)
        new = self.builder.add(**values, deps=deps, alias=alias)
        self.types[new] = Type(values["dtype"], values["shape"], values["result_bytes"])
        return new


def _slices_next_to_reductions(program: Program, steps: list[Step]) -> list[Step]:
    """Transposes between an all-reduce and a slice of its result go before the all-reduce.

    Then the two are what becomes a reduce-scatter, and nothing else changes: a sum over devices
    does not care for the order of elements.
    """
    for at in range(len(steps) - 2, -1, -1):
        first = steps[at]
        if not isinstance(first, Apply):
            continue
        if program.collective[first.row] != Collective.ALL_REDUCE:
            continue
        end = at + 1
        while end < len(steps) and _class(program, steps[end]) in TRANSPOSES:
            end += 1
        if end < len(steps) and _class(program, steps[end]) == OpClass.ALL_SLICE and end > at + 1:
            last = steps[end - 1]
            assert isinstance(last, Apply)
            row = program.row(last.row)
            moved = Apply(first.row, Type(row.dtype, row.shape, row.result_bytes))
            steps = [*steps[:at], *steps[at + 1 : end], moved, *steps[end:]]
    return steps


def _class(program: Program, step: Step) -> OpClass:
    return OpClass(int(program.op[step.row])) if isinstance(step, Apply) else OpClass.OTHER


@dataclass(frozen=True, eq=False)
class ReducePiece:
    """Rows that depend on no row outside the piece: what they read, and what they give."""

    rows: frozenset[int]
    partials: frozenset[Partial]
    gradients: tuple[Port, ...]


def pieces(part: StageProgram) -> list[ReducePiece]:
    """The connected components of a reduce part, in the order of their first rows."""
    program = part.program
    parent = list(range(len(program)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    def join(rows: Iterable[int]) -> None:
        roots = sorted({root(r) for r in rows})
        for other in roots[1:]:
            parent[other] = roots[0]

    shared = {row for key, row in part.inputs.items() if not isinstance(key, Partial)}
    for row in range(len(program)):
        join([row, *(d for d in program.dependencies(row).tolist() if d not in shared)])
    for region in program.regions:
        join(range(region.start, region.stop))
    return _described(part, {row: root(row) for row in range(len(program)) if row not in shared})


def _described(part: StageProgram, root: dict[int, int]) -> list[ReducePiece]:
    inputs = set(part.inputs.values())
    rows: dict[int, set[int]] = {}
    for row, of in root.items():
        rows.setdefault(of, set())
        if row not in inputs:
            rows[of].add(row)
    partials: dict[int, set[Partial]] = {}
    for key, row in part.inputs.items():
        if isinstance(key, Partial):
            partials.setdefault(root[row], set()).add(key)
    gradients: dict[int, list[Port]] = {}
    for given, row in part.outputs.items():
        if isinstance(given, Port):
            gradients.setdefault(root[row], []).append(given)
    return [
        ReducePiece(
            frozenset(rows[of]), frozenset(partials.get(of, ())), tuple(gradients.get(of, ()))
        )
        for of in sorted(rows)
        if gradients.get(of)
    ]


#: What gradients can be accumulated in, by its own and by StableHLO's name: a program's name of it
#: and the bytes of one element.
GRADIENT_DTYPES: dict[str, tuple[str, int]] = {
    "f32": ("float32", 4),
    "float32": ("float32", 4),
    "bf16": ("bfloat16", 2),
    "bfloat16": ("bfloat16", 2),
    "f16": ("float16", 2),
    "float16": ("float16", 2),
    "f64": ("float64", 8),
    "float64": ("float64", 8),
}
_BYTES: dict[str, int] = dict(GRADIENT_DTYPES.values())


def gradient_dtype(name: str) -> tuple[str, int]:
    """A program's name and the bytes of an element. Raises FlintError FL240 for other names."""
    if name not in GRADIENT_DTYPES:
        raise FlintError(
            "FL240",
            f"gradients cannot be accumulated in '{name}'{nearest(name, list(GRADIENT_DTYPES))}",
            help="choose float32, bfloat16, float16 or float64",
        )
    return GRADIENT_DTYPES[name]


def in_gradient_dtype(part: StageProgram, name: str) -> StageProgram:
    """The part with every floating tensor in the type `name`; "" leaves it as it is.

    Raises FlintError FL240 for names that are not in `GRADIENT_DTYPES`.
    """
    if not name:
        return part
    dtype, size = gradient_dtype(name)
    program = part.program
    now = np.array([_BYTES.get(d, 0) for d in program.dtypes], dtype=np.int64)[program.dtype]
    is_float = now > 0
    dtypes, index = with_value(program.dtypes, dtype)
    columns = {
        column: np.where(is_float, values * size // np.maximum(now, 1), values)
        for column in ("result_bytes", "operand_bytes", "comm_bytes")
        for values in (getattr(program, column),)
    }
    retyped = np.where(is_float, index, program.dtype).astype(program.dtype.dtype)
    return replace(part, program=program.with_rows(dtype=retyped, dtypes=dtypes, **columns))
