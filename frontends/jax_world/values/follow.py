"""Which results of a traced function are known, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flint.frontends.jax_world.values.known import Known, calculated, is_followed

#: Parameters that hold the function of an equation that calls one, by the primitive's name.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
}
#: Equations that are followed by methods of their own.
_INSIDE = ("cond", "shard_map")


@dataclass(frozen=True)
class _Plan:
    """Equations that known results need, in order; `results` says which results those are."""

    equations: tuple[Any, ...]
    results: tuple[bool, ...]


class Follower:
    """Follows numbers through traced functions. Keeps what it found out of each function."""

    def __init__(self, known: Callable[[object], Known | None]) -> None:
        self._known = known
        self._plans: dict[int, tuple[Any, _Plan]] = {}

    def results(self, program: Any, inputs: Sequence[Known | None]) -> list[Known | None]:
        """What is known of the results of a (closed) jaxpr on `inputs`."""
        jaxpr = getattr(program, "jaxpr", program)
        plan = self._plan(jaxpr)
        if not any(plan.results):
            return [None] * len(jaxpr.outvars)
        given = zip(jaxpr.invars, inputs, strict=True)
        found: dict[Any, Known | None] = {v: _as_type(k, v.aval) for v, k in given}
        constants = zip(jaxpr.constvars, getattr(program, "consts", ()), strict=False)
        found.update({variable: self._known(value) for variable, value in constants})
        for equation in plan.equations:
            values = [self._read(found, atom) for atom in equation.invars]
            for variable, value in zip(
                equation.outvars, self._equation(equation, values), strict=True
            ):
                found[variable] = value
        return [
            self._read(found, v) if k else None
            for v, k in zip(jaxpr.outvars, plan.results, strict=True)
        ]

    def _read(self, found: dict[Any, Known | None], atom: Any) -> Known | None:
        if hasattr(atom, "val"):
            return _as_type(self._known(atom.val), atom.aval)
        return found.get(atom)

    def _equation(self, equation: Any, given: list[Known | None]) -> list[Known | None]:
        name = equation.primitive.name
        if name in _CALLS:
            return self.results(equation.params[_CALLS[name]], given)
        if name == "cond":
            return self._branch(equation, given)
        if name == "shard_map":
            return self._on_shards(equation, given)
        aval = equation.outvars[0].aval
        if name == "ne" and equation.invars[0] is equation.invars[1]:  # this is how isnan is told
            return [Known(np.broadcast_to(np.False_, aval.shape), made_up=given[0] is None)]
        value = calculated(name, equation.params, given, tuple(aval.shape))
        return [_as_type(value, aval)]

    def _branch(self, equation: Any, given: list[Known | None]) -> list[Known | None]:
        which = given[0]
        if which is None or which.made_up:
            return [None] * len(equation.outvars)
        branches = equation.params["branches"]
        chosen = min(max(int(which.data), 0), len(branches) - 1)
        return self.results(branches[chosen], given[1:])

    def _on_shards(self, equation: Any, given: list[Known | None]) -> list[Known | None]:
        """Arrays whose elements are all equal have shards whose elements are."""
        jaxpr = getattr(equation.params["jaxpr"], "jaxpr", equation.params["jaxpr"])
        shards = [_uniform(k, v.aval.shape) for k, v in zip(given, jaxpr.invars, strict=True)]
        found = self.results(equation.params["jaxpr"], shards)
        return [_uniform(k, v.aval.shape) for k, v in zip(found, equation.outvars, strict=True)]

    def _plan(self, jaxpr: Any) -> _Plan:
        kept = self._plans.get(id(jaxpr))
        if kept is None:
            kept = self._plans[id(jaxpr)] = (jaxpr, _plan_of(jaxpr))
        return kept[1]


def _plan_of(jaxpr: Any) -> _Plan:
    unknown: set[Any] = set()
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        followed = is_followed(name) or name in _CALLS or name in _INSIDE
        stops = any(not hasattr(a, "val") and a in unknown for a in equation.invars)
        if not followed or (stops and name not in ("is_finite", "ne", "shard_map", *_CALLS)):
            unknown.update(equation.outvars)
    results = tuple(hasattr(v, "val") or v not in unknown for v in jaxpr.outvars)
    needed = {v for v, k in zip(jaxpr.outvars, results, strict=True) if k and not hasattr(v, "val")}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if any(v in needed for v in equation.outvars) and not unknown.issuperset(equation.outvars):
            equations.append(equation)
            needed.update(a for a in equation.invars if not hasattr(a, "val"))
    return _Plan(tuple(reversed(equations)), results)


def _uniform(value: Known | None, shape: tuple[int, ...]) -> Known | None:
    """The one element of an array in another shape, None where there are several."""
    if value is None or not value.data.size:
        return None
    first = value.data[(0,) * value.data.ndim]
    if not value.is_uniform and not bool((value.data == first).all()):
        return None
    return Known(np.broadcast_to(first, tuple(shape)), value.made_up)


def _as_type(value: Known | None, aval: Any) -> Known | None:
    """With the element type of the result; a type that numpy lacks is not followed."""
    if value is None or value.data.shape != tuple(aval.shape):
        return None
    if value.data.dtype == aval.dtype:
        return value
    try:
        if value.is_uniform:
            element = value.element.astype(aval.dtype)
            return Known(np.broadcast_to(element, aval.shape), value.made_up)
        return Known(value.data.astype(aval.dtype), value.made_up)
    except TypeError:
        return None
