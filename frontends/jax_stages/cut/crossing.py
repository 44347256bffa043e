"""Cuts that more values cross than the user said, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flint.errors import FlintError
from flint.frontends.jax_stages.cut.flow import Flow
from flint.frontends.jax_stages.cut.jaxprs import place, reads, scope
from flint.frontends.jax_stages.cut.parts import Part


def check_crossing(parts: Sequence[Part], flow: Flow, starts: Sequence[int], crossing: int) -> None:
    """Refuse a cut that more than `crossing` values cross, or none: FlintError FL244.

    `starts` are the equations at which the parts but the first begin.
    """
    for number, position in enumerate(starts):
        _check_cut(parts[number + 1].inputs, flow, position, parts, number, crossing)


def _check_cut(
    values: Sequence[Any],
    flow: Flow,
    position: int,
    parts: Sequence[Part],
    number: int,
    crossing: int,
) -> None:
    before, after = parts[number].label, parts[number + 1].label
    where = place(flow.program.equations[position])
    if not values:
        raise FlintError(
            "FL244",
            f"no value crosses the cut between stage {number} ({before}) and {number + 1} "
            f"({after}): the second does not depend on the first",
            place=where,
            help="cut where the model hands on a value that it computed from parameters and inputs",
        )
    if len(values) > crossing:
        shown = "; ".join(_described(v, flow, position) for v in values)
        raise FlintError(
            "FL244",
            f"the cut between stage {number} ({before}) and {number + 1} ({after}) needs "
            f"{len(values)} values, crossing is {crossing}: {shown}",
            place=where,
            help="cut at a layer boundary, where one value is left (in the middle of a residual "
            f"block there are two), or say crossing={len(values)}",
        )


def _described(variable: Any, flow: Flow, position: int) -> str:
    shape = f"{variable.aval.dtype}[{','.join(map(str, variable.aval.shape))}]"
    readers = [
        e
        for i, e in enumerate(flow.program.equations)
        if i >= position and flow.live[i] and variable in reads(e)
    ]
    read = ", ".join(dict.fromkeys(map(_where, readers[:3]))) or "the result"
    return f"{shape} from {_where(flow.program.equations[flow.maker[variable]])}, read by {read}"


def _where(equation: Any) -> str:
    parts = ["/".join(scope(equation)), place(equation) or ""]
    return " at ".join(p for p in parts if p) or equation.primitive.name
