"""Reductions: some dimensions of an operand are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from flint.ir.op_class import OpClass
from flint.tools.share.synth.codec.scene import Scene
from flint.tools.share.synth.codec.shapes.rule import Reading, Seen, first_then_rest
from flint.tools.share.synth.codec.template import Template
from flint.tools.share.synth.codec.value_type import Shape, ValueType


@dataclass(frozen=True)
class Kept:
    """Arguments: (dimensions of the operand, those that are kept)."""

    name: str = "kept"

    def read(self, row: Seen) -> Reading | None:
        if row.op is not OpClass.REDUCE:
            return None
        rows, reduced = row.dims[1], row.dims[3]
        for read in row.reads:
            shape = read.type.shape
            if len(shape) <= row.result.rank or read.type.elements != rows * reduced:
                continue
            for kept in reversed(list(combinations(range(len(shape)), row.result.rank))):
                if tuple(shape[i] for i in kept) == row.result.shape:
                    return Reading((len(shape), *kept), first_then_rest(row, read))
        return None

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        return bool(chosen) or candidate.rank == t.arguments[0]

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        return tuple(chosen[0].shape[i] for i in t.arguments[1:])
