"""Rules of collectives and messages: members, payload, result, pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.mesh import AxisRef
from flint.ir.op_class import Collective, OpClass
from flint.ir.program import Flag, Int64s, Kind, Program
from flint.tools.share.rules.view import BrokenRule, ProgramView, Rule, Told, is_split

_REDUCE = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)


def _is(view: ProgramView, *kinds: Collective) -> Mask:
    found = np.isin(view.program.collective, kinds)
    return np.asarray(found & (view.program.kind == Kind.COLLECTIVE))


def group_sizes(program: Program) -> Int64s:
    """Members of the group of each row; 1 without a group."""
    sizes = [g.size(program.mesh) for g in program.groups]
    return np.array([*sizes, 1], dtype=np.int64)[program.group]


def _axes_exist(view: ProgramView) -> Told:
    """Axes of groups and routes are whole or parts of the mesh's, each longer than 1 and once."""
    p = view.program
    good = [_are_long(p, g.axes) and g.size(p.mesh) > 1 for g in p.groups]
    routes = [_are_long(p, r.axes) for r in p.routes]
    holds = np.array([*good, True], dtype=np.bool_)[p.group]
    holds &= np.array([*routes, True], dtype=np.bool_)[p.route]
    return Told((p.group >= 0) | (p.route >= 0), holds)


def _are_long(program: Program, axes: Sequence[AxisRef]) -> bool:
    return all(program.mesh.axis_size(a) > 1 for a in axes) and len(set(axes)) == len(axes)


def _payload(view: ProgramView) -> Told:
    """What a collective sends is what it reads."""
    p = view.program
    about = (p.kind == Kind.COLLECTIVE) & (p.comm_bytes > 0)
    return Told(about, p.comm_bytes == p.operand_bytes)


def _reads_payload(view: ProgramView) -> Told:
    p = view.program
    about = (p.kind == Kind.COLLECTIVE) & view.all_plain & (view.arity > 0) & ~view.launched
    about &= ~view.flagged(Flag.IN_PLACE) & ~_is(view, Collective.PERMUTE)
    whole = view.type_bytes[view.read] == p.comm_bytes[view.owner]
    read = view.summed(view.type_bytes)
    # A dimension of fewer elements than devices is gathered as a sum of arrays of its whole size.
    handed = _is(view, Collective.ALL_REDUCE) & (read < p.comm_bytes)
    handed &= read * group_sizes(p) >= p.comm_bytes
    return Told(about, view.some(whole) | (read == p.comm_bytes) | handed)


def _result(view: ProgramView) -> Told:
    """Bytes of a result by kind: as many as sent, or a group's as many, or a group's part.

    Where a group does not divide a dimension, parts are rounded up. What is gathered of a row with
    several results (the largest value and its place) is reduced again by those who read it.
    """
    p = view.program
    size = group_sizes(p)
    same = _is(view, Collective.ALL_REDUCE, Collective.PERMUTE, Collective.BROADCAST)
    gathers = _is(view, Collective.ALL_GATHER)
    scatters = _is(view, Collective.REDUCE_SCATTER)
    holds = np.where(same, p.result_bytes == p.comm_bytes, True)
    again = ~view.all_plain & (p.result_bytes == p.comm_bytes)
    holds &= ~gathers | again | (p.result_bytes == p.comm_bytes * size)
    holds &= ~scatters | (p.result_bytes * size == p.comm_bytes)
    for row in np.flatnonzero((gathers | scatters) & ~holds).tolist():
        holds[row] = _is_rounded(view, row, int(size[row]), gathers=bool(gathers[row]))
    return Told(same | gathers | scatters, holds)


def _is_rounded(view: ProgramView, row: int, size: int, *, gathers: bool) -> bool:
    """Whether one dimension of an operand is that of the result over the group, rounded up."""
    p = view.program
    own = p.shapes[p.shape[row]]
    for read in p.dependencies(row).tolist():
        other = p.shapes[p.shape[read]]
        whole, part = (own, other) if gathers else (other, own)
        if len(whole) == len(part) and is_split(whole, part, size):
            return True
    return False


def _types(view: ProgramView) -> Told:
    p = view.program
    about = (p.kind == Kind.COLLECTIVE) & view.all_plain & (view.arity > 0) & ~view.launched
    same = p.dtype[view.read] == p.dtype[view.owner]
    return Told(about & ~view.flagged(Flag.IN_PLACE), view.some(same))


def _reads_something(view: ProgramView) -> Told:
    about = np.isin(view.program.kind, (Kind.COLLECTIVE, Kind.SEND))
    return Told(about, np.diff(view.program.dep_start) > 0)


def _reduces(view: ProgramView) -> Told:
    p = view.program
    return Told(p.kind == Kind.COLLECTIVE, _is(view, *_REDUCE) == (p.op != OpClass.MOVE))


def _sends_read(view: ProgramView) -> Told:
    p = view.program
    about = (p.kind == Kind.SEND) & view.all_plain & (view.arity > 0)
    large = view.largest(view.type_bytes) >= p.comm_bytes
    return Told(about, large)


def _receives(view: ProgramView) -> Told:
    p = view.program
    return Told(p.kind == Kind.RECV, p.result_bytes == p.comm_bytes)


RULES = (
    Rule(
        "axes",
        "collectives run over axes of the mesh that are longer than 1, each once",
        _axes_exist,
    ),
    Rule("payload", "a collective sends what it reads", _payload),
    Rule("payload-operand", "the payload is an operand of the collective", _reads_payload),
    Rule(
        "collective-result",
        "a gather's result is the group's, a scatter's its part, others' as sent",
        _result,
    ),
    Rule("collective-types", "a collective keeps the type of an operand", _types),
    Rule("communicates-something", "what is sent was computed or given", _reads_something),
    Rule("reduces", "all-reduce and reduce-scatter reduce, others move", _reduces),
    Rule("sends", "a message is no larger than what it is read from", _sends_read),
    Rule("receives", "what is received is as large as the message", _receives),
)


def broken_messages(programs: Sequence[Program]) -> list[BrokenRule]:
    """Channels whose SEND and RECV rows do not agree in bytes, route, type and runs of a step."""
    found: dict[int, tuple[list[_End], list[_End]]] = {}
    for number, p in enumerate(programs):
        rows = np.flatnonzero((p.kind == Kind.SEND) | (p.kind == Kind.RECV))
        for row in rows.tolist():
            ends = found.setdefault(int(p.channel[row]), ([], []))
            ends[int(p.kind[row] == Kind.RECV)].append((number, row))
    broken = []
    for channel, (sends, receives) in sorted(found.items()):
        told = {_message(programs, end) for end in (*sends, *receives)}
        number, row = (sends or receives)[0]
        if not sends or not receives:
            what = "received and never sent" if receives else "sent and never received"
            broken.append(BrokenRule("messages", number, row, f"channel {channel} is {what}"))
        elif len(told) > 1:
            what = f"ends of channel {channel} differ in bytes, route or runs"
            broken.append(BrokenRule("messages", number, row, what))
    return broken


_End = tuple[int, int]


def _message(programs: Sequence[Program], end: _End) -> tuple[object, ...]:
    program, row = programs[end[0]], end[1]
    route = program.routes[int(program.route[row])]
    return int(program.comm_bytes[row]), route, int(program.trips[row])
