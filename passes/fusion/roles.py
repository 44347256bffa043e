"""What each row can be inside a kernel, over how many elements it runs, and which kernels have names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from flint.ir.columns import Mask, carried, consumers, is_any, use_counts
from flint.ir.dims import ProductDims, ReductionDims
from flint.ir.op_class import ELEMENTWISE, GENERATED, LAYOUT, PRODUCT, REDUCTION, OpClass
from flint.ir.program import Flag, Int64s, Kind, Program

#: Copies that a kernel can do while it reads, or as it writes.
_COPIES = LAYOUT | {OpClass.CONCATENATE, OpClass.PAD, OpClass.DYNAMIC_SLICE}
#: Blocks of a reduction of columns up to which XLA gives it no work of others, and elements that each reduces.
MOST_BLOCKS, LEAST_REDUCED = 52, 256
#: Made where it is needed. Draws of random numbers are kernels of their own in XLA, and few
#: enough elsewhere.
_MADE = GENERATED - {OpClass.RANDOM}


class RowRole(IntEnum):
    """What a row can be in a kernel."""

    ALONE = 0  #: a kernel by itself, or no kernel
    VIEW = 1  #: no work: another view of what it reads
    ELEMENT = 2  #: element-wise, a change of layout, or generated in place
    ROWS = 3  #: a reduction of rows that lie side by side in memory
    REDUCE = 4  #: any other reduction: it ends a kernel
    MATMUL = 5  #: a product of matrices
    UPDATE = 6  #: writes a part of a large array, in place or by index: it ends a kernel
    TURN = 7  #: element-wise, in another order of elements than what reads it: it ends a kernel


#: The same numbers outside their class: looking a member up there takes most of a short loop.
VIEW, ELEMENT, ROWS = int(RowRole.VIEW), int(RowRole.ELEMENT), int(RowRole.ROWS)
#: Rows that can compute what they read, and take it into their kernel.
TAKING = frozenset(
    map(int, (RowRole.ELEMENT, RowRole.ROWS, RowRole.REDUCE, RowRole.UPDATE, RowRole.TURN))
)


@dataclass(frozen=True, eq=False)
class Roles:
    """Columns beside those of a Program.

    `elements` is how often the body of a row's kernel runs: `results`, the elements of its result,
    and for reductions those of what is reduced. `moves` says that a row only copies; `turns` that
    it transposes.
    """

    role: Int64s
    elements: Int64s
    results: Int64s
    moves: Mask
    converts: Mask
    turns: Mask

    def select(self, rows: Mask) -> Roles:
        """Those of some rows."""
        return Roles(**{name: column[rows] for name, column in vars(self).items()})


def roles_of(
    program: Program,
    *,
    operators: bool,
    slices: bool = True,
    scatters: bool = False,
    compiled: bool = False,
) -> Roles:
    """Roles of all rows.

    Operators that a framework launched take part if `operators`, reads of a slice of a stack if `slices`,
    writes by index if `scatters`. With `compiled`, only rows of compiled calls do.
    """
    compute = (program.kind == Kind.COMPUTE) & ((program.flags & Flag.UNPRICED) == 0)
    if not operators:
        compute &= (program.flags & Flag.LAUNCHED) == 0
    if compiled:
        compute &= program.compiled > 0
    if not slices:
        compute &= ~is_any(program, OpClass.DYNAMIC_SLICE)
    moves = is_any(program, _COPIES | _MADE)
    converts = is_any(program, OpClass.CONVERT)
    role = np.zeros(len(program), dtype=np.int64)
    role[(is_any(program, ELEMENTWISE) | moves) & compute] = RowRole.ELEMENT
    reduces = is_any(program, REDUCTION) & compute
    role[reduces] = RowRole.REDUCE
    role[is_any(program, PRODUCT) & compute] = RowRole.MATMUL
    by_index = is_any(program, OpClass.SCATTER) & compute & scatters
    role[(is_any(program, OpClass.UPDATE_SLICE) & compute) | by_index] = RowRole.UPDATE
    views = (program.kind == Kind.VALUE) & (np.diff(program.dep_start) == 1) & ~carried(program)
    views[views] = _shows_bytes(program, np.flatnonzero(views))
    role[views] = RowRole.VIEW
    elements = np.array([math.prod(s) for s in program.shapes] or [0], dtype=np.int64)
    results = elements[program.shape]
    role[reduces & _along_rows(program)] = RowRole.ROWS
    dims = ReductionDims.of(program.dims)
    reduced = dims.rows * dims.reduced
    trivial = reduces & (dims.reduced == 1)
    role[trivial] = RowRole.ELEMENT
    elements = np.where((reduces | by_index) & (reduced > 0), reduced, results)
    turns = is_any(program, OpClass.TRANSPOSE) & ~views
    return Roles(role, elements, results, moves, converts, turns)


def _shows_bytes(program: Program, rows: Int64s) -> Mask:
    """Whether what each row reads has bytes: a row that only waits for another is no view of it."""
    read = program.deps[program.dep_start[rows]]
    return np.asarray((program.result_bytes[read] > 0) | (program.result_bytes[rows] == 0))


def _along_rows(program: Program) -> Mask:
    """Reductions over the last dimension of what they read, by shapes where nothing says more."""
    found = np.zeros(len(program), dtype=np.bool_)
    dims = ProductDims.of(program.dims)
    perhaps = (dims.k > 1) & (dims.n == 1) & ((program.flags & Flag.COLUMNS) == 0)
    for row in np.flatnonzero(perhaps).tolist():
        rows, columns = map(int, ReductionDims.of(program.dims[row]))
        left = program.shapes[program.shape[row]]
        shapes = (program.shapes[program.shape[d]] for d in program.dependencies(row).tolist())
        found[row] = any(
            s and s[-1] == columns and math.prod(s) == rows * columns and _starts(left, s)
            for s in shapes
        )
    return found


def _starts(left: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether `left` is `whole` without its last dimension, or with 1 there."""
    return left in (whole[:-1], (*whole[:-1], 1), whole)


def few_blocks(program: Program, roles: Roles) -> Mask:
    """Reductions of columns that leave most of a GPU idle, and what only these read.

    XLA gives them no work that others do as well. A block reduces 32 columns. The bounds were found by
    compiling norms for H100: arrays of 64 to 4,096 rows, 2 to 1,024 blocks.
    """
    rows, reduced = ReductionDims.of(program.dims)
    columns = (roles.role == RowRole.REDUCE) & ((program.flags & Flag.COLUMNS) != 0)
    few: Mask = columns & (rows <= 32 * MOST_BLOCKS) & (reduced >= LEAST_REDUCED)
    if few.any():
        first, readers = consumers(program)
        alone = np.isin(roles.role, (RowRole.ELEMENT, RowRole.VIEW)) & (np.diff(first) > 0)
        for row in np.flatnonzero(alone)[::-1].tolist():
            few[row] = few[readers[first[row] : first[row + 1]]].all()
    return few


def written_by_index(program: Program, roles: Roles) -> Mask:
    """Arrays that scatters write into, seen in any shape: a kernel that scatters does not compute them."""
    found = np.zeros(len(program), dtype=np.bool_)
    scatters = is_any(program, OpClass.SCATTER) & (roles.role == RowRole.UPDATE)
    found[program.alias[scatters & (program.alias >= 0)]] = True
    for row in np.flatnonzero((roles.role == RowRole.VIEW) & found.any())[::-1].tolist():
        found[program.dependencies(row)] |= found[row]
    return found


def stored_pads(program: Program, roles: Roles) -> Mask:
    """Pads of what is stored, which readers can pad themselves: what one pad alone reads is not."""
    found = np.zeros(len(program), dtype=np.bool_)
    uses = use_counts(program)
    for row in np.flatnonzero(
        is_any(program, OpClass.PAD) & (program.kind == Kind.COMPUTE)
    ).tolist():
        padded = max(program.dependencies(row).tolist(), key=lambda d: program.result_bytes[d])
        found[row] = roles.role[padded] != RowRole.ELEMENT or uses[padded] > 1
    return found


#: A scope whose name begins so is one kernel, such as `jax.named_scope("kernel.softmax")`.
PREFIX = "kernel."


def named_kernels(program: Program, honoured: bool = True) -> Int64s:
    """For each row, a number of the named kernel that it is part of; 0 for none.

    Rows of one phase and one scope up to `kernel.NAME` have one number. Not `honoured`: none has.
    """
    names = [kernel_prefix(text) for text in program.strings]
    if not honoured or not any(names):
        return np.zeros(len(program), dtype=np.int64)
    table = {name: 1 + i for i, name in enumerate(dict.fromkeys(filter(None, names)))}
    number = np.array([table.get(name, 0) for name in names], dtype=np.int64)[program.scope]
    return np.where(number, number * 16 + program.phase, 0)


def compiled_apart(program: Program, compiled: bool) -> Int64s:
    """For each row the compiled call that it is part of; 0 for all if nobody asks for these."""
    if not compiled:
        return np.zeros(len(program), dtype=np.int64)
    return program.compiled.astype(np.int64)


def kernel_prefix(scope: str) -> str:
    """A scope up to its first component that names a kernel; "" without one."""
    parts = scope.split("/")
    for at, part in enumerate(parts):
        if part.startswith(PREFIX):
            return "/".join(parts[: at + 1])
    return ""
