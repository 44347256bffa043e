"""Which equations belong to a stage, and which are cheap to compute again wherever they are read.

What depends on parameters alone, or on the microbatch alone through little work (masks, position
tables, one-hot targets), is computed by each stage that reads it. Every other equation is anchored:
it runs in the one stage in which it stands, and its results cross to the stages that read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flint.frontends.jax_stages.cut.jaxprs import Flops, OpenJaxpr, inlined, is_variable, reads
from flint.frontends.jax_stages.cut.trace import ModelArgument, Traced
from flint.frontends.jax_step.equations import bodies

if TYPE_CHECKING:
    from jax.extend.core import JaxprEqn


#: What depends on no parameter may take this part of the model's FLOPs and still be computed again.
CHEAP_PART = 1000


@dataclass(frozen=True)
class Flow:
    """Of each equation, whether it is `anchored` and whether the results need it (`live`).

    `maker` is the index of the equation that makes a variable.
    """

    program: OpenJaxpr
    anchored: tuple[bool, ...]
    live: tuple[bool, ...]
    maker: Mapping[Any, int]

    def crossing(self, position: int) -> list[Any]:
        """Anchored values made before equation `position` and read at it or later, in order."""
        found: dict[Any, None] = {}
        later = [e for i, e in enumerate(self.program.equations) if i >= position and self.live[i]]
        for atom in [a for e in later for a in reads(e)] + list(self.program.results):
            made = self.maker.get(atom, -1) if is_variable(atom) else -1
            if 0 <= made < position and self.anchored[made]:
                found[atom] = None
        return sorted(found, key=lambda v: self.maker[v])

    def crossing_counts(self) -> list[int]:
        """The number of values that cross at each position, 0 to the number of equations."""
        size = len(self.program.equations)
        last: dict[Any, int] = {}
        for index, equation in enumerate(self.program.equations):
            if self.live[index]:
                last |= dict.fromkeys(reads(equation), index)
        last |= dict.fromkeys((r for r in self.program.results if is_variable(r)), size)
        change = [0] * (size + 2)
        for variable, read in last.items():
            made = self.maker.get(variable, -1)
            if made >= 0 and self.anchored[made]:
                change[made + 1] += 1
                change[read + 1] -= 1
        counts, now = [], 0
        for step in change[: size + 1]:
            now += step
            counts.append(now)
        return counts


def flow_of(program: OpenJaxpr, described: Mapping[Any, ModelArgument], work: Flops) -> Flow:
    """Classify the equations of `program`."""
    states = _states(program, described, work)
    anchored, maker = [], dict[Any, int]()
    for index, equation in enumerate(program.equations):
        anchored.append(any(states[v].is_anchored for v in equation.outvars))
        maker |= dict.fromkeys(equation.outvars, index)
    return Flow(program, tuple(anchored), _live(program, maker), maker)


def without_mixed_calls(traced: Traced, work: Flops) -> Traced:
    """`traced` with jitted calls inlined that return both what is anchored and what is not.

    Otherwise a mask would cross a cut because one function computed it and the activations.
    """
    while True:
        states = _states(traced.program, traced.described, work)
        program = inlined(traced.program, partial(_is_mixed, states))
        if program is traced.program:
            return traced
        traced = replace(traced, program=program)


def _is_mixed(states: Mapping[Any, _State], equation: JaxprEqn) -> bool:
    if len(equation.outvars) < 2:
        return False
    (body,) = bodies(equation)
    inside = {
        v: states.get(a, _State()) if is_variable(a) else _State()
        for v, a in zip(body.invars, equation.invars, strict=True)
    }
    for inner in body.eqns:
        found = _joined([inside[v] for v in reads(inner) if v in inside])
        inside |= dict.fromkeys(inner.outvars, found)
    results = [v for v in body.outvars if is_variable(v)]
    return len({inside.get(v, _State()).is_anchored for v in results}) > 1


def _states(
    program: OpenJaxpr, described: Mapping[Any, ModelArgument], work: Flops
) -> dict[Any, _State]:
    bound = work.of(program.equations) // CHEAP_PART
    states = {v: _State(a.is_parameter, not a.is_parameter) for v, a in described.items()}
    for equation in program.equations:
        found = _joined([states[v] for v in reads(equation) if v in states])
        if not found.from_parameters and found.from_batch and work.of_one(equation) > bound:
            found = replace(found, is_work=True)
        states |= dict.fromkeys(equation.outvars, found)
    return states


@dataclass(frozen=True)
class _State:
    from_parameters: bool = False
    from_batch: bool = False
    is_work: bool = False

    @property
    def is_anchored(self) -> bool:
        return self.is_work or (self.from_parameters and self.from_batch)


def _joined(states: Sequence[_State]) -> _State:
    return _State(
        any(s.from_parameters for s in states),
        any(s.from_batch for s in states),
        any(s.is_work for s in states),
    )


def _live(program: OpenJaxpr, maker: Mapping[Any, int]) -> tuple[bool, ...]:
    live = [bool(e.effects) for e in program.equations]
    for result in program.results:
        if is_variable(result) and result in maker:
            live[maker[result]] = True
    for index in reversed(range(len(live))):
        if live[index]:
            for variable in reads(program.equations[index]):
                if variable in maker:
                    live[maker[variable]] = True
    return tuple(live)
