"""Rules of single values: types, bytes of results, who reads them."""

from __future__ import annotations

import numpy as np

from flint.ir.op_class import ATTENTION, MERGED, REDUCTION, OpClass
from flint.ir.program import Collective, Flag, Kind
from flint.passes.work.formulas import NO_ARITHMETIC
from flint.tools.share.rules.view import ProgramView, Rule, Told

#: Classes of rows that can have several results: then `result_bytes` are those of all.
SEVERAL_RESULTS = (
    REDUCTION
    | ATTENTION
    | MERGED
    | frozenset(
        {
            OpClass.UNKNOWN,
            OpClass.OTHER,
            OpClass.VALUE,
            OpClass.JOIN,
            OpClass.SAVED,
            OpClass.STASH,
            OpClass.RANDOM,
            OpClass.SLICE,
            OpClass.UNPACK,
            OpClass.SCATTER,
            OpClass.CONVOLUTION_BACKWARD,
            OpClass.SORT,
            OpClass.TOP_K,
            OpClass.SOLVE,
            OpClass.CALL,
            OpClass.DECLARED,
            OpClass.COMPILED,
            OpClass.OPTIMIZER,
            OpClass.DROPOUT,
        }
    )
)
#: Classes of rows that may write a part of an array.
IN_PART = frozenset({OpClass.UPDATE_SLICE, OpClass.SCATTER})
#: Rows without a value of their own.
NO_VALUE = frozenset({OpClass.RESULT, OpClass.TURN, OpClass.EFFECT, OpClass.HOST})


def _types(view: ProgramView) -> Told:
    p = view.program
    about = (p.result_bytes > 0) & (p.kind != Kind.SEND)
    return Told(about, view.is_typed)


def _result_bytes(view: ProgramView) -> Told:
    p = view.program
    several = view.of(SEVERAL_RESULTS) | (p.kind == Kind.COLLECTIVE) | view.launched
    in_part = view.of(IN_PART) | view.flagged(Flag.IN_PLACE)
    in_part |= p.collective == Collective.PERMUTE
    about = view.is_typed & ~view.of(NO_VALUE) & (p.kind != Kind.SEND)
    holds = p.result_bytes == view.type_bytes
    holds |= several & (p.result_bytes > view.type_bytes)
    holds |= in_part & (p.result_bytes < view.type_bytes) & (p.result_bytes > 0)
    return Told(about, holds)


def _used(view: ProgramView) -> Told:
    """What a framework launches runs, whether the program reads it or the host."""
    p = view.program
    about = (p.kind == Kind.COMPUTE) & ~view.of(NO_VALUE) & ~view.launched & (not view.is_pipelined)
    return Told(about, (view.readers > 0) | view.is_yielded | view.flagged(Flag.IN_PLACE))


def _no_flops(view: ProgramView) -> Told:
    about = view.of(NO_ARITHMETIC - {OpClass.RANDOM, OpClass.SCATTER}) & ~view.launched
    return Told(about, view.program.flops == 0)


def _views(view: ProgramView) -> Told:
    p = view.program
    about = view.flagged(Flag.VIEW)
    return Told(about, (p.operand_bytes == 0) & (p.alias >= 0) & (p.flops == 0))


def _in_place(view: ProgramView) -> Told:
    """Frameworks write parts of buckets, and what is received is a part."""
    p = view.program
    about = view.flagged(Flag.IN_PLACE) & (p.alias >= 0) & view.works & ~view.launched
    alias = np.where(p.alias >= 0, p.alias, 0)
    same = (p.dtype[alias] == p.dtype) & (view.elements[alias] == view.elements)
    return Told(about & view.is_typed & view.is_plain[alias], same)


def _parameters_first(view: ProgramView) -> Told:
    p = view.program
    is_parameter = p.kind == Kind.PARAMETER
    return Told(is_parameter, np.cumsum(p.kind >= Kind.COMPUTE) == 0)


def _sources(view: ProgramView) -> Told:
    p = view.program
    about = (p.kind == Kind.PARAMETER) | view.of(frozenset({OpClass.CONSTANT, OpClass.IOTA}))
    return Told(about, (view.arity == 0) & (p.operand_bytes == 0))


RULES = (
    Rule("types", "every value has a type whose width is known", _types),
    Rule(
        "result-bytes",
        "bytes of a result are its elements times the width of its type",
        _result_bytes,
    ),
    Rule("used", "what a row computes is read, goes on in a loop, or is an output", _used),
    Rule("no-flops", "what copies, makes or converts elements does no arithmetic", _no_flops),
    Rule("views", "a view moves no bytes and shares the storage of what it sees", _views),
    Rule("in-place", "what is written in place has the type of what it is written to", _in_place),
    Rule("parameters-first", "parameters come before all rows that work", _parameters_first),
    Rule("sources", "parameters, constants and ranges read nothing", _sources),
)
