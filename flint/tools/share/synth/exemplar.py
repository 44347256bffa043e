"""A remembered program at other sizes: on the mesh, with the layers and the totals that are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.ir.columns import type_bytes
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload
from flint.tools.share.axis_labels import comm_bytes_by_label
from flint.tools.share.conditions import Conditions, flops_of, parameter_bytes_of
from flint.tools.share.sizes import Sizes
from flint.tools.share.synth.codec.reader import Steps, read_program
from flint.tools.share.synth.codec.writer import write_program
from flint.tools.share.synth.memory import Memory

#: Programs that are tried, the most alike first.
MOST_TRIED = 16
#: Factors of variables, and rounds over all of them.
_FACTORS = (4.0, 0.25, 2.0, 0.5, 1.5, 0.75)
_ROUNDS = 3
#: Workloads of other sizes that are made at most, times their rows.
_MOST_ROWS_SIZED = 100_000
#: Sizes keep this power of two, as far as they have it.
_GRAIN = 16
#: Weights of bits (base 2) by which totals miss; how much of the memory one value may take.
_OF_FLOPS, _OF_AXIS, _OF_MEMORY, _MOST_OF_MEMORY = 1.0, 0.3, 0.3, 0.5
_MOST_BITS = 12.0


def exemplar(
    memory: Memory, weights: NDArray[np.float64], asked: Conditions, random: np.random.Generator
) -> Steps | None:
    """A program that is drawn by `weights`, resized; None where none of those that were tried can be.

    Programs with more axes than the mesh that is asked for are not tried; one with fewer leaves the last axes
    alone.
    """
    assert asked.mesh is not None
    axes = np.array([len(sizes) <= len(asked.mesh.sizes) for sizes, _ in memory.scenes])
    left = weights * axes
    for _ in range(MOST_TRIED):
        if not left.sum():
            return None
        program = int(random.choice(len(left), p=left / left.sum()))
        left[program] = 0.0
        names = asked.mesh.names[: len(memory.scenes[program][0])]
        steps = memory.recalled(program, names)
        found = _resized(steps, asked) if steps is not None else None
        if found is not None:
            return found
    return None


def _resized(steps: Steps, asked: Conditions) -> Steps | None:
    assert asked.mesh is not None
    used = len(steps.scene.mesh.names)
    mesh = Mesh(asked.mesh.names[:used], asked.mesh.sizes[:used])
    workload = Workload.single(write_program(steps))
    sizes = Sizes.of(workload)
    layers = {
        v.number: asked.depth or v.value
        for v in sizes.variables
        if v.layers and v.value == steps.scene.depth
    }
    values = {v.number: v.value for v in sizes.variables} | layers
    try:
        best = sizes.resized(values, mesh)
    except FlintError:
        return None
    movable = [v.number for v in sizes.variables if not v.layers]
    best = _fitted(sizes, values, movable, best, asked)
    found = read_program(best.programs[0].with_rows(mesh=asked.mesh))
    return None if found.unknown_share else found


def _fitted(
    sizes: Sizes,
    values: dict[int, int],
    movable: Sequence[int],
    start: Workload,
    asked: Conditions,
) -> Workload:
    """The workload whose totals are nearest: one variable after the other by simple factors."""
    best, miss = start, _missed(start, asked)
    left = _MOST_ROWS_SIZED // max(len(start.programs[0]), 1)
    for _ in range(_ROUNDS):
        before = miss
        for number, value in _moves(values, movable):
            left -= 1
            if left < 0:
                return best
            try:
                found = sizes.resized(values | {number: value}, start.mesh)
            except FlintError:
                continue
            now = _missed(found, asked)
            if now < miss - 1e-3:
                best, miss = found, now
                values[number] = value
        if before - miss < 0.05:
            break
    return best


def _moves(values: dict[int, int], movable: Sequence[int]) -> Iterator[tuple[int, int]]:
    for number in movable:
        for factor in _FACTORS:
            grain = math.gcd(values[number], _GRAIN)
            new = max(round(values[number] * factor / grain), 1) * grain
            if new != values[number]:
                yield number, new


def _missed(workload: Workload, asked: Conditions) -> float:
    """Weighted squares of bits by which totals miss. Of the memory arguments are most of the time most."""
    program = workload.programs[0]
    found = _OF_FLOPS * _bits(flops_of(program), asked.flops) ** 2
    sent = comm_bytes_by_label(program)
    for label in sent if asked.axis_bytes else ():
        found += _OF_AXIS * _bits(sent[label], asked.axis_bytes.get(label)) ** 2
    if asked.memory_bytes:
        over = parameter_bytes_of(program) / asked.memory_bytes
        largest = float(type_bytes(program).max()) / (asked.memory_bytes * _MOST_OF_MEMORY)
        found += _OF_MEMORY * max(math.log2(max(over, 1e-9)), 0.0) ** 2
        found += max(math.log2(max(largest, 1e-9)), 0.0) ** 2
    return found


def _bits(has: float, asked: float | None) -> float:
    return min(abs(math.log2((has + 1) / (asked + 1))), _MOST_BITS) if asked else 0.0
