"""An all-reduce of which each device keeps a part is a reduce-scatter; one of another is one over both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask
from flint.ir.edit import Editor
from flint.ir.match import ANY, Op, rewrite
from flint.ir.mesh import AxisRef, Group
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Program
from flint.passes.base import Pass

#: Opcode of the reduce-scatters that this pass makes.
REDUCE_SCATTER = "sdy.reduce_scatter"
Axes = tuple[AxisRef, ...]


@dataclass(frozen=True)
class FormReduceScatter(Pass):
    """Turn an all-reduce that only a `sdy.all_slice` reads into a reduce-scatter.

    Slice over all axes of the all-reduce: the slice's row becomes the reduce-scatter, and the
    all-reduce goes. A slice over some of them, over an axis that the all-reduce does not have, or of
    several dimensions at once, or groups of listed ranks, stay as they are. XLA's compilers take a sum
    that is sliced over some axes apart (AllReduceSplitter) if it is over the whole mesh, the slice is
    over the mesh's last axes, and another sum of the computation has one of the two groups that come
    of it: then the all-reduce's row becomes a reduce-scatter over the sliced axes, and the slice's
    row an all-reduce of the part over the other axes.
    `comm_bytes` of the reduce-scatter is that of the all-reduce: both count the rank's input.
    """

    name: ClassVar[str] = "form-reduce-scatter"

    def apply(self, program: Program) -> Program:
        """Return the program with reduce-scatters."""
        while (rewritten := rewrite(program, _SLICED, _scattered)) is not program:
            program = rewritten  # the all-reduce that is left may be sliced again
        return program


def _by_axes(program: Program) -> Mask:
    listed = np.array([g.is_listed for g in program.groups] + [True], dtype=np.bool_)
    return np.asarray(~listed[program.group])


def _reduces(program: Program) -> Mask:
    return np.asarray((program.collective == Collective.ALL_REDUCE) & _by_axes(program))


def _slices(program: Program) -> Mask:
    idle = (program.kind == Kind.COMPUTE) | (program.kind == Kind.VALUE)
    return np.asarray(_by_axes(program) & idle & (program.result_bytes > 0))


def _reshaped(program: Program) -> Mask:
    return np.asarray(_reduces(program) | (program.flags & Flag.VIEW > 0))


_SLICED = Op(OpClass.ALL_SLICE, _slices, reads=(Op(ANY, _reshaped, read_once=True),))


def _is_split(edit: Editor, reduce: int, axes: Axes, rest: Axes) -> bool:
    """Whether XLA's compilers make two sums of one: over the `axes` that are sliced, and the `rest`."""
    p = edit.program
    last = p.mesh.groups(axes)
    if p.mesh.group_size((*axes, *rest)) < p.mesh.size or (np.diff(last[0]) != 1).any():
        return False
    known = [g for g, group in enumerate(p.groups) if group.axes in (axes, rest)]
    sums = np.isin(p.collective, (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER))
    return bool((sums & np.isin(p.group, known) & (p.region == p.region[reduce])).any())


def _scattered(edit: Editor, slices: int, sliced: int) -> bool:
    """Over all axes, over some, or not at all. What is `sliced` may be the sum in another shape."""
    p, reduce, views = edit.program, sliced, list[int]()
    while p.flags[edit.like(reduce)] & Flag.VIEW and edit.uses(reduce) == 1 == len(
        edit.reads(reduce)
    ):
        views.append(reduce)
        reduce = edit.reads(reduce)[0]
    if edit.is_new(reduce) or edit.uses(reduce) != 1 or p.groups[p.group[reduce]].is_listed:
        return False
    if p.collective[reduce] != Collective.ALL_REDUCE:
        return False
    axes = p.groups[p.group[slices]].axes
    rest = p.mesh.without(p.groups[p.group[reduce]].axes, axes)
    whole, part = (p.shapes[p.shape[row]] for row in (sliced, slices))
    if rest is None or sum(a != b for a, b in zip(whole, part, strict=True)) > 1:
        return False
    if rest and not _is_split(edit, reduce, axes, rest):
        return False
    flags = int(p.flags[reduce]) & ~int(Flag.IN_PLACE | Flag.VIEW)  # it has another size now
    scatter = {
        "opcode": REDUCE_SCATTER,
        "op": p.op[reduce],
        "collective": Collective.REDUCE_SCATTER,
        "shape": p.shape[slices],
        "result_bytes": p.result_bytes[slices],
        "flags": flags,
    }
    if rest == ():
        edit.become(slices, reduce)
        edit.change(slices, deps=edit.reads(reduce), **scatter)
        edit.remove([reduce, *views])
        return True
    edit.change(reduce, **scatter, group=p.group[slices])
    part_bytes = p.result_bytes[slices]
    of_reduce = ("opcode", "op", "kind", "collective", "stream", "cause")
    kept = {name: getattr(p, name)[reduce] for name in of_reduce}
    sizes = {"comm_bytes": part_bytes, "operand_bytes": part_bytes}
    edit.change(slices, deps=[reduce], **kept, **sizes, group=Group(rest), flags=flags)
    edit.remove(views)
    return True


@dataclass(frozen=True)
class FoldAllReduces(Pass):
    """Turn an all-reduce that only an all-reduce reads into one over the axes of both.

    They reduce alike, over axes that they do not share; groups of listed ranks stay as they are.
    XLA does the same (AllReduceFolder). A `shard_map` that sums over one axis what the partitioner
    sums over another has such pairs.
    """

    name: ClassVar[str] = "fold-all-reduces"

    def apply(self, program: Program) -> Program:
        """Return the program with fewer all-reduces."""
        return rewrite(program, _OF_REDUCED, _folded)


_OF_REDUCED = Op(ANY, _reduces, reads=(Op(ANY, _reduces, read_once=True),))


def _folded(edit: Editor, outer: int, inner: int) -> bool:
    p = edit.program
    first, second = (p.groups[p.group[edit.like(r)]].axes for r in (inner, outer))
    same = all(getattr(p, n)[outer] == getattr(p, n)[inner] for n in ("op", "comm_bytes"))
    if not same or {a.name for a in first} & {a.name for a in second}:
        return False
    edit.change(outer, deps=edit.reads(inner), group=Group(p.mesh.canonical((*first, *second))))
    edit.remove([inner])
    return True
