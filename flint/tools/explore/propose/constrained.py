"""`flint.constrained`: a function whose values have shardings, set by line and shape from outside."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.frontends.jax_stages.cut.jaxprs import is_variable, scan_operands
from flint.frontends.jax_step.equations import place

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

#: Operations whose results and operands take constraints.
CONSTRAINED = ("dot_general", "ragged_dot", "ragged_dot_general", "conv_general_dilated", "gather",
               "scatter-add")  # fmt: skip


def result_key(at: str, shape: Iterable[int]) -> str:
    """The key of what a line makes: `model.py:8 64x4096x128`."""
    return f"{at} {'x'.join(map(str, shape))}"


def operand_key(at: str, shape: Iterable[int]) -> str:
    """The key of a weight that a line reads: `model.py:8 reads 4096x128`."""
    return f"{at} reads {'x'.join(map(str, shape))}"


def carried_key(at: str, shape: Iterable[int]) -> str:
    """The key of what a loop hands on: `model.py:20 carries 64x4096x4096`."""
    return f"{at} carries {'x'.join(map(str, shape))}"


def constrained(
    fn: Callable[..., Any],
    constraints: Mapping[str, Any],
    *,
    static_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """`fn` with `jax.lax.with_sharding_constraint` around values, found by line and shape.

    Keys are "FILE.py:LINE SHAPE" for what products, convolutions and look-ups of the line make, "FILE.py:LINE
    reads SHAPE" for what they read and "FILE.py:LINE carries SHAPE" for what a loop hands on; values are a
    `PartitionSpec` over the mesh that is set. The function computes the same. Raises FlintError FL937 for a
    key that nothing in the function has.
    """

    @functools.wraps(fn)
    def with_constraints(*args: Any, **kwargs: Any) -> Any:
        import jax
        from jax.extend.core import jaxpr_as_fun

        traced, out = jax.make_jaxpr(fn, static_argnums=static_argnums, return_shape=True)(
            *args, **kwargs
        )
        marker = _Marker(constraints)
        program = marker.closed(traced)
        missing = [key for key in constraints if key not in marker.met]
        if missing:
            raise FlintError(
                "FL937",
                f"nothing in {getattr(fn, '__name__', 'the function')} is '{missing[0]}'",
                help="lines or shapes changed: run flint propose again",
            )
        fixed = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)
        given = [a for n, a in enumerate(args) if n not in fixed]
        leaves = jax.tree.leaves((tuple(given), kwargs))
        return jax.tree.unflatten(jax.tree.structure(out), jaxpr_as_fun(program)(*leaves))

    return with_constraints


@dataclass
class _Marker:
    """Writes constraints into jaxprs, each jaxpr once."""

    constraints: Mapping[str, Any]
    met: set[str] = field(default_factory=set)
    _known: dict[tuple[int, tuple[str, ...]], tuple[Any, Jaxpr]] = field(default_factory=dict)

    def closed(self, program: ClosedJaxpr) -> ClosedJaxpr:
        return program.replace(jaxpr=self.jaxpr(program.jaxpr))

    def jaxpr(self, jaxpr: Jaxpr, carried: tuple[int, ...] = (), at: str = "") -> Jaxpr:
        """The jaxpr with constraints; `carried` are arguments that a loop at `at` hands on."""
        key = (id(jaxpr), (at, *map(str, carried)))
        if key not in self._known:
            self._known[key] = (jaxpr, self._written(jaxpr, carried, at))
        return self._known[key][1]

    def _written(self, jaxpr: Jaxpr, carried: tuple[int, ...], at: str) -> Jaxpr:
        names: dict[Any, Any] = {}
        made: list[JaxprEqn] = []
        for number in carried:
            value = jaxpr.invars[number]
            spec = self._spec(carried_key(at, _shape(value)))
            if spec is not None and jaxpr.eqns:
                self._constrain(value, value, spec, jaxpr.eqns[0], names, made)
        for equation in jaxpr.eqns:
            self._equation(equation, names, made)
        outvars = [_named(v, names) for v in jaxpr.outvars]
        return jaxpr.replace(eqns=made, outvars=outvars)

    def _equation(self, e: JaxprEqn, names: dict[Any, Any], made: list[JaxprEqn]) -> None:
        at = place(e) or ""
        takes = e.primitive.name in CONSTRAINED and at
        reads = []
        for value in e.invars:
            read = _named(value, names)
            spec = (
                self._spec(operand_key(at, _shape(value))) if takes and is_variable(value) else None
            )
            if spec is not None:
                read = self._constrain(value, read, spec, e, None, made)
            reads.append(read)
        made.append(e.replace(invars=reads, params=self._params(e, at)))
        for value in e.outvars if takes else ():
            spec = self._spec(result_key(at, _shape(value)))
            if spec is not None:
                self._constrain(value, value, spec, e, names, made)

    def _params(self, e: JaxprEqn, at: str) -> dict[str, Any]:
        carried: tuple[int, ...] = ()
        if e.primitive.name == "scan":
            constants, count = scan_operands(e)
            carried = tuple(range(constants, constants + count))
        elif e.primitive.name == "while":
            constants = int(e.params["body_nconsts"])
            carried = tuple(range(constants, len(e.params["body_jaxpr"].jaxpr.invars)))
        return {
            k: v if k == "cond_jaxpr" else self._inside(v, carried, at) for k, v in e.params.items()
        }

    def _inside(self, value: Any, carried: tuple[int, ...], at: str) -> Any:
        from jax.extend import core

        if isinstance(value, core.ClosedJaxpr):
            return value.replace(jaxpr=self.jaxpr(value.jaxpr, carried, at))
        if isinstance(value, core.Jaxpr):
            return self.jaxpr(value, carried, at)
        if isinstance(value, tuple) and any(isinstance(v, core.ClosedJaxpr) for v in value):
            return tuple(self._inside(v, (), at) for v in value)
        return value

    def _spec(self, key: str) -> Any:
        spec = self.constraints.get(key)
        if spec is not None:
            self.met.add(key)
        return spec

    def _constrain(
        self, value: Any, read: Any, spec: Any, near: JaxprEqn, names: dict[Any, Any] | None,
        made: list[JaxprEqn],
    ) -> Any:  # fmt: skip
        """Add the constraint of a value, and name what it gives instead of the value."""
        import jax

        one = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, spec))(
            jax.ShapeDtypeStruct(value.aval.shape, value.aval.dtype)
        ).jaxpr
        equation, result = one.eqns[-1], one.outvars[0]
        made.append(equation.replace(invars=[read], source_info=near.source_info))
        if names is not None:
            names[value] = result
        return result


def _named(atom: Any, names: Mapping[Any, Any]) -> Any:
    return names.get(atom, atom) if is_variable(atom) else atom


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value.aval, "shape", ()))
