"""What stays of each row while its place and its operands change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.ir.columns import carried, type_bytes, yielded
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase, Program
from flint.tools.share.rules.view import View

#: Phases in the order in which values may flow; UNKNOWN is read by, and reads, all.
_RANK = {Phase.UNKNOWN: 0, Phase.FORWARD: 1, Phase.REMAT: 2, Phase.BACKWARD: 2, Phase.OPTIMIZER: 3}
#: Collectives that send a value which rows may read beside it.
_SENT = (Collective.PERMUTE, Collective.ALL_GATHER)


class Sort(NamedTuple):
    """A type of values: element type (a number), shape, bytes of the first result and of further ones."""

    dtype: int
    shape: tuple[int, ...]
    num_bytes: int
    more_bytes: int

    @property
    def alike(self) -> tuple[int, int]:
        """Equal for types that are views of each other: element type and number of elements."""
        return self.dtype, math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Facts:
    """Columns of a program as lists, for code that looks at one row at a time.

    `type` numbers equal types, which are `types`. `rank` is that of the phase, 0 if it is not known.
    `region` is the innermost loop or -1, `around` for each loop
    it and the loops around it with -1. `exported` are values of a loop that rows outside read. `held`
    are rows whose operands are told apart by more than their types: these stay. `free` are views and
    constants, which nobody needs once nobody reads them.
    """

    program: Program
    type: tuple[int, ...]
    types: tuple[Sort, ...]
    rank: tuple[int, ...]
    region: tuple[int, ...]
    around: tuple[frozenset[int], ...]
    works: tuple[bool, ...]
    is_carry: tuple[bool, ...]
    is_parameter: tuple[bool, ...]
    is_result: tuple[bool, ...]
    writes: tuple[bool, ...]
    sends: tuple[bool, ...]
    exported: tuple[bool, ...]
    held: tuple[bool, ...]
    free: tuple[bool, ...]

    @classmethod
    def of(cls, program: Program) -> Facts:
        """The facts of a program without branches."""
        p, view = program, View(program)
        own = type_bytes(p)
        more = np.maximum(p.result_bytes - own, 0)
        table = np.stack([p.dtype.astype(np.int64), p.shape.astype(np.int64), own, more], axis=1)
        sorts, types = np.unique(table, axis=0, return_inverse=True)
        ranks = np.array([_RANK[phase] for phase in Phase])
        around = _around([r.parent for r in p.regions])
        writes = ((p.flags & Flag.IN_PLACE) != 0) & (p.alias >= 0)
        held = np.diff(p.dep_start) != view.arity
        held |= (p.op == OpClass.ACCUMULATOR) | (writes & (p.kind != Kind.COMPUTE))
        return cls(
            program,
            tuple(types.reshape(-1).tolist()),
            tuple(Sort(d, p.shapes[s], b, m) for d, s, b, m in sorts.tolist()),
            tuple(ranks[p.phase].tolist()),
            tuple(p.region.tolist()),
            around,
            tuple((p.kind >= Kind.COMPUTE).tolist()),
            tuple(carried(p).tolist()),
            tuple((p.kind == Kind.PARAMETER).tolist()),
            tuple((p.op == OpClass.RESULT).tolist()),
            tuple(writes.tolist()),
            tuple((np.isin(p.collective, _SENT) & (p.kind == Kind.COLLECTIVE)).tolist()),
            _exported(p, around),
            tuple(held.tolist()),
            tuple((~held & _free(p)).tolist()),
        )


def _free(p: Program) -> NDArray[np.bool_]:
    made = np.isin(p.op, (OpClass.RESHAPE, OpClass.CONSTANT))
    return np.asarray((p.kind == Kind.VALUE) & made & ~yielded(p))


def _around(parents: Sequence[int]) -> tuple[frozenset[int], ...]:
    """For each loop, and for -1 as the last entry, the loops around it with itself and -1."""
    found: list[frozenset[int]] = []
    for number, parent in enumerate(parents):
        outer = found[parent] if parent >= 0 else frozenset({-1})
        found.append(outer | {number})
    return (*found, frozenset({-1}))


def _exported(p: Program, around: Sequence[frozenset[int]]) -> tuple[bool, ...]:
    found = [False] * len(p)
    region = p.region.tolist()
    for owner, read in zip(p.dep_owner.tolist(), p.deps.tolist(), strict=True):
        if region[read] not in around[region[owner]]:
            found[read] = True
    return tuple(found)
