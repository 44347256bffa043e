"""The level `structure`: other operations in another order on other operands, with the same totals."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flint.errors import FlintError
from flint.ir.columns import in_order_of_use
from flint.ir.program import COLUMN_TYPES, Program
from flint.ir.workload import Workload
from flint.tools.share.change import Change
from flint.tools.share.rules import broken_rules
from flint.tools.share.structure.bounds import Bounds, same_totals, with_program
from flint.tools.share.structure.built import built
from flint.tools.share.structure.facts import Facts
from flint.tools.share.structure.refuse import require_exchangeable
from flint.tools.share.structure.search import Found, search
from flint.tools.share.structure.wiring import Wiring

#: Of the rows that read something this share has to do something else, or on something else.
LEAST_CHANGED = 0.2


@dataclass(frozen=True, slots=True)
class Rewired:
    """How far structure moved.

    `share` of the rows that read something now read, or do, something else. So many views came
    (`views`), and so many views and constants went (`gone`).
    """

    share: float
    views: int
    gone: int


@dataclass(frozen=True)
class Exchanged:
    """A workload with another structure, what moved, and how far structure did."""

    workload: Workload
    changes: tuple[Change, ...]
    rewired: Rewired


def exchanged(
    workload: Workload,
    keep: float,
    seed: int | None = None,
    *,
    reference: Workload | None = None,
    draws: int | None = None,
) -> Exchanged:
    """Exchange the structure of a redacted workload.

    FLOPs, bytes moved, bytes sent and numbers of rows stay equal by phase, price, axes and loop;
    step time and peak memory on `bounds.MACHINES` stay within the share `keep` of those of
    `reference` (the workload itself unless given). At most `draws` workloads are estimated (None: by
    the number of rows). Equal seeds give equal results; without one the operating
    system is asked. Raises FlintError FL910 for workloads that are no single captured program, FL911
    where too little can change within the bound.
    """
    require_exchangeable(workload)
    own = _without_places(workload.programs[0])
    bounds = Bounds.of(reference or workload, keep)
    random = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
    wiring = Wiring(Facts.of(own))

    def drift(tried: Wiring) -> float:
        return bounds.drift(with_program(workload, built(tried)))

    found = search(wiring, drift, keep, random, draws)
    rewired = _rewired(found.wiring)
    if rewired < LEAST_CHANGED or found.drift > keep:
        raise _refusal(rewired, found, keep)
    program = built(found.wiring)
    _prove(own, program, workload)
    result = with_program(workload, program)
    moved = Rewired(rewired, len(found.wiring.views), len(found.wiring.gone))
    return Exchanged(result, bounds.changes(result), moved)


def _without_places(program: Program) -> Program:
    """The program without scopes, lines and causes: they tell layers apart."""
    nothing: dict[str, Any] = {
        name: np.zeros(len(program), COLUMN_TYPES[name]) for name in ("scope", "location", "cause")
    }
    found = replace(program, **nothing)
    return replace(in_order_of_use(found), stream=found.stream, streams=found.streams)


def _rewired(wiring: Wiring) -> float:
    """The share of rows that read, or do, something else; what is seen through new views is the same."""
    p = wiring.facts.program
    about, other = 0, 0
    for row in range(len(p)):
        reads = p.dependencies(row).tolist()
        about += bool(reads)
        done = wiring.operations.get(row)
        does_other = done is not None and done.opcode != p.opcodes[p.opcode[row]]
        if reads and (does_other or [wiring.seen(v) for v in wiring.reads[row]] != reads):
            other += 1
    return other / max(about, 1)


def _refusal(rewired: float, found: Found, keep: float) -> FlintError:
    nearest = np.ceil(found.nearest * 1000) / 1000 if found.nearest <= 0.25 else 0.0
    return FlintError(
        "FL911",
        f"only {rewired:.0%} of the rows can be exchanged with step time and memory within {keep:.3g}",
        help=(
            f"the nearest that was found is --keep {nearest:.1%}"
            if nearest
            else "the search for it found no other: try a larger --keep, or the level `shapes`"
        ),
    )


def _prove(before: Program, after: Program, workload: Workload) -> None:
    """What the moves promise, once more, on the result."""
    after.verify()
    assert same_totals(before, after), "totals moved"
    known = {b.rule for b in broken_rules(workload)}
    new = [b for b in broken_rules(with_program(workload, after)) if b.rule not in known]
    assert not new, f"a rule is broken: {new[0].message}"
