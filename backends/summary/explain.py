"""Why a program communicates: one collective, or everything in a source scope, in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, NotRequired

import numpy as np
from typing_extensions import TypedDict

from flint.errors import FlintError, nearest
from flint.io.documents import as_object
from flint.ir.op_class import LAYOUT, OpClass
from flint.ir.program import Int64s, Kind, Program, RegionKind, Row
from flint.text import format_bytes, format_count, format_flops, plural

#: Producers and consumers shown per collective.
_SHOWN = 8
#: Where a cause (`[..] -> [..] for stablehlo.dot_general #sdy.op_sharding_rule<..>`) is broken.
_CAUSE_PARTS = re.compile(r"\n| (?=(?:for|after) \w+\.\w)| (?=#sdy\.)")
#: Rows through which an element of a parameter passes unchanged.
_MOVES = LAYOUT | {OpClass.DYNAMIC_SLICE, OpClass.CONVERT}


class ExplainDocument(TypedDict):
    """Why a program communicates; exactly one of the three is there."""

    schema: Literal["flint.explain/1"]  #: Kind and version of this document.
    collectives: NotRequired[list[Explanation]]
    """All communication, in program order (without --collective and --scope)."""
    collective: NotRequired[Explanation]  #: The one that was asked for (--collective).
    scope: NotRequired[ScopeExplanation]  #: A part of the program (--scope).


@dataclass(frozen=True)
class Value:
    """A row as an operand or reader of another."""

    row: int  #: Its number in the program.
    opcode: str  #: What it is.
    type: str  #: Element type and shape on one device.
    bytes: int  #: Size of it on one device, in bytes.
    name: str  #: Of a parameter, its path in the arguments.
    sharding: str  #: How its dimensions lie on the mesh; "" where that is not known.
    scope: str  #: Its scope in the source.
    location: str  #: File and line of the user's source.

    def __str__(self) -> str:
        where = "  ".join(p for p in (self.sharding, self.scope, self.location) if p)
        what = f"parameter {self.name}" if self.name else self.opcode
        return f"%{self.row} {what} : {self.type}" + (f"  {where}" if where else "")


@dataclass(frozen=True)
class Loop:
    """A loop around a row."""

    name: str  #: Its name, where it has one.
    trip_count: int  #: How often it runs.
    location: str  #: File and line of the user's source.


@dataclass(frozen=True)
class Explanation:
    """One communication row: what moves, between whom, how often, why, and for whom."""

    number: int  #: Which communication row of the program it is, from 0: the N of --collective.
    row: int  #: Its number in the program.
    opcode: str  #: What it is called.
    collective: str  #: Kind: all_reduce, all_gather, ..., or send or recv.
    over: str  #: Mesh axes, or the route of a message.
    group_size: int  #: Devices of a group.
    groups: int  #: Groups on the mesh; 0 for messages.
    type: str  #: Element type and shape of its result on one device.
    payload_bytes: int  #: Bytes that one device puts in, each time.
    executions: int  #: How often a step runs it.
    phase: str  #: forward, backward, remat, optimizer, prefill, decode or unknown.
    scope: str  #: Its scope in the source.
    location: str  #: File and line of the user's source.
    cause: tuple[str, ...]
    """Why: the change of a sharding and the rule that asked for it, as the partitioner says it."""
    loops: tuple[Loop, ...]  #: Loops around it, outermost first.
    parameters: tuple[str, ...]
    """Arguments of the step whose elements move, sliced or rearranged but not computed with."""
    operands: tuple[Value, ...]  #: What it reads.
    consumers: tuple[Value, ...]  #: What reads its result, the first 8.
    in_branch: bool  #: Whether it runs only if a branch is taken.

    def to_json(self) -> dict[str, Any]:
        """Exact numbers, JSON-able."""
        return as_object(self)

    def to_text(self) -> str:
        """A paragraph for people."""
        facts = [
            ("over", self._participants()),
            ("payload", f"{_exact(self.payload_bytes)} from each rank"),
            ("result", f"{self.type} on each rank"),
            ("count", self._count()),
            ("scope", self.scope),
            ("source", self.location),
            ("phase", self.phase if self.phase != "unknown" else ""),
        ]
        lines = [f"#{self.number} {self.collective}  (%{self.row} {self.opcode})"]
        lines += [f"  {label:<9} {text}" for label, text in facts if text]
        lines += _block("because", self.cause)
        lines += _block("moves", self.parameters)
        lines += _block("operands", map(str, self.operands))
        lines += _block("read by", map(str, self.consumers) if self.consumers else ["nobody"])
        return "\n".join(lines)

    def _participants(self) -> str:
        if not self.groups:
            return self.over
        return f"{self.over}: {plural(self.groups, 'group')} of {plural(self.group_size, 'rank')}"

    def _count(self) -> str:
        loops = ", ".join(f"{loop.name or 'loop'} x{loop.trip_count}" for loop in self.loops)
        total = f"{_exact(self.payload_bytes * self.executions)} per step"
        branch = ", if its branch is taken" if self.in_branch else ""
        return f"{self.executions}{f' ({loops})' if loops else ''}{branch}, {total}"


@dataclass(frozen=True)
class ScopeExplanation:
    """What the rows of the scopes that match a pattern do in one step, on one device."""

    pattern: str  #: The pattern of --scope.
    scopes: tuple[str, ...]  #: Scopes that match it.
    ops: int  #: Operations, with the trip counts of loops.
    flops: int  #: Floating point operations of a step on one device.
    result_bytes: int  #: Bytes written in a step on one device.
    phases: dict[str, int]  #: Operations by phase.
    locations: tuple[str, ...]  #: Files and lines of the user's source.
    collectives: tuple[Explanation, ...]  #: The communication among them.

    def to_json(self) -> dict[str, Any]:
        """Exact numbers, JSON-able."""
        return as_object(self)

    def to_text(self) -> str:
        """A paragraph, then one per collective."""
        phases = ", ".join(f"{format_count(n)} {phase}" for phase, n in self.phases.items())
        head = [
            f"scope {self.pattern}",
            f"  {'matches':<9} {_shortened(self.scopes)}",
            f"  {'ops':<9} {format_count(self.ops)} per step ({phases})",
            f"  {'work':<9} {format_flops(self.flops)}, {_exact(self.result_bytes)} written",
            f"  {'source':<9} {_shortened(self.locations)}",
            f"  {'moves':<9} {plural(len(self.collectives), 'communication op')}",
        ]
        return "\n\n".join(["\n".join(head), *(c.to_text() for c in self.collectives)])


def communication_rows(program: Program) -> list[int]:
    """Rows that communicate, in program order; their positions are the numbers of `explain`."""
    return [int(i) for i in np.flatnonzero(program.kind >= Kind.COLLECTIVE)]


def explain_collective(program: Program, number: int) -> Explanation:
    """Explain communication row `number`, counted from 0. Raises FlintError FL306 if none."""
    rows = communication_rows(program)
    if not 0 <= number < len(rows):
        known = f"they are 0 to {len(rows) - 1}" if rows else "the program has none"
        raise FlintError("FL306", f"there is no collective {number}", help=known)
    return _explain(program, number, rows[number])


def list_collectives(program: Program) -> list[Explanation]:
    """Explain every communication row, in program order."""
    return [_explain(program, n, row) for n, row in enumerate(communication_rows(program))]


def explain_scope(program: Program, pattern: str) -> ScopeExplanation:
    """Explain all rows whose scope matches `pattern`.

    A pattern with `*` or `?` must match the whole scope; one without matches consecutive parts of
    it (`attention/wq` is in `layers/attention/wq/dot`). Raises FlintError FL306, with the nearest
    scope, if nothing matches.
    """
    matches = _matcher(pattern)
    chosen = np.array([bool(s) and matches(s) for s in program.strings], dtype=np.bool_)
    inside = chosen[program.scope]
    if not inside.any():
        scopes = [program.strings[i] for i in sorted({int(s) for s in program.scope})]
        raise FlintError(
            "FL306",
            f"no scope matches '{pattern}'{nearest(pattern, _candidates(scopes, pattern))}",
            help="`flint explain PATH --list` shows scopes of collectives",
        )
    rows = np.flatnonzero(inside)
    working = rows[program.kind[rows] >= Kind.COMPUTE]
    trips = program.trips
    return ScopeExplanation(
        pattern=pattern,
        scopes=_distinct(program, program.scope, rows),
        ops=int(trips[working].sum()),
        flops=_total(program.flops[rows], trips[rows]),
        result_bytes=_total(program.result_bytes[working], trips[working]),
        phases=_phases(program, working),
        locations=_distinct(program, program.location, rows),
        collectives=tuple(
            _explain(program, n, row)
            for n, row in enumerate(communication_rows(program))
            if inside[row]
        ),
    )


def _explain(program: Program, number: int, at: int) -> Explanation:
    row = program.row(at)
    group_size = row.group.size(program.mesh) if row.group is not None else 0
    regions = _regions_around(program, row.region)
    return Explanation(
        number=number,
        row=at,
        opcode=row.opcode,
        collective=_collective_name(row),
        over=str(row.group if row.group is not None else row.route),
        group_size=group_size,
        groups=_group_count(program, row),
        type=_type(row),
        payload_bytes=row.comm_bytes,
        executions=int(program.trips[at]),
        phase=row.phase.name.lower(),
        scope=row.scope,
        location=row.location,
        cause=tuple(line for line in _CAUSE_PARTS.split(row.cause) if line),
        loops=tuple(
            Loop(r.name, r.trip_count, r.location) for r in regions if r.kind is RegionKind.LOOP
        ),
        parameters=_parameters(program, at),
        operands=_through_values(program, at, _producers),
        consumers=_through_values(program, at, _readers),
        in_branch=any(r.kind is RegionKind.BRANCH for r in regions),
    )


def _collective_name(row: Row) -> str:
    name = row.collective.name if row.kind is Kind.COLLECTIVE else row.kind.name
    return name.lower()


def _group_count(program: Program, row: Row) -> int:
    if row.group is None:
        return 0
    return len(row.group.ranks) or program.mesh.size // program.mesh.group_size(row.group.axes)


def _regions_around(program: Program, region: int) -> list[Any]:
    around = []
    while region >= 0:
        around.append(program.regions[region])
        region = program.regions[region].parent
    return around[::-1]


def _producers(program: Program, row: int) -> list[int]:
    return [int(d) for d in program.dependencies(row)]


def _readers(program: Program, row: int) -> list[int]:
    readers = {int(r) for r in program.dep_owner[program.deps == row]}
    for region in program.regions:
        readers |= {carried for carried, produced in region.carries if produced == row}
    return sorted(readers)


def _through_values(
    program: Program, start: int, step: Callable[[Program, int], list[int]]
) -> tuple[Value, ...]:
    """Rows that `step` reaches from `start`, looking through rows that do no work."""
    seen, queue = {start}, step(program, start)
    found: list[Value] = []
    while queue and len(found) < _SHOWN:
        at = queue.pop(0)
        if at in seen:
            continue
        seen.add(at)
        beyond = step(program, at) if program.kind[at] == Kind.VALUE else []
        if beyond:
            queue = beyond + queue
        else:
            found.append(_value(program.row(at)))
    return tuple(sorted(found, key=lambda v: v.row))


def _value(row: Row) -> Value:
    argument = row.kind is Kind.PARAMETER
    return Value(
        row=row.number,
        opcode=row.opcode,
        type=_type(row),
        bytes=row.result_bytes,
        name=row.name if argument else "",
        sharding=row.cause if argument else "",  # what an argument's cause holds
        scope=row.scope,
        location=row.location,
    )


def _parameters(program: Program, start: int) -> tuple[str, ...]:
    """Names of the parameters that reach row `start` by nothing but moves."""
    seen: set[int] = set()
    names: dict[int, str] = {}
    queue = _producers(program, start)
    while queue:
        at = queue.pop()
        if at in seen:
            continue
        seen.add(at)
        if program.kind[at] == Kind.PARAMETER:
            names[at] = program.strings[program.name[at]]
        elif program.kind[at] == Kind.VALUE or program.op[at] in _MOVES:
            queue += _producers(program, at)
    return tuple(names[at] for at in sorted(names))


def _total(amounts: Int64s, times: Int64s) -> int:
    """The sum of products, which need not fit 64 bits."""
    return sum(int(a) * int(n) for a, n in zip(amounts, times, strict=True))


def _type(row: Row) -> str:
    return f"{row.dtype}[{','.join(map(str, row.shape))}]"


def _phases(program: Program, rows: Any) -> dict[str, int]:
    from flint.ir.program import Phase

    count = {
        p.name.lower(): int(program.trips[rows][program.phase[rows] == p].sum()) for p in Phase
    }
    return {name: n for name, n in count.items() if n}


def _distinct(program: Program, column: Any, rows: Any) -> tuple[str, ...]:
    """Strings of `column` at `rows`, without the empty one, in order of first use."""
    found = dict.fromkeys(int(i) for i in column[rows])
    return tuple(program.strings[i] for i in found if program.strings[i])


def _matcher(pattern: str) -> Callable[[str], bool]:
    if re.search(r"[*?]", pattern):
        escaped = pattern.replace("[", "[[]")
        return lambda scope: fnmatchcase(scope, escaped)
    inner = f"/{pattern.strip('/')}/"
    return lambda scope: inner in f"/{scope}/"


def _candidates(scopes: Iterable[str], pattern: str) -> list[str]:
    """Whole scopes and their parts: what `pattern` may have been meant to be."""
    whole = [s for s in scopes if s]
    if "/" in pattern:
        return whole
    return list(dict.fromkeys(part for s in whole for part in s.split("/")))


def _exact(count: int) -> str:
    return format_bytes(count) if count < 1024 else f"{format_bytes(count)} ({count:,} B)"


def _shortened(names: tuple[str, ...]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _block(label: str, lines: Iterable[str]) -> list[str]:
    return [f"  {label if not i else '':<9} {line}" for i, line in enumerate(lines)]
