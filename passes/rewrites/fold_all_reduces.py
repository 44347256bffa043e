"""An all-reduce of an all-reduce is one over both groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask
from flint.ir.edit import Editor
from flint.ir.match import ANY, Op, rewrite
from flint.ir.mesh import Group
from flint.ir.program import Collective, Program
from flint.passes.base import Pass


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


def _reduces(program: Program) -> Mask:
    listed = np.array([g.is_listed for g in program.groups] + [True], dtype=np.bool_)
    reduces = program.collective == Collective.ALL_REDUCE
    return np.asarray(reduces & ~listed[program.group])


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
