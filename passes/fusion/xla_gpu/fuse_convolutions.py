"""What cuDNN does behind a convolution in the same kernel: a factor, a bias, an addend, and a ReLU."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from flint.ir.columns import consumers
from flint.ir.dims import ProductDims
from flint.ir.edit import IDLE, Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Phase, Program
from flint.passes.base import Pass


@dataclass(frozen=True)
class FuseConvolutions(Pass):
    """A convolution takes what follows it and nothing else reads: a factor, then a bias (a value for each
    feature) and an array of its own size to add, in any order, then a ReLU.

    XLA's `CudnnFusedConvRewriter`: all are of the type of the result, the array is stored before, and
    a kernel without a bias gets zeros. Gradients and depthwise convolutions take nothing. Behind
    the backward pass a convolution is a gradient.
    """

    name: ClassVar[str] = "fuse-convolutions"

    def apply(self, program: Program) -> Program:
        """Return the program with such rows merged."""
        found = (program.op == OpClass.CONVOLUTION) & (program.kind == Kind.COMPUTE)
        found &= (program.flags & (Flag.LAUNCHED | Flag.UNPRICED | Flag.TURNED_RESULT)) == 0
        found &= (program.phase != Phase.BACKWARD) & (ProductDims.of(program.dims).n > 1)
        if not found.any():
            return program
        work = _Fusing(program)
        for row in np.flatnonzero(found).tolist():
            work.fuse(row)
        return work.edit.build().program if work.changed else program


@dataclass
class _Taken:
    """What a convolution takes: rows that go, the last of which it stands for, and what it reads for them."""

    last: int
    gone: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    spread: list[int] = field(default_factory=list)  # numbers and biases, repeated for each element
    has: set[str] = field(default_factory=set)


class _Fusing:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.edit = Editor(program)
        self.changed = False
        self._claimed: set[int] = set()  # rows that a convolution has taken
        self._first, self._rows = (column.tolist() for column in consumers(program))
        self._zeros: dict[tuple[int, int, int], int] = {}

    def fuse(self, row: int) -> None:
        """Let a convolution stand for the last row that it takes, if there is one."""
        taken = _Taken(row)
        while (reader := self._only_reader(taken.last)) >= 0 and self._takes(taken, reader):
            taken.gone.append(taken.last)
            taken.last = reader
        if not taken.gone:
            return
        self._claimed |= {*taken.gone, taken.last}
        p, last = self.program, taken.last
        reads = [*self.edit.reads(row), *taken.reads]
        size = sum(int(p.result_bytes[d]) for d in taken.reads)
        flops = int(p.flops[[*taken.gone, last]].sum())
        alias = int(p.alias[row])
        if "bias" not in taken.has:
            reads.append(self._no_bias(row))
        self.edit.become(last, row)
        self.edit.change(
            last, deps=reads, alias=alias, flops=flops,
            operand_bytes=int(p.operand_bytes[row]) + size,
        )  # fmt: skip
        self.edit.remove(taken.gone)
        self.edit.remove([d for d in taken.spread if not self.edit.uses(d)])
        self.changed = True

    def _only_reader(self, row: int) -> int:
        p = self.program
        if self.edit.uses(row) != 1 or self._first[row] == self._first[row + 1]:
            return -1
        reader = int(self._rows[self._first[row]])
        if p.kind[reader] != Kind.COMPUTE or reader in self._claimed:
            return -1
        alike = ("dtype", "shape", "region", "phase")
        return reader if all(getattr(p, c)[reader] == getattr(p, c)[row] for c in alike) else -1

    def _takes(self, taken: _Taken, reader: int) -> bool:
        """Whether a convolution takes one more row; `taken` says so then."""
        p, has = self.program, taken.has
        others = [int(d) for d in p.dependencies(reader) if d != taken.last]
        if len(others) != 1 or "relu" in has or p.flags[reader] & Flag.LAUNCHED:
            return False
        kind = self._kind(int(p.op[reader]), others[0], reader)
        if not kind or kind in has or (kind == "factor" and has):
            return False
        has.add(kind)
        if kind == "array":
            taken.reads.append(others[0])
        else:
            taken.spread.append(others[0])
        if kind == "bias":
            taken.reads.append(self._spread(others[0]))
        return True

    def _kind(self, op: int, other: int, reader: int) -> str:
        p = self.program
        if p.dtype[other] != p.dtype[reader]:
            return ""
        source = self._spread(other)
        number = source >= 0 and p.op[source] == OpClass.CONSTANT
        if op in (OpClass.MULTIPLY, OpClass.MAXIMUM):
            return ("factor" if op == OpClass.MULTIPLY else "relu") if number else ""
        if op != OpClass.ADD:
            return ""
        features = p.shapes[p.shape[reader]][-1]
        is_vector = source >= 0 and p.shapes[p.shape[source]] == (features,)
        return "bias" if is_vector else "array"

    def _spread(self, row: int) -> int:
        """The value that a row repeats, or -1."""
        p = self.program
        if p.op[row] != OpClass.BROADCAST:
            return -1
        return int(p.dependencies(row)[0])

    def _no_bias(self, row: int) -> int:
        """A row that makes zeros for all features; one for all convolutions of a region."""
        p, dims = self.program, ProductDims.of(self.program.dims[row])
        features = int(dims.n * dims.batch)
        key = features, int(p.dtype[row]), int(p.region[row])
        if key not in self._zeros:
            size = int(p.result_bytes[row]) // max(math.prod(p.shapes[p.shape[row]]), 1) * features
            made: dict[str, Any] = {
                **IDLE,
                "kind": Kind.COMPUTE,
                "opcode": "stablehlo.broadcast_in_dim",
                "op": OpClass.BROADCAST,
                "shape": (features,),
                "result_bytes": size,
                "alias": -1,
                "name": "",
            }
            self._zeros[key] = self.edit.copy(row, row, key[2], [], **made)
        return self._zeros[key]
