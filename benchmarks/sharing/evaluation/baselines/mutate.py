"""Mutated copies: a near training workload, some of whose rows and edges are changed at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.sharing.evaluation.baselines.copies import Nearest, train_nearest
from benchmarks.sharing.evaluation.corpus import Capture
from flint.ir.columns import carried, changed, edges, is_any, rewired, use_counts, yielded
from flint.ir.edit import kept
from flint.ir.op_class import ELEMENTWISE, OpClass
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.conditions import Conditions
from flint.tools.share.rules.elementwise import ONE, TWO

#: Shares of edges that read another row, of rows that go, and of rows of another class.
REWIRED, REMOVED, RENAMED = 0.05, 0.05, 0.05
#: One of so many nearest training workloads is changed.
NEAREST = 3
_KEEP_TYPE = (ONE | TWO) - {OpClass.CONVERT, OpClass.COMPARE, OpClass.REDUCE_PRECISION}


@dataclass(frozen=True, eq=False)
class Mutate:
    """Changes copies of near training workloads."""

    nearest: Nearest

    def sample(self, conditions: Conditions, seed: int) -> Workload:
        """A changed copy, on the mesh that it was captured for."""
        rng = np.random.default_rng(seed)
        order = self.nearest.order(conditions)[:NEAREST]
        source = self.nearest.captures[int(rng.choice(order))].workload
        return Workload.single(mutated(source.programs[0], rng))


def train_mutate(captures: Sequence[Capture], seed: int) -> Mutate:
    """Changed copies of the nearest."""
    return Mutate(train_nearest(captures, seed))


def mutated(program: Program, rng: np.random.Generator) -> Program:
    """A program with other classes, fewer rows and other edges, which verifies.

    Changes are those that types leave room for: a row reads another row of the same type and shape,
    and what is element by element stays so.
    """
    return _rewired(_removed(_renamed(program, rng), rng), rng)


def _renamed(program: Program, rng: np.random.Generator) -> Program:
    """Rows element by element of another class with as many operands."""
    op = program.op.copy()
    for classes in (ONE & _KEEP_TYPE, TWO & _KEEP_TYPE):
        rows = np.flatnonzero(is_any(program, classes) & (program.kind == Kind.COMPUTE))
        rows = rows[rng.random(len(rows)) < RENAMED]
        op[rows] = rng.choice(sorted(classes), size=len(rows))
    return changed(program, np.arange(len(program)), op=op)


def _removed(program: Program, rng: np.random.Generator) -> Program:
    """Without some rows element by element: who reads one reads its operand of the same type.

    All other operands have other readers, and nothing shares the row's storage.
    """
    stand = _operand_alike(program)
    may = is_any(program, ELEMENTWISE) & (program.kind == Kind.COMPUTE) & (stand >= 0)
    may &= ~yielded(program) & ~carried(program) & ~_shared(program) & ~_is_last_reader(program)
    gone = may & (rng.random(len(program)) < REMOVED)
    stand = np.where(gone, stand, np.arange(len(program)))
    while gone[stand].any():
        stand = stand[stand]
    owner, read = edges(program)
    return kept(rewired(program, (owner, stand[read])), ~gone)


def _operand_alike(program: Program) -> np.ndarray:
    """For each row the first operand of its type, shape and region; -1 where there is none."""
    owner, read = edges(program)
    alike = _types(program)[owner] == _types(program)[read]
    found = np.full(len(program), -1, dtype=np.int64)
    found[owner[alike][::-1]] = read[alike][::-1]
    return found


def _shared(program: Program) -> np.ndarray:
    """Rows whose storage another row shares."""
    found = np.zeros(len(program), dtype=np.bool_)
    found[program.alias[program.alias >= 0]] = True
    return found


def _is_last_reader(program: Program) -> np.ndarray:
    """Rows that are the one reader of an operand of another type: without them nothing reads it."""
    owner, read = edges(program)
    only = use_counts(program)[read] == 1
    only &= read != _operand_alike(program)[owner]
    found = np.zeros(len(program), dtype=np.bool_)
    found[owner[only]] = True
    return found


def _rewired(program: Program, rng: np.random.Generator) -> Program:
    """Some edges read another earlier row of the same type, shape and region.

    The row that was read has other readers, and the edge shares no storage.
    """
    owner, read = edges(program)
    keys, uses = _types(program), use_counts(program)
    by_key = {int(k): np.flatnonzero(keys == k) for k in np.unique(keys)}
    read = read.copy()
    may = program.alias[owner] != read
    for at in np.flatnonzero(may & (rng.random(len(read)) < REWIRED)).tolist():
        alike = by_key[int(keys[read[at]])]
        earlier = alike[: np.searchsorted(alike, owner[at])]
        if len(earlier) and uses[read[at]] > 1:
            uses[read[at]] -= 1
            read[at] = int(rng.choice(earlier))
            uses[read[at]] += 1
    return rewired(program, (owner, read))


def _types(program: Program) -> np.ndarray:
    """A number for type, shape and region of each row."""
    regions = len(program.regions) + 1
    width = len(program.dtypes) * regions
    keys = program.shape.astype(np.int64) * width + program.dtype.astype(np.int64) * regions
    return np.asarray(keys + program.region + 1)
