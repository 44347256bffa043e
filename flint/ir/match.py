"""Patterns of rows: what a row is, and what the rows that it reads are.

    SUM = Op(OpClass.ADD, is_all_reduce, read_once=True)
    rewrite(program, Op(OpClass.ADD, computes, reads=(SUM, SUM)), rule)

calls `rule(edit, add, first, second)` for each addition of two all-reduces that nothing else reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from flint.ir.columns import Mask, is_any
from flint.ir.edit import Editor
from flint.ir.op_class import Classes, OpClass
from flint.ir.program import Program

#: Changes what it is given: an editor, the row that matched, and those that it reads. False if
#: more is needed than the pattern says, and nothing was done.
Rule = Callable[..., bool]

#: Of rows that may be anything.
ANY: Classes = frozenset(OpClass)


@dataclass(frozen=True)
class Op:
    """Rows of some classes, that `where` allows, and the patterns of all that they read, in order.

    What is read lies in the region of its reader; with `read_once`, the row has one reader, and no
    loop takes it on. Without `reads`, a row may read anything.
    """

    classes: Classes | OpClass
    where: Callable[[Program], Mask] | None = None
    reads: tuple[Op, ...] = ()
    read_once: bool = False


def rewrite(program: Program, pattern: Op, rule: Rule) -> Program:
    """The program after `rule` was applied to each match, in program order.

    The rows of a match are looked at again at once: with what they read then, or with the columns
    of another row, they may match again. Rows whose columns are set are left for the next time.
    """
    edit, masks = Editor(program), _masks(program, pattern)
    done = False
    for first in np.flatnonzero(masks[pattern]).tolist():
        pending = [first]
        while pending:
            rows = tuple(_match(edit, masks, pattern, pending.pop()))
            if rows and rule(edit, *rows):
                done = True
                pending += [row for row in rows if edit.stays(row)]
    return edit.build().program if done else program


def _masks(program: Program, pattern: Op) -> dict[Op, Mask]:
    """For each part of a pattern, the rows that it may be."""
    mask = is_any(program, pattern.classes)
    found = {pattern: mask if pattern.where is None else mask & pattern.where(program)}
    for inner in pattern.reads:
        found |= _masks(program, inner)
    return found


def _match(edit: Editor, masks: dict[Op, Mask], pattern: Op, row: int) -> Iterator[int]:
    """The row and those that it reads if all match, else nothing."""
    if not edit.stays(row) or edit.is_new(row) or not masks[pattern][edit.like(row)]:
        return
    if pattern.read_once and edit.uses(row) != 1:
        return
    reads = edit.reads(row)
    if not pattern.reads:
        yield row
        return
    region = edit.program.region
    if len(reads) != len(pattern.reads) or any(region[r] != region[row] for r in reads):
        return
    inner = [tuple(_match(edit, masks, p, r)) for p, r in zip(pattern.reads, reads, strict=True)]
    if all(inner):
        yield row
        for rows in inner:
            yield from rows
