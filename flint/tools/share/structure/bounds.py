"""What stays: totals to the last bit, step time and memory within a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from flint.cluster.load import preset_names
from flint.errors import FlintError
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.change import Change
from flint.tools.share.shapes.confirm import MACHINES, step_on
from flint.tools.share.structure.prices import prices_of

#: Of a key of `ledger` (phase, what, over which axes, how often it runs): rows, FLOPs, bytes moved and sent.
Ledger = Mapping[tuple[int, str, str, int], tuple[int, int, int, int]]


def ledger(program: Program) -> Ledger:
    """Rows that work, their FLOPs, bytes moved and bytes sent, by phase, class, axes and trips.

    Operations of one price are one class (`flint.tools.share.structure.prices`).
    """
    p = program
    prices = prices_of(p)
    found: dict[tuple[int, str, str, int], Counter[str]] = {}
    moved = (p.result_bytes + p.operand_bytes).tolist()
    flops, sent, trips = p.flops.tolist(), p.comm_bytes.tolist(), p.trips.tolist()
    for row in range(len(p)):
        if p.kind[row] < Kind.COMPUTE:
            continue
        what = f"price {prices[row]}" if prices[row] >= 0 else f"class {p.op[row]}"
        key = (int(p.phase[row]), f"{what}/{p.collective[row]}", _over(p, row), trips[row])
        one = found.setdefault(key, Counter())
        one.update(rows=1, flops=flops[row], moved=moved[row], sent=sent[row])
    return {k: (c["rows"], c["flops"], c["moved"], c["sent"]) for k, c in found.items()}


def _over(p: Program, row: int) -> str:
    group, route = int(p.group[row]), int(p.route[row])
    return f"{p.groups[group] if group >= 0 else ''}/{p.routes[route] if route >= 0 else ''}"


@dataclass(frozen=True)
class Bounds:
    """Numbers of a step by machine, and the largest share by which each may move."""

    machines: Mapping[str, Mapping[str, float]]
    keep: float

    @classmethod
    def of(cls, workload: Workload, keep: float) -> Bounds:
        """Step time and peak memory on `MACHINES` that take the mesh, on another preset where none does.

        Raises FlintError FL912 where no preset does.
        """
        found = {name: step_on(workload, name) for name in MACHINES}
        found = {name: step for name, step in found.items() if step}
        for name in preset_names() if not found else ():
            step = step_on(workload, name)
            if step:
                return cls({name: step}, keep)
        if not found:
            raise FlintError(
                "FL912",
                f"no machine that comes with Flint takes {workload.mesh}, so nothing says how long it takes",
                help="flint anonymize takes it at the level `names`, which changes no estimate",
            )
        return cls(found, keep)

    def drift(self, workload: Workload) -> float:
        """The largest share by which a number moved, of machines up to the first beyond the bound.

        Infinite where a pass or a machine does not take the workload any more.
        """
        found = 0.0
        for name, before in self.machines.items():
            found = max(found, _furthest(before, _step_on(workload, name)))
            if found > self.keep:
                break
        return found

    def changes(self, workload: Workload) -> tuple[Change, ...]:
        """What moved by how much."""
        return tuple(
            Change(name, before, after[name])
            for machine, numbers in self.machines.items()
            for after in (step_on(workload, machine),)
            for name, before in numbers.items()
        )


def _step_on(workload: Workload, machine: str) -> Mapping[str, float]:
    try:
        return step_on(workload, machine)
    except AssertionError:
        return {}  # a pass left an order that it cannot keep: such a draw is of no use


def _furthest(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    if before.keys() != after.keys():
        return float("inf")
    return max((abs(Change(n, v, after[n]).share) for n, v in before.items()), default=0.0)


def with_program(workload: Workload, program: Program) -> Workload:
    """The workload with another program for all its ranks."""
    return replace(workload, programs=(program,))


def same_totals(one: Program, other: Program) -> bool:
    """Whether two programs have one ledger."""
    return ledger(one) == ledger(other)
