"""Products of matrices as a library of plain products has them: operands in its order and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import changed, edges, kept, rewired, with_value
from flint.ir.opcodes import MATMUL, opcode_mask
from flint.ir.program import Flag, Int64s, Kind, Program
from flint.ir.sizes import type_bytes
from flint.passes.base import Pass
from flint.passes.rewrites.insert_rows import Inserted, with_copies

_TURN = "stablehlo.transpose"
_SEE = "stablehlo.reshape"


@dataclass(frozen=True)
class TurnOperands(Pass):
    """Products read matrices, one for each element of a batch, and make such.

    XLA for CPUs turns every product into these (`DotDecomposer`):

    * `turned`: an operand that is neither (batch, m, k) nor, a plain matrix, (batch, k, m) is
      transposed for each product that reads it.
    * `flat`: one that has more dimensions is seen as (batch, m, k) first, and a result of more
      dimensions is (batch, m, n) first. That moves nothing, but its bytes cannot be written over
      by values of another shape.
    """

    name: ClassVar[str] = "turn-operands"

    def apply(self, program: Program) -> Program:
        """Return the program with a row before each product for each such operand."""
        program, flat = _flattened(program)
        pairs, turns = _operands(program, flat)
        if not len(pairs):
            return program
        readers, read = pairs.T
        longer = with_copies(program, read, readers, program.region[readers].astype(np.int64))
        found = _described(program, longer, readers, read, turns)
        new = _first_views(program, longer.rows, readers, read, turns)
        owner, target = edges(found)
        place, count = longer.place, len(found)
        stays = ~np.isin(owner * count + target, place[readers] * count + place[read])
        links = (
            np.concatenate([owner[stays], longer.rows, place[readers]]),
            np.concatenate([target[stays], place[read], new]),
        )
        return kept(
            rewired(found, links), ~np.isin(np.arange(count), longer.rows[new < longer.rows])
        )


def _first_views(
    program: Program, rows: Int64s, readers: Int64s, read: Int64s, turns: Int64s
) -> Int64s:
    """For each new row the first of its region that sees the same operand in the same way."""
    first: dict[tuple[int, int], int] = {}
    found = []
    keys = zip(rows.tolist(), read.tolist(), program.region[readers].tolist(), turns, strict=True)
    for row, operand, region, turn in keys:
        found.append(row if turn else first.setdefault((operand, region), row))
    return np.array(found, dtype=np.int64)


def _described(
    program: Program, longer: Inserted, readers: Int64s, read: Int64s, turns: Int64s
) -> Program:
    """The columns of the new rows: transpositions, and views."""
    turned = turns > 0
    opcodes, turn = with_value(program.opcodes, _TURN)
    opcodes, see = with_value(opcodes, _SEE)
    size = type_bytes(program)[read]
    return changed(
        _with_shapes(longer.program, longer.rows).with_rows(opcodes=opcodes),
        longer.rows,
        **dict.fromkeys(("group", "route", "channel"), -1),
        **dict.fromkeys(
            ("flops", "dims", "product", "comm_bytes", "collective", "name", "cause"), 0
        ),
        opcode=np.where(turned, turn, see),
        kind=np.where(turned, Kind.COMPUTE, Kind.VALUE),
        flags=np.where(turned, 0, Flag.VIEW),
        alias=np.where(turned, -1, longer.place[read]),
        result_bytes=size,
        operand_bytes=np.where(turned, size, 0),
        **{c: getattr(program, c)[readers] for c in ("stream", "phase", "scope", "location")},
    )


def _with_shapes(program: Program, rows: Int64s) -> Program:
    """`rows` are seen in one dimension: in none that they had."""
    shapes, shape = program.shapes, program.shape.copy()
    for row in rows.tolist():
        shapes, shape[row] = with_value(shapes, (math.prod(shapes[shape[row]]),))
    return program.with_rows(shapes=shapes, shape=shape)


def _flattened(program: Program) -> tuple[Program, dict[int, list[int]]]:
    """Products with plain results, and of each which operands are not plain matrices."""
    products = opcode_mask(program, MATMUL) & (program.kind == Kind.COMPUTE)
    flat, results = {}, []
    for row in np.flatnonzero(products).tolist():
        operands = program.dependencies(row).tolist()
        if not operands:
            continue
        ranks = [len(program.shapes[program.shape[d]]) for d in operands]
        result = program.shapes[program.shape[row]]
        batch, contracted = _dimensions(ranks, result, int(program.dims[row, 0]))
        flat[row] = [
            d for d, rank in zip(operands, ranks, strict=True) if contracted > 1 or rank > batch + 2
        ]
        if len(result) > batch + 2:
            results.append(row)
    if not results:
        return program, flat
    return _with_shapes(program, np.array(results, dtype=np.int64)), flat


def _dimensions(ranks: list[int], result: tuple[int, ...], batch: int) -> tuple[int, int]:
    """How many dimensions are of the batch, and how many are summed over.

    The ranks of both operands have the first twice, as the result has once, and the second twice.
    """
    both = ranks[0] + ranks[-1] - len(result)
    for contracted in range(1, both // 2 + 1):
        count = both - 2 * contracted
        if math.prod(result[:count]) == batch:
            return count, contracted
    return 0, 1


def _operands(program: Program, flat: dict[int, list[int]]) -> tuple[Int64s, Int64s]:
    """(product, operand) for each new row, products ascending, and whether it is a transposition."""
    found = []
    for row, seen in flat.items():
        deps = program.dependencies(row).tolist()
        flags = Flag(int(program.flags[row]))
        turned = {deps[0]} if Flag.TURNED_FIRST in flags else set()
        turned |= {deps[-1]} if Flag.TURNED_LAST in flags else set()
        found += [(row, read, read in turned) for read in sorted(turned | set(seen))]
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    return table[:, :2], table[:, 2]
