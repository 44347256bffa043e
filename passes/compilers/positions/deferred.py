"""Sums of gradients over devices leave a compiled backward pass: microbatches add up first.

A backward pass is linear in what it gets. Where what follows a sum over devices reads nothing else
that differs between microbatches, it makes no difference whether the microbatches are added before
it or after: so the sum can wait for the last of them, as a pipeline's does that Shardy partitions.
The kernels stay as compiled; those behind the sum work on what is not summed yet, which of a
reduce-scatter is as many times larger as devices take part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from flint.ir.builder import ProgramBuilder
from flint.ir.columns import Mask, bytes_of_type, is_any
from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Int64s, Kind, Phase, RegionKind
from flint.passes.pipeline.split.parts import MICROBATCH_ROLES, Key, Partial, StageProgram
from flint.passes.pipeline.split.reach import dependent, needed, readers_as_bits, region_rows
from flint.passes.pipeline.split.reductions import Type, reducing
from flint.steps.captured import Port, Role

#: Columns of a collective that waits.
_WAITS: dict[str, Any] = {
    "opcode": "hlo.unreduced",
    "op": OpClass.VALUE,
    "kind": int(Kind.VALUE),
    "flags": 0,
    "collective": int(Collective.NONE),
    "group": -1,
    "comm_bytes": 0,
    "operand_bytes": 0,
    "result_bytes": 0,
    "cause": "",
}


@dataclass(frozen=True)
class Deferred:
    """A backward pass without its last sums over devices, what does them once in a step, and the
    parameters whose gradients it sums for each microbatch all the same."""

    backward: StageProgram
    reduce: StageProgram
    undeferred: tuple[str, ...]


def deferred(backward: StageProgram, *, accumulates: bool) -> Deferred:
    """Take out the sums that can wait; none where no microbatches are added up."""
    sums = _Sums(backward)
    rows = sums.that_wait() if accumulates else []
    types = sums.types(rows)
    left = sums.of_one([row for row in sums.ends if row not in rows]) if accumulates else ()
    return Deferred(sums.without(rows, types), sums.reduce(rows, types), left)


class _Sums:
    """The sums over devices at the end of a backward pass: no product, nor what is sent, reads one."""

    def __init__(self, backward: StageProgram) -> None:
        self.part, self.program = backward, backward.program
        self.rows = {k.name: r for k, r in backward.outputs.items() if isinstance(k, Partial)}
        self.names = list(self.rows)
        bits: dict[int, int] = {}
        for at, name in enumerate(self.names):
            bits[self.rows[name]] = bits.get(self.rows[name], 0) | 1 << at
        self.bits = readers_as_bits(self.program, bits)
        self.ends = self._ends()

    def _ends(self) -> list[int]:
        program = self.program
        multiplies = (program.product > 0) | (program.dims[:, 2] > 1)
        given = [r for k, r in self.part.outputs.items() if not isinstance(k, Partial)]
        earlier = needed(program, [*np.flatnonzero(multiplies).tolist(), *given])
        rows = np.flatnonzero(~earlier).tolist()
        return [row for row in rows if reducing(program, row) and self.bits[row]]

    def names_of(self, rows: Sequence[int]) -> tuple[str, ...]:
        """The parameters whose gradients some rows are for."""
        found = 0
        for row in rows:
            found |= self.bits[row]
        return tuple(sorted(name for at, name in enumerate(self.names) if found >> at & 1))

    def of_one(self, rows: Sequence[int]) -> tuple[str, ...]:
        """The parameters for whose gradient alone there is one of `rows`.

        What several gradients need is a sum of an activation's gradient.
        """
        return self.names_of([row for row in rows if self.bits[row].bit_count() == 1])

    def that_wait(self) -> list[int]:
        """The sums behind which nothing differs between microbatches but what they give."""
        varies = dependent(self.program, self._varying())
        waiting = self.ends
        while waiting:
            after = self._after(waiting)
            mixed = [
                r for r in np.flatnonzero(after).tolist() if self._mixes(r, waiting, after, varies)
            ]
            early = needed(self.program, mixed)
            left = [row for row in waiting if not early[row]]
            if len(left) == len(waiting):
                break
            waiting = left
        return waiting

    def _varying(self) -> Mask:
        mask = np.asarray(is_any(self.program, OpClass.RANDOM))
        for key, row in self.part.inputs.items():
            port = key if isinstance(key, Port) else None
            mask[row] |= port is None or port.role in MICROBATCH_ROLES
        return mask

    def _after(self, rows: Sequence[int]) -> Mask:
        """What is computed from the sums `rows`, with these."""
        seeds = np.zeros(len(self.program), dtype=np.bool_)
        seeds[list(rows)] = True
        return dependent(self.program, seeds)

    def _mixes(self, row: int, sums: Sequence[int], after: Mask, varies: Mask) -> bool:
        """Whether a row behind a sum also reads what differs between microbatches."""
        if row in sums:
            return False
        return any(varies[d] and not after[d] for d in self.program.dependencies(row).tolist())

    # what waits -----------------------------------------------------------------------------------

    def types(self, rows: Sequence[int]) -> dict[str, Type]:
        """What each gradient is before its sums: so many bytes as they read."""
        sizes = self._read_bytes(rows)
        found = {}
        for name, row in self.rows.items():
            of = self.program.row(row)
            own = Type(of.dtype, of.shape, of.result_bytes)
            size, dtype = sizes.get(name, (0, ""))
            found[name] = own if size == own.num_bytes or not size else _resized(own, dtype, size)
        return found

    def _read_bytes(self, rows: Sequence[int]) -> dict[str, tuple[int, str]]:
        """By gradient, bytes that its first sums read in a microbatch, and their type.

        What a sum of several gradients reads is shared out by their sizes.
        """
        program = self.program
        behind = self._behind(rows)
        found: dict[str, tuple[int, str]] = {}
        for row in rows:
            if behind[row]:
                continue
            names = self.names_of([row])
            whole = {n: int(program.result_bytes[self.rows[n]]) for n in names}
            total, size = (
                max(sum(whole.values()), 1),
                int(program.comm_bytes[row] * program.trips[row]),
            )
            dtype = program.dtypes[program.dtype[row]]
            for name in names:
                share = size * whole[name] // total
                found[name] = (found.get(name, (0, ""))[0] + share, dtype)
        return found

    def _behind(self, rows: Sequence[int]) -> Mask:
        """Of rows, whether another of `rows` comes before them."""
        mask = np.zeros(len(self.program), dtype=np.bool_)
        for row in rows:
            mask[row] = any(needed(self.program, [row])[other] for other in rows if other != row)
        return mask

    def without(self, rows: Sequence[int], types: Mapping[str, Type]) -> StageProgram:
        """The pass in which these sums are none, and gives what is not summed."""
        if not rows:
            return self.part
        edit = Editor(self.program)
        grown = self._grown(rows)
        for row in np.flatnonzero(grown > 1).tolist():
            if row not in rows:
                edit.change(row, **self._larger(row, int(grown[row])))
        for row in rows:
            deps = self.program.dependencies(row).tolist()
            alone = {"alias": deps[0], "flags": int(Flag.VIEW)} if len(deps) == 1 else {}
            size = int(self.program.result_bytes[deps].sum()) if alone else 0
            edit.change(row, **{**_WAITS, "alias": -1, **alone, "result_bytes": size})
        for name, row in self.rows.items():
            of = types[name]
            edit.change(row, dtype=of.dtype, shape=of.shape, result_bytes=of.num_bytes)
        program, place = edit.build()

        def moved(keys: Mapping[Key, int]) -> dict[Key, int]:
            return {key: int(place[row]) for key, row in keys.items()}

        return StageProgram(program, moved(self.part.inputs), moved(self.part.outputs))

    def _larger(self, row: int, times: int) -> dict[str, Any]:
        columns = ("result_bytes", "operand_bytes", "flops")
        return {name: int(getattr(self.program, name)[row]) * times for name in columns}

    def _grown(self, rows: Sequence[int]) -> Int64s:
        """How many times larger each row's values are before the reduce-scatters in front of it."""
        found = np.ones(len(self.program), dtype=np.int64)
        for row in rows:
            if self.program.collective[row] == Collective.REDUCE_SCATTER:
                group = self.program.row(row).group
                size = group.size(self.program.mesh) if group is not None else 1
                found[self._after([row])] *= size
        return found

    # what is done once ----------------------------------------------------------------------------

    def reduce(self, rows: Sequence[int], types: Mapping[str, Type]) -> StageProgram:
        """The sums as a program: those of one loop in a loop."""
        builder = ProgramBuilder(self.program.mesh)
        inputs: dict[Key, int] = {}
        for name, of in types.items():
            inputs[Partial(name)] = builder.add(
                "parameter", Kind.PARAMETER, name=name, phase=Phase.BACKWARD, dtype=of.dtype,
                shape=of.shape, result_bytes=of.num_bytes,
            )  # fmt: skip
        latest = {name: [inputs[Partial(name)]] for name in types}
        for loop, inside in self._by_loop(rows):
            if loop is not None:
                builder.begin_region(
                    RegionKind.LOOP, loop[1], name=self.program.regions[loop[0]].name
                )
            for row in inside:
                names = self.names_of([row])
                new = self._copy(builder, row, [d for name in names for d in latest[name]])
                for name in names:
                    latest[name] = [*latest[name], new]
            if loop is not None:
                builder.end_region()
        outputs: dict[Key, int] = {}
        for name, row in self.rows.items():
            outputs[Port(Role.GRADIENT, name)] = self._result(builder, row, latest[name])
        return StageProgram(builder.build(), inputs, outputs)

    def _by_loop(self, rows: Sequence[int]) -> Iterator[tuple[tuple[int, int] | None, list[int]]]:
        outermost = region_rows(self.program)

        def loop(row: int) -> tuple[int, int] | None:
            trips = int(self.program.trips[row])
            return (int(outermost[row]), trips) if outermost[row] >= 0 and trips > 1 else None

        for key, found in groupby(rows, loop):
            yield key, list(found)

    def _copy(self, builder: ProgramBuilder, row: int, deps: list[int]) -> int:
        values = self.program.row(row)._asdict() | {"phase": Phase.BACKWARD}
        for name in ("number", "region", "deps", "alias"):
            values.pop(name)
        return builder.add(**values, deps=deps)

    def _result(self, builder: ProgramBuilder, row: int, deps: list[int]) -> int:
        """The gradient: what was given, or a value of its type behind the sums."""
        if len(deps) == 1:
            return deps[0]
        of = self.program.row(row)
        return builder.add(
            "hlo.result", Kind.VALUE, deps=deps, dtype=of.dtype, shape=of.shape,
            result_bytes=of.result_bytes, phase=Phase.BACKWARD, flags=Flag.VIEW, alias=max(deps),
        )  # fmt: skip


def _resized(own: Type, dtype: str, num_bytes: int) -> Type:
    """A value like `own` of another type and size: longer in its first dimension, or flat."""
    elements = num_bytes // max(bytes_of_type(dtype, ()), 1)
    count = max(math.prod(own.shape), 1)
    if elements == count:
        return Type(dtype, own.shape, num_bytes)
    rest = count // own.shape[0] if own.shape and own.shape[0] else 0
    if rest and elements % rest == 0:
        return Type(dtype, (elements // rest, *own.shape[1:]), num_bytes)
    return Type(dtype, (elements,), num_bytes)
