"""The kernels beside a convolution that cuDNN runs, and the rows that it takes (`library_convolutions.py`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flint.ir.columns import Mask, consumers, edges, is_any
from flint.ir.dims import ProductDims
from flint.ir.edit import IDLE, Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program

_PAD, _SLICE = "stablehlo.pad", "stablehlo.slice"


def with_kernels(program: Program) -> Program:
    """The program with a kernel for each padding and slice, and filters that are not turned over."""
    padded, cut, filters = _views(program)
    edit = Editor(program)
    made: dict[tuple[int, int, int], int] = {}
    first, readers = consumers(program)
    for row in np.flatnonzero(padded).tolist():
        _pad(edit, row, readers[first[row] : first[row + 1]].tolist(), made)
    for row in np.flatnonzero(cut).tolist():
        _cut(edit, row)
    for row in np.flatnonzero(filters).tolist():
        _read_as_is(edit, row, readers[first[row] : first[row + 1]].tolist())
    return edit.build().program if (padded | cut | filters).any() else program


def without_views(program: Program) -> Program:
    """The program in which what reads such a view reads what it shows."""
    padded, cut, filters = _views(program)
    views = padded | cut | filters
    views[program.alias[cut]] = True
    if not views.any():
        return program
    shown = np.arange(len(program))
    for row in np.flatnonzero(views).tolist():
        shown[row] = shown[program.alias[row]]
    edit = Editor(program)
    edit.merge(shown)
    for row in np.flatnonzero((program.alias >= 0) & ~views).tolist():
        if views[program.alias[row]]:
            edit.change(row, alias=int(shown[program.alias[row]]))
    return edit.build().program


def _views(program: Program) -> tuple[Mask, Mask, Mask]:
    """Views of inputs with padding, of parts of results, and of filters that are turned over.

    Views of such values stand elsewhere too (at the edge of a stage): only a convolution's are meant.
    """
    views = (program.kind == Kind.VALUE) & ((program.flags & Flag.VIEW) != 0)
    views &= program.alias >= 0
    convolutions = is_any(program, OpClass.CONVOLUTION)
    owner, target = edges(program)
    multiplied, others = (np.zeros(len(program), dtype=np.bool_) for _ in range(2))
    multiplied[target[convolutions[owner]]] = True
    others[target[~convolutions[owner]]] = True
    read = views & multiplied & ~others
    grown = views & is_any(program, OpClass.PAD) & convolutions[program.alias]
    cut = views & is_any(program, OpClass.SLICE) & grown[program.alias]
    turned = is_any(program, OpClass.REVERSE)
    return read & is_any(program, OpClass.PAD), cut, read & turned & turned[program.alias]


def _pad(
    edit: Editor, view: int, readers: list[int], made: dict[tuple[int, int, int], int]
) -> None:
    """Let a kernel pad what a convolution reads, and let the convolution multiply all of it."""
    p = edit.program
    source = int(p.alias[view])
    key = source, int(p.shape[view]), int(p.region[view])
    first = made.setdefault(key, view)
    if first == view:
        edit.change(view, **_kernel(_PAD, int(p.result_bytes[source])), alias=-1)
    for row in readers:
        deps = edit.reads(row)
        edit.change(row, deps=[first if d == view else d for d in deps], **_whole(p, row, view))
    if first != view:
        edit.remove([view])


def _read_as_is(edit: Editor, view: int, readers: list[int]) -> None:
    """Let what sees a filter turned over read it as it was; what turned it goes if nothing reads it."""
    turned = int(edit.program.alias[view])
    kernel = edit.reads(turned)[0] if edit.uses(turned) else turned
    for row in readers:
        deps = [kernel if d == view else d for d in edit.reads(row)]
        flags = Flag(int(edit.program.flags[row]))
        if kernel == min(deps):  # it was the last
            flags = _exchanged(flags)
        edit.change(row, deps=deps, flags=int(flags))
    edit.remove([view])
    if not edit.uses(turned):
        edit.remove([turned])


def _exchanged(flags: Flag) -> Flag:
    """What flags say of the first operand and of the last, exchanged."""
    kept = flags & ~(Flag.TURNED_FIRST | Flag.TURNED_LAST)
    kept |= Flag.TURNED_LAST if Flag.TURNED_FIRST in flags else Flag(0)
    return kept | (Flag.TURNED_FIRST if Flag.TURNED_LAST in flags else Flag(0))


def _whole(program: Program, row: int, view: int) -> dict[str, Any]:
    """What a convolution has to do with all elements of a padded input, holes too."""
    p, dims = program, ProductDims.of(program.dims[row])
    reads = p.dependencies(row).tolist()
    seen = [d for d in reads if p.alias[d] >= 0 and p.op[d] == OpClass.PAD]  # input, then filter
    kernel = seen[1] if len(seen) > 1 else next((d for d in reads if d != view), view)
    k = math.prod(p.shapes[p.shape[kernel]]) // max(dims.n * dims.batch, 1)
    added = sum(int(p.result_bytes[d] - p.result_bytes[p.alias[d]]) for d in seen)
    whole = {"operand_bytes": int(p.operand_bytes[row]) + added}
    if k <= dims.k:
        return whole
    flops = 2 * dims.batch * dims.m * dims.n * k
    return {**whole, "flops": flops, "dims": ProductDims(dims.batch, dims.m, dims.n, k).row}


def _cut(edit: Editor, row: int) -> None:
    """Let a convolution write all of its result, and a kernel copy what is kept."""
    p = edit.program
    view = int(p.alias[row])
    made = int(p.alias[view])
    size = int(p.result_bytes[view])
    edit.change(made, shape=p.shapes[p.shape[view]], result_bytes=size)
    edit.change(row, **_kernel(_SLICE, int(p.result_bytes[row])), alias=-1)


def _kernel(opcode: str, operand_bytes: int) -> dict[str, Any]:
    work = {"kind": Kind.COMPUTE, "opcode": opcode, "operand_bytes": operand_bytes}
    return {**IDLE, **work}


def fused(program: Program, rows: list[int]) -> Program:
    """The program in which convolutions `rows` have taken what cuDNN does behind them."""
    work = _Fusing(program)
    for row in rows:
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
