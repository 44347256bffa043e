"""Programs and functions that are the same: layers that repeat, rules of gradients, policies."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from flint.frontends.jax_stages.cut.jaxprs import is_variable

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr, JaxprEqn, Var

    from flint.frontends.jax_stages.cut.jaxprs import Atom

#: Closures in closures are followed this far.
_DEPTH = 8


@dataclass
class Digests:
    """Numbers of jaxprs: equal numbers for equal programs, whatever their variables are called.

    Numbers in scopes (`layers/3`) do not count, and neither do places in the source.
    """

    _by_id: dict[int, int] = field(default_factory=dict)
    _by_content: dict[Hashable, int] = field(default_factory=dict)
    _objects: list[object] = field(default_factory=list)
    _texts: dict[int, Hashable] = field(default_factory=dict)

    def of_body(self, jaxpr: Jaxpr) -> int:
        """The number of a jaxpr inside an equation."""
        if id(jaxpr) not in self._by_id:
            arguments = [*jaxpr.constvars, *jaxpr.invars]
            content = self.of(arguments, jaxpr.eqns, jaxpr.outvars)
            self._by_id[id(jaxpr)] = content
            self._objects.append(jaxpr)
        return self._by_id[id(jaxpr)]

    def of(
        self, arguments: Sequence[Atom], equations: Sequence[JaxprEqn], results: Iterable[Atom]
    ) -> int:
        """The number of a program with these arguments, equations and results."""
        numbers = {v: i for i, v in enumerate(arguments)}
        content: list[Hashable] = [self._type(v) for v in arguments]
        for equation in equations:
            content.append(self._equation(equation, numbers))
            for variable in equation.outvars:
                numbers[variable] = len(numbers)
        content.append(tuple(self._atom(a, numbers) for a in results))
        return self._by_content.setdefault(tuple(content), len(self._by_content))

    def of_call(self, equation: JaxprEqn) -> int:
        """The number of an equation alone: equal for calls of equal functions."""
        return self.of(equation.invars, [equation], equation.outvars)

    def _equation(self, equation: JaxprEqn, numbers: dict[Var, int]) -> tuple[Any, ...]:
        return (
            equation.primitive.name,
            re.sub(r"\d+", "#", str(equation.source_info.name_stack)),
            tuple(self._atom(a, numbers) for a in equation.invars),
            tuple(self._type(v) for v in equation.outvars),
            tuple((k, self._parameter(v)) for k, v in equation.params.items()),
        )

    def _atom(self, atom: Atom, numbers: dict[Var, int]) -> Hashable:
        if is_variable(atom):
            return numbers[atom]
        return ("literal", repr(atom.val), self._type(atom))

    def _type(self, atom: Atom) -> Hashable:
        return self._text(atom.aval)

    def _parameter(self, value: object) -> Hashable:
        from jax.extend import core

        if isinstance(value, core.ClosedJaxpr):
            return ("body", self.of_body(value.jaxpr), tuple(map(id, value.consts)))
        if isinstance(value, core.Jaxpr):
            return ("body", self.of_body(value))
        if isinstance(value, list | tuple) and _holds_bodies(value):
            return tuple(map(self._parameter, value))
        return self._text(value)

    def _text(self, value: object) -> Hashable:
        if isinstance(value, str | int | float | bool | None):
            return repr(value)
        if id(value) not in self._texts:
            self._texts[id(value)] = identity(value)
            self._objects.append(value)
        return self._texts[id(value)]


def _holds_bodies(values: Iterable[object]) -> bool:
    """Whether jaxprs are among these parameters of an equation."""
    from jax.extend import core

    return any(isinstance(v, core.Jaxpr | core.ClosedJaxpr) for v in values)


def identity(value: Any, depth: int = _DEPTH) -> Hashable:
    """Something hashable that is equal for values that do the same, and only for these.

    JAX wraps the rules of custom gradients in new closures at each call; a function is therefore
    its code with what it closes over. Objects of the user are themselves alone; those of JAX that
    print an address (stores, traces) are told apart by their type.
    """
    if value is None or isinstance(value, str | bytes | bool | int | float | complex | type):
        return repr(value)
    if depth == 0:
        return id(value)
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(identity(v, depth) for v in value))
    if isinstance(value, set | frozenset):
        return ("set", *sorted(repr(identity(v, depth)) for v in value))
    if isinstance(value, dict):
        return tuple((identity(k, depth), identity(v, depth)) for k, v in value.items())
    if isinstance(value, partial):
        return identity((value.func, value.args, value.keywords), depth - 1)
    if hasattr(value, "transforms") and hasattr(value, "f"):  # JAX's wrapped function
        return identity((value.f, tuple(value.transforms)), depth - 1)
    if hasattr(value, "__code__"):
        cells = tuple(c.cell_contents for c in value.__closure__ or ())
        return (id(value.__code__), identity((cells, value.__defaults__), depth - 1))
    if type(value).__name__ in ("Unhashable", "Hashable") and hasattr(value, "val"):
        return identity(value.val, depth - 1)
    return _of_object(value)


def _of_object(value: object) -> Hashable:
    if type(value) is object:
        return "sentinel"
    module = type(value).__module__
    if module.startswith(("jax", "numpy")) and not hasattr(value, "__array__"):
        text = str(value)
        return (type(value).__name__, "" if " at 0x" in text else text)
    return id(value)
