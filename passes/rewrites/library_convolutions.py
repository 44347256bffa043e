"""Convolutions as cuDNN takes them: input padded before, result cut after, filters not turned over."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flint.ir.columns import Mask, is_any
from flint.ir.dims import ProductDims
from flint.ir.edit import IDLE, Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.base import Pass

_PAD, _SLICE = "stablehlo.pad", "stablehlo.slice"


@dataclass(frozen=True)
class LibraryConvolutions(Pass):
    """Views that cuDNN cannot take become kernels, and one that it implies goes.

    * What a convolution sees with padding is padded by a kernel, and a result of which a part is
      kept is cut by one: cuDNN pads both ends of a dimension alike, and its input has no holes.
      Convolutions that see one value alike read one copy.
    * The gradient of an input reads the filter as the convolution does: nothing turns it over.

    `flint.passes.hlo.convolutions` says which convolutions have such views.
    """

    name: ClassVar[str] = "library-convolutions"

    def apply(self, program: Program) -> Program:
        """Return the program with a row for each such padding and slice."""
        padded, cut, filters = _views(program)
        if not (padded | cut | filters).any():
            return program
        edit = Editor(program)
        made: dict[tuple[int, int, int], int] = {}
        for row in np.flatnonzero(padded).tolist():
            _pad(edit, row, made)
        for row in np.flatnonzero(cut).tolist():
            _cut(edit, row)
        for row in np.flatnonzero(filters).tolist():
            _read_as_is(edit, row)
        return edit.build().program


def _views(program: Program) -> tuple[Mask, Mask, Mask]:
    """Views of inputs with padding, of parts of results, and of filters that are turned over."""
    views = (program.kind == Kind.VALUE) & ((program.flags & Flag.VIEW) != 0)
    views &= program.alias >= 0
    cut = views & is_any(program, OpClass.SLICE)
    cut &= (views & is_any(program, OpClass.PAD))[program.alias]
    padded = views & is_any(program, OpClass.PAD)
    padded[program.alias[cut]] = False
    return padded, cut, views & is_any(program, OpClass.REVERSE)


def _pad(edit: Editor, view: int, made: dict[tuple[int, int, int], int]) -> None:
    """Let a kernel pad what a convolution reads, and let the convolution multiply all of it."""
    p = edit.program
    source = int(p.alias[view])
    key = source, int(p.shape[view]), int(p.region[view])
    first = made.setdefault(key, view)
    if first == view:
        edit.change(view, **_kernel(_PAD, int(p.result_bytes[source])), alias=-1)
    for row in _readers(p, view):
        deps = edit.reads(row)
        edit.change(row, deps=[first if d == view else d for d in deps], **_whole(p, row, view))
    if first != view:
        edit.remove([view])


def _read_as_is(edit: Editor, view: int) -> None:
    """Let what sees a filter turned over read it as it was; what turned it goes if nothing reads it."""
    turned = int(edit.program.alias[view])
    uses = edit.uses(turned)
    edit.change(view, deps=edit.reads(turned), alias=edit.reads(turned)[0])
    if uses == 1:
        edit.remove([turned])


def _readers(program: Program, view: int) -> list[int]:
    owner = np.repeat(np.arange(len(program)), np.diff(program.dep_start))
    return [int(r) for r in owner[program.deps == view]]


def _whole(program: Program, row: int, view: int) -> dict[str, Any]:
    """What a convolution has to do with all elements of a padded input, holes too."""
    p, dims = program, ProductDims.of(program.dims[row])
    reads = p.dependencies(row).tolist()
    seen = [d for d in reads if p.alias[d] >= 0 and p.op[d] == OpClass.PAD]
    kernel = seen[1] if len(seen) > 1 else next((d for d in reads if d != view), view)
    k = math.prod(p.shapes[p.shape[kernel]]) // max(dims.n * dims.batch, 1)
    added = int(p.result_bytes[view] - p.result_bytes[p.alias[view]])
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
