"""Programs with one thing wrong: what strict rules have to find."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from flint.ir.columns import bytes_of_type, changed, edges, rewired, with_value
from flint.ir.program import Collective, Kind, Program, RegionKind

Change = Callable[[Program, np.random.Generator], Program]


class NothingToChange(Exception):
    """The program has no row for this kind of change."""


class Mutant(NamedTuple):
    """A program in which one row is wrong."""

    kind: str
    program: Program


def mutants(program: Program, number: int, seed: int) -> list[Mutant]:
    """`number` programs with one change each, of all kinds in turn that the program has rows for."""
    rng = np.random.default_rng(seed)
    found: list[Mutant] = []
    kinds = list(CHANGES.items())
    for attempt in range(20 * number):
        if len(found) == number:
            break
        name, change = kinds[attempt % len(kinds)]
        with contextlib.suppress(NothingToChange):
            found.append(Mutant(name, change(program, rng)))
    return found


def _one(rows: np.ndarray, rng: np.random.Generator) -> int:
    numbers = np.flatnonzero(rows)
    if not len(numbers):
        raise NothingToChange
    return int(rng.choice(numbers))


def _shaped(program: Program, row: int, shape: tuple[int, ...]) -> Program:
    """Row of another shape, with the bytes that it has then."""
    shapes, index = with_value(program.shapes, shape)
    size = bytes_of_type(program.dtypes[program.dtype[row]], shape)
    return changed(replace(program, shapes=shapes), np.array([row]), shape=index, result_bytes=size)


def _works(program: Program) -> np.ndarray:
    return np.asarray((program.kind == Kind.COMPUTE) & (program.result_bytes > 0))


def wrong_shape(program: Program, rng: np.random.Generator) -> Program:
    """One dimension is twice as long, and bytes fit to it."""
    row = _one(_works(program) & np.array([len(s) > 0 for s in program.shapes])[program.shape], rng)
    shape = list(program.shapes[program.shape[row]])
    at = int(rng.integers(len(shape)))
    shape[at] = 2 * shape[at] + (shape[at] == 0)
    return _shaped(program, row, tuple(shape))


def turned_shape(program: Program, rng: np.random.Generator) -> Program:
    """The first and the last dimension are exchanged."""
    differ = [len(s) > 1 and s[0] != s[-1] for s in program.shapes]
    row = _one(_works(program) & np.array(differ)[program.shape], rng)
    shape = program.shapes[program.shape[row]]
    return _shaped(program, row, (shape[-1], *shape[1:-1], shape[0]))


def swapped_dtype(program: Program, rng: np.random.Generator) -> Program:
    """Another type of another width, and bytes fit to it."""
    row = _one(_works(program), rng)
    width = bytes_of_type(program.dtypes[program.dtype[row]], (8,))
    others = [i for i, d in enumerate(program.dtypes) if bytes_of_type(d, (8,)) not in (0, width)]
    if not others:
        raise NothingToChange
    dtype = int(rng.choice(others))
    size = bytes_of_type(program.dtypes[dtype], program.shapes[program.shape[row]])
    return changed(program, np.array([row]), dtype=dtype, result_bytes=size)


def dropped_operand(program: Program, rng: np.random.Generator) -> Program:
    """A row that computes or communicates reads one row less.

    No operand that has the type of another one: with x * y, x * x is as good a program.
    """
    owner, read = edges(program)
    may = (program.kind[owner] >= Kind.COMPUTE) & (program.result_bytes[read] > 0)
    at = _one(may & ~_has_equal(program, owner, read), rng)
    keep = np.arange(len(owner)) != at
    return rewired(program, (owner[keep], read[keep]))


def _has_equal(program: Program, owner: np.ndarray, read: np.ndarray) -> np.ndarray:
    """Links of rows that read another row of the same type and shape."""
    types = program.shape.astype(np.int64) * len(program.dtypes) + program.dtype
    keys = owner * (int(types.max(initial=0)) + 1) + types[read]
    _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(counts[which.reshape(-1)] > 1)


def wrong_operand(program: Program, rng: np.random.Generator) -> Program:
    """A row reads another earlier row of its region in the place of an operand."""
    owner, read = edges(program)
    at = _one(program.kind[owner] >= Kind.COMPUTE, rng)
    row, old = int(owner[at]), int(read[at])
    rows = np.arange(len(program))
    other = (rows < row) & (program.region == program.region[row]) & (program.result_bytes > 0)
    other &= (program.shape != program.shape[old]) | (program.dtype != program.dtype[old])
    new = _one(other & ~np.isin(rows, program.dependencies(row)), rng)
    read = read.copy()
    read[at] = new
    return rewired(program, (owner, read))


def dead_row(program: Program, rng: np.random.Generator) -> Program:
    """Nothing reads what a row computes: its readers read what it reads."""
    owner, read = edges(program)
    computes = _works(program) & (np.diff(program.dep_start) > 0)
    computes[[b for r in program.regions for _, b in r.carries]] = False
    row = _one(computes & (np.bincount(read, minlength=len(program)) > 0), rng)
    read = np.where(read == row, program.dependencies(row)[0], read)
    return rewired(program, (owner, read))


def wrong_payload(program: Program, rng: np.random.Generator) -> Program:
    """A collective sends twice as much and says that it reads as much."""
    row = _one(program.kind == Kind.COLLECTIVE, rng)
    sent = 2 * int(program.comm_bytes[row])
    return changed(program, np.array([row]), comm_bytes=sent, operand_bytes=sent)


def wrong_collective(program: Program, rng: np.random.Generator) -> Program:
    """A gather in the place of a sum, or the other way round."""
    pair = {
        Collective.ALL_REDUCE: Collective.ALL_GATHER,
        Collective.ALL_GATHER: Collective.ALL_REDUCE,
    }
    row = _one(np.isin(program.collective, list(pair)), rng)
    other = pair[Collective(int(program.collective[row]))]
    return changed(program, np.array([row]), collective=int(other))


def wrong_flops(program: Program, rng: np.random.Generator) -> Program:
    """A row has one FLOP less."""
    row = _one((program.kind == Kind.COMPUTE) & (program.flops > 1), rng)
    return changed(program, np.array([row]), flops=program.flops[row] - 1)


def wrong_sizes(program: Program, rng: np.random.Generator) -> Program:
    """k of a product, or what a reduction reduces, is twice as long; FLOPs fit to it."""
    row = _one((program.kind == Kind.COMPUTE) & (program.dims[:, 3] > 0) & (program.flops > 0), rng)
    dims = program.dims.copy()
    dims[row, 3] *= 2
    found = changed(program, np.array([row]), flops=2 * program.flops[row])
    return replace(found, dims=dims)


def wrong_bytes(program: Program, rng: np.random.Generator) -> Program:
    """A row reads twice the bytes."""
    row = _one(_works(program) & (program.operand_bytes > 0), rng)
    return changed(program, np.array([row]), operand_bytes=3 * program.operand_bytes[row])


def wrong_carry(program: Program, rng: np.random.Generator) -> Program:
    """A loop goes on with a value of another shape or type."""
    loops = [i for i, r in enumerate(program.regions) if r.kind is RegionKind.LOOP and r.carries]
    if not loops:
        raise NothingToChange
    number = int(rng.choice(loops))
    region = program.regions[number]
    at = int(rng.integers(len(region.carries)))
    rows = np.arange(len(program))
    old = region.carries[at][1]
    other = (region.start <= rows) & (rows < region.stop) & (program.result_bytes > 0)
    other &= (program.shape != program.shape[old]) | (program.dtype != program.dtype[old])
    new = _one(other & (program.region == number), rng)
    carries = list(region.carries)
    carries[at] = (carries[at][0], new)
    regions = list(program.regions)
    regions[number] = replace(region, carries=tuple(carries))
    return replace(program, regions=tuple(regions))


#: All kinds of changes by name.
CHANGES: Mapping[str, Change] = {
    c.__name__: c
    for c in (
        wrong_shape, turned_shape, swapped_dtype, dropped_operand, wrong_operand, dead_row,
        wrong_payload, wrong_collective, wrong_flops, wrong_sizes, wrong_bytes, wrong_carry,
    )
}  # fmt: skip
