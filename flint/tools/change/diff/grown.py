"""Where in the source something grew, if only totals of before are known (a lock file).

Kernels cannot be matched then. What is known: of a kind of collective over some axes, or a class of
operations in a phase, there is more than before; and these are the lines that have it now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flint.ir.op_class import OpClass
from flint.ir.program import Kind
from flint.tools.change.diff.match import Action, Change, weight
from flint.tools.change.diff.rows import ClassRows, Cost
from flint.tools.change.diff.snapshot import ProgramFacts, family, phase_name

#: Kind, axes and phase of what is counted.
_Key = tuple[str, str, str]


def grown(before: ProgramFacts, after: ProgramFacts, classes: list[ClassRows]) -> list[Change]:
    """The lines of kinds that grew, largest first. `before` of each is its part of the old total."""
    old, new = _totals(before), _totals(after)
    found: dict[tuple[object, ...], Change] = {}
    for side in classes:
        for key, change in _of(side):
            if new.get(key, 0.0) > old.get(key, 0.0):
                known = found.get((*key, change.scope, change.source))
                found[*key, change.scope, change.source] = _sum(known, change)
    scaled = [_scaled(c, old.get((c.kind, c.over, c.phase), 0.0), new) for c in found.values()]
    return sorted(scaled, key=weight)


def _sum(known: Change | None, one: Change) -> Change:
    if known is None:
        return one
    return replace(known, kernels=known.kernels + one.kernels, after=known.after + one.after)


def _scaled(c: Change, old: float, new: dict[_Key, float]) -> Change:
    """The same with its share of what there was before."""
    share = old / new[c.kind, c.over, c.phase]
    cost = c.after
    was = Cost(*(getattr(cost, name) * share for name in Cost.__dataclass_fields__))
    return replace(c, action=Action.CHANGED if old else Action.ADDED, before=was)


def _totals(facts: ProgramFacts) -> dict[_Key, float]:
    """Bytes of collectives and FLOPs (with bytes, which break ties) of operations."""
    found: dict[_Key, float] = {}
    for c in facts.collectives:
        if c.kind == "recv":
            continue  # the same bytes as the sends
        key = ("message" if c.kind == "send" else c.kind, c.over, c.phase)
        found[key] = found.get(key, 0.0) + c.executions * c.comm_bytes
    for o in facts.operations:
        key = (o.op, "", o.phase)
        found[key] = found.get(key, 0.0) + (o.flops or o.bytes)
    return found


def _of(side: ClassRows) -> Iterator[tuple[_Key, Change]]:
    p = side.program
    for row in side.rows:
        if p.kind[row] == Kind.RECV:
            continue
        communicates = p.kind[row] > Kind.COMPUTE
        op, phase = OpClass(int(p.op[row])).name.lower(), phase_name(int(p.phase[row]))
        kind, over = side.labels[row][:2] if communicates else (op, "")
        scope, source = p.strings[p.scope[row]], p.strings[p.location[row]]
        reason = p.strings[p.cause[row]] if communicates else ""
        change = Change(
            None,
            Action.CHANGED,
            kind,
            over,
            phase,
            family(scope),
            source,
            source,
            reason,
            "",
            1,
            Cost(),
            side.cost(row),
        )
        yield (kind, over, phase), change
