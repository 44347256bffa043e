"""What a communication row asks of the network."""

from __future__ import annotations

from flint.backends.cost.network.calls import CollectiveCall, Span
from flint.backends.cost.network.placement import NetworkPlacement
from flint.ir.program import Collective, Program


def call_of(program: Program, row: int, placement: NetworkPlacement) -> CollectiveCall:
    """What a communication row asks of the network."""
    collective = Collective(int(program.collective[row]))
    return CollectiveCall(
        collective, int(program.comm_bytes[row]), spans_of_row(program, row, placement)
    )


def spans_of_row(program: Program, row: int, placement: NetworkPlacement) -> tuple[Span, ...]:
    """The tiers that a communication row crosses."""
    group, route = int(program.group[row]), int(program.route[row])
    if group >= 0:
        return placement.spans_of_group(program.groups[group])
    return placement.spans_of_route(program.routes[route])


def tier_of_row(program: Program, row: int, placement: NetworkPlacement) -> int:
    """The outermost tier that a communication row crosses; 0 for one that crosses none."""
    return max((s.tier for s in spans_of_row(program, row, placement)), default=0)
