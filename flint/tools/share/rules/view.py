"""A program as rules look at it: sizes of types, and what holds for operands of a row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.columns import bytes_of_type, carried, is_any, type_bytes, yielded
from flint.ir.op_class import ELEMENTWISE, Classes, OpClass
from flint.ir.program import Collective, Flag, Int64s, Kind, Phase, Program

Shape: TypeAlias = tuple[int, ...]


class ProgramView:
    """Columns that rules share, each made when it is first asked for.

    "Rows" are masks or numbers by row, "links" by dependency: entry i of `owner` reads entry i of
    `read`. Dependencies that only order rows are no links (`_waits`). A link is `plain` if the row
    that is read has one result, whose type is known.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        owner, read = program.dep_owner.astype(np.int64), program.deps.astype(np.int64)
        reads = ~_waits(program, owner, read)
        self.owner: Int64s = owner[reads]
        self.read: Int64s = read[reads]

    def __len__(self) -> int:
        return len(self.program)

    # rows -----------------------------------------------------------------------------------------

    @cached_property
    def elements(self) -> Int64s:
        """Elements of each first result, of shapes that fit."""
        sizes = [min(math.prod(s), 1 << 62) for s in self.program.shapes]
        return np.array(sizes, dtype=np.int64)[self.program.shape]

    @cached_property
    def rank(self) -> Int64s:
        """Dimensions of each first result."""
        return np.array([len(s) for s in self.program.shapes], dtype=np.int64)[self.program.shape]

    @cached_property
    def type_bytes(self) -> Int64s:
        """Bytes of each first result by its type; 0 where the type is not known."""
        return type_bytes(self.program)

    @cached_property
    def is_typed(self) -> Mask:
        """Rows whose dtype is one that Flint knows the width of."""
        widths = [bytes_of_type(d, (8,)) > 0 for d in self.program.dtypes]
        return np.asarray(np.array([*widths, False], dtype=np.bool_)[self.program.dtype])

    @cached_property
    def is_complex(self) -> Mask:
        """Rows of complex numbers, as any producer names their type."""
        names = [d in ("complex64", "complex128", "c64", "c128") for d in self.program.dtypes]
        return np.asarray(np.array([*names, False], dtype=np.bool_)[self.program.dtype])

    @cached_property
    def is_plain(self) -> Mask:
        """Rows with one result of a known type, whole or written in part."""
        return self.is_typed & (self.program.result_bytes <= self.type_bytes)

    @cached_property
    def arity(self) -> Int64s:
        """How many rows each row reads."""
        return np.bincount(self.owner, minlength=len(self))

    @cached_property
    def exchanges(self) -> Mask:
        """Rows that read what neighbors send of a value: a border, or all beside the value."""
        p = self.program
        sent = _borders(p)[p.deps] | _beside(
            p, p.dep_owner.astype(np.int64), p.deps.astype(np.int64)
        )
        found = np.zeros(len(self), dtype=np.bool_)
        found[p.dep_owner[sent]] = True
        return found

    @cached_property
    def works(self) -> Mask:
        """Rows that compute."""
        return np.asarray(self.program.kind == Kind.COMPUTE)

    @cached_property
    def is_carried(self) -> Mask:
        """Rows that stand for values of a loop."""
        return carried(self.program)

    @cached_property
    def is_yielded(self) -> Mask:
        """Rows whose values a loop takes to its next iteration."""
        return yielded(self.program)

    @cached_property
    def readers(self) -> Int64s:
        """How many rows depend on each row."""
        return np.bincount(self.program.deps, minlength=len(self))

    def of(self, classes: Classes | OpClass) -> Mask:
        """Rows of these classes that compute or are values: no collectives, which reduce."""
        return np.asarray(is_any(self.program, classes) & (self.program.kind <= Kind.COMPUTE))

    def flagged(self, flag: Flag) -> Mask:
        """Rows with a flag."""
        return np.asarray((self.program.flags & flag) != 0)

    # links ----------------------------------------------------------------------------------------

    @cached_property
    def plain(self) -> Mask:
        """Links to rows with one result of a known type.

        The program of a pipeline reads one microbatch of its batch at a time, without a row for it.
        """
        p = self.program
        batch = (p.kind == Kind.PARAMETER) & (p.phase == Phase.UNKNOWN) & self.is_pipelined
        return np.asarray((self.is_plain & ~batch)[self.read])

    @cached_property
    def is_pipelined(self) -> bool:
        """Whether the program is that of pipeline stages: values of microbatches wait in stashes."""
        return bool((self.program.op == OpClass.TURN).any())

    @cached_property
    def launched(self) -> Mask:
        """Rows that a framework launched: dependencies order streams as well, and one row may be
        a list of operations."""
        return self.flagged(Flag.LAUNCHED)

    @cached_property
    def all_plain(self) -> Mask:
        """Rows all of whose operands are plain."""
        return self.every(self.plain)

    def every(self, link: Mask) -> Mask:
        """Rows all of whose links are as said; a row that reads nothing is."""
        bad = np.zeros(len(self), dtype=np.bool_)
        bad[self.owner[~link]] = True
        return ~bad

    def some(self, link: Mask) -> Mask:
        """Rows of whose links one or more is as said."""
        good = np.zeros(len(self), dtype=np.bool_)
        good[self.owner[link]] = True
        return good

    def summed(self, values: Int64s) -> Int64s:
        """For each row, the sum of what its operands have."""
        found = np.zeros(len(self), dtype=np.int64)
        np.add.at(found, self.owner, values[self.read])
        return found

    def largest(self, values: Int64s) -> Int64s:
        """For each row, the largest of what its operands have; 0 without operands."""
        found = np.zeros(len(self), dtype=np.int64)
        np.maximum.at(found, self.owner, values[self.read])
        return found

    def related(self, holds: Callable[[Shape, Shape], bool], links: Mask) -> Mask:
        """Of `links`, those for whose shapes (of the operand, of the result) the relation holds."""
        shapes, width = self.program.shapes, len(self.program.shapes)
        at = np.flatnonzero(links)
        keys = self.program.shape[self.read[at]].astype(np.int64) * width
        keys += self.program.shape[self.owner[at]]
        pairs, which = np.unique(keys, return_inverse=True)
        told = [holds(shapes[key // width], shapes[key % width]) for key in pairs.tolist()]
        found = np.zeros(len(links), dtype=np.bool_)
        found[at] = np.array(told, dtype=np.bool_)[which.reshape(-1)]
        return found

    @cached_property
    def links(self) -> Mask:
        """All links."""
        return np.ones(len(self.read), dtype=np.bool_)

    def links_of(self, rows: Mask) -> Mask:
        """Links of rows."""
        return rows[self.owner]


def _waits(program: Program, owner: Int64s, read: Int64s) -> Mask:
    """Dependencies that order rows and read nothing.

    They are on rows without a value (ends of units of a pipeline), and on what was written into an
    array that the row reads as well (a message that is received into it). What a partitioned
    operation needs of other devices (borders of a value, or all of it) comes beside the value, which
    is read as well.
    """
    empty = (program.op == OpClass.TURN) | (program.result_bytes == 0)
    empty |= (program.kind == Kind.RECV) & ((program.flags & Flag.IN_PLACE) != 0)
    empty |= _borders(program)
    keys = owner * max(len(program), 1) + read
    alias = program.alias[read].astype(np.int64)
    into = (program.flags[read] & Flag.IN_PLACE) != 0
    again = np.isin(owner * max(len(program), 1) + alias, keys) & into & (alias >= 0)
    both = is_any(program, ELEMENTWISE | {OpClass.CONCATENATE}) | (program.kind > Kind.COMPUTE)
    return np.asarray(empty[read] | again | _beside(program, owner, read) & ~both[owner])


def _borders(program: Program) -> Mask:
    """Permutations of a part of a value: what neighbors send of it."""
    moves = program.collective == Collective.PERMUTE
    return np.asarray(moves & (program.result_bytes < type_bytes(program)))


def _beside(program: Program, owner: Int64s, read: Int64s) -> Mask:
    """Links to what other devices send of a value that the row reads as well: border or whole.

    Of element by element operations and concatenations both may be operands.
    """
    sent = np.isin(program.collective, (Collective.PERMUTE, Collective.ALL_GATHER))
    sent &= (np.diff(program.dep_start) > 0) & (program.kind == Kind.COLLECTIVE)
    source = np.zeros(len(program), dtype=np.int64)
    source[sent] = program.deps[program.dep_start[:-1][sent]]
    keys = owner * max(len(program), 1) + read
    beside = np.isin(owner * max(len(program), 1) + source[read], keys)
    return np.asarray(sent[read] & beside)


# A rule: which rows it is about, and for which of those it holds.


@dataclass(frozen=True, slots=True)
class Told:
    """What a rule says of a program: the rows that it is about, and those for which it holds."""

    about: Mask
    holds: Mask

    @property
    def broken(self) -> Mask:
        """Rows that break the rule."""
        return self.about & ~self.holds


@dataclass(frozen=True, slots=True)
class Rule:
    """What each row of a captured program keeps, in words and as a function of the program."""

    name: str
    says: str
    tell: Callable[[ProgramView], Told]


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A row that breaks a rule: `row` of `program`, -1 for what is of no single row."""

    rule: str
    program: int
    row: int
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


# Relations between the shape of an operand and that of a result, as plain functions.


def is_equal(operand: Shape, result: Shape) -> bool:
    """The same dimensions."""
    return operand == result


def spreads(operand: Shape, result: Shape) -> bool:
    """Numpy's broadcasting of the operand gives the result: aligned at the end, 1 or equal."""
    if len(operand) > len(result):
        return False
    tail = result[len(result) - len(operand) :]
    return all(a in (1, b) for a, b in zip(operand, tail, strict=True))


def is_broadcast(operand: Shape, result: Shape) -> bool:
    """The operand's dimensions other than 1 are among the result's, in their order."""
    left = iter(result)
    return all(any(size == d for d in left) for size in operand if size != 1)


def has_equal_elements(operand: Shape, result: Shape) -> bool:
    """As many elements."""
    return math.prod(operand) == math.prod(result)


def is_permuted(operand: Shape, result: Shape) -> bool:
    """The same dimensions in any order."""
    return Counter(operand) == Counter(result)


def is_within(operand: Shape, result: Shape) -> bool:
    """As many dimensions, none longer than the operand's."""
    return len(operand) == len(result) and all(r <= o for o, r in zip(operand, result, strict=True))


def is_around(operand: Shape, result: Shape) -> bool:
    """As many dimensions, none shorter than the operand's."""
    return is_within(result, operand)


def is_padded(operand: Shape, result: Shape) -> bool:
    """As many dimensions: all at least the operand's, or, where padding is negative, at most."""
    return is_around(operand, result) or is_within(operand, result)


def is_joined(operand: Shape, result: Shape) -> bool:
    """As many dimensions; all but one are equal, and that one is not longer than the result's."""
    if len(operand) != len(result):
        return False
    other = [(o, r) for o, r in zip(operand, result, strict=True) if o != r]
    return len(other) <= 1 and all(o <= r for o, r in other)


def is_split(whole: Shape, part: Shape, size: int) -> bool:
    """One dimension of the part is that of the whole over `size`, rounded up; others are equal.

    A dimension of 1 stays 1.
    """
    if whole == part:
        return 1 in whole
    other = [(w, p) for w, p in zip(whole, part, strict=True) if w != p]
    return len(other) == 1 and other[0][1] == -(-other[0][0] // size)
