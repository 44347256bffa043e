"""The stages of a program that was cut between equations: what each reads, computes and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.frontends.jax_stages.cut.flow import Flow
from flint.frontends.jax_stages.cut.jaxprs import is_variable, reads, scope
from flint.frontends.jax_stages.cut.trace import Traced
from flint.frontends.jax_step.equations import place
from flint.frontends.jax_step.specs import show_array
from flint.frontends.stages.pipeline import layers_label

if TYPE_CHECKING:
    from jax.extend.core import JaxprEqn, Var


@dataclass(frozen=True)
class Cutting:
    """A program, and the equation at which each stage but the first begins.

    `content` are, by an equation's first result, the layers that it is: (name, first, last).
    """

    traced: Traced
    starts: tuple[int, ...]
    content: Mapping[Any, tuple[str, int, int]]


@dataclass(frozen=True)
class CutStage:
    """One stage as variables of the program: what it reads, its equations and what it gives."""

    number: int
    arguments: tuple[Any, ...]
    constants: tuple[Any, ...]
    inputs: tuple[Any, ...]
    equations: tuple[Any, ...]
    results: tuple[Any, ...]
    label: str


def parts_of(cutting: Cutting, flow: Flow) -> tuple[CutStage, ...]:
    """One part for each stage; `flow` is that of the program that was cut."""
    edges = (0, *cutting.starts, len(flow.program.equations))
    crossing = [tuple(flow.crossing(p)) for p in cutting.starts]
    parts = []
    for number, span in enumerate(pairwise(edges)):
        label = _label(cutting, flow, *span) or f"stage {number}"
        inputs = crossing[number - 1] if number else ()
        results = crossing[number] if number < len(crossing) else flow.program.results
        parts.append(_part(number, flow, span, inputs, results, label))
    return tuple(parts)


def _part(
    number: int,
    flow: Flow,
    span: tuple[int, int],
    inputs: tuple[Any, ...],
    results: tuple[Any, ...],
    label: str,
) -> CutStage:
    """The anchored equations of `span`, and all others that they and `results` need."""
    program, known = flow.program, set(inputs)
    chosen = {i for i in range(*span) if flow.anchored[i] and flow.live[i]}
    needed = [v for i in chosen for v in reads(program.equations[i])]
    needed += [r for r in results if is_variable(r)]
    leaves: set[Any] = set()
    while needed:
        variable = needed.pop()
        made = flow.maker.get(variable)
        if variable in known or made is None:
            leaves.add(variable)
        elif made not in chosen:
            chosen.add(made)
            needed += reads(program.equations[made])
    return CutStage(
        number,
        tuple(v for v in program.arguments if v in leaves),
        tuple(v for v in program.constants if v in leaves),
        inputs,
        tuple(program.equations[i] for i in sorted(chosen)),
        results,
        label,
    )


# labels ---------------------------------------------------------------------------------------


def _label(cutting: Cutting, flow: Flow, start: int, end: int) -> str:
    """`embed, layers 0-19`: outermost scopes and layers of a stage's equations, in order."""
    found: list[tuple[str, int, int]] = []
    layers = {name for name, _, _ in cutting.content.values()}
    for index in range(start, end):
        if not (flow.anchored[index] and flow.live[index]):
            continue
        equation = flow.program.equations[index]
        here = cutting.content.get(equation.outvars[0])
        if here is None:
            parts = scope(equation)
            here = (parts[0], -1, -1) if parts and parts[0] not in layers else None
        if here is not None:
            _add(found, here)
    return ", ".join(
        name if first < 0 else layers_label(name, first, last) for name, first, last in found
    )


def _add(found: list[tuple[str, int, int]], here: tuple[str, int, int]) -> None:
    last = found[-1] if found else None
    if last is None or last[0] != here[0] or (last[1] < 0) != (here[1] < 0):
        if here not in found:
            found.append(here)
    elif here[2] > last[2]:
        found[-1] = (last[0], last[1], here[2])


def check_crossing(
    parts: Sequence[CutStage], flow: Flow, starts: Sequence[int], crossing: int
) -> None:
    """Refuse a cut that more than `crossing` values cross, or none: FlintError FL244.

    `starts` are the equations at which the parts but the first begin.
    """
    for number, position in enumerate(starts):
        _check_cut(parts[number + 1].inputs, flow, position, parts, number, crossing)


def _check_cut(
    values: Sequence[Any],
    flow: Flow,
    position: int,
    parts: Sequence[CutStage],
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
            help="cut where the model passes on a value that it computed from parameters and inputs",
        )
    if len(values) > crossing:
        shown = "; ".join(_described(v, flow, position) for v in values)
        raise FlintError(
            "FL244",
            f"the cut between stage {number} ({before}) and {number + 1} ({after}) needs "
            f"{len(values)} values, but crossing is {crossing}: {shown}",
            place=where,
            help="cut at a layer boundary, where one value remains (in the middle of a "
            f"residual block there are two), or write crossing={len(values)}",
        )


def _described(variable: Var, flow: Flow, position: int) -> str:
    shape = show_array(variable.aval.dtype, variable.aval.shape)
    readers = [
        e
        for i, e in enumerate(flow.program.equations)
        if i >= position and flow.live[i] and variable in reads(e)
    ]
    read = ", ".join(dict.fromkeys(map(_where, readers[:3]))) or "the result"
    return f"{shape} from {_where(flow.program.equations[flow.maker[variable]])}, read by {read}"


def _where(equation: JaxprEqn) -> str:
    parts = ["/".join(scope(equation)), place(equation) or ""]
    return " at ".join(p for p in parts if p) or equation.primitive.name
