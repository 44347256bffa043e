"""A scan over stacked parameters, cut into shorter scans over slices of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.frontends.jax_stages.cut.jaxprs import (
    OpenJaxpr,
    applied,
    is_dropped,
    is_variable,
    reads,
    renamed,
    scan_operands,
)
from flint.frontends.jax_stages.cut.trace import ModelArgument, Traced, from_parameters
from flint.frontends.jax_step.equations import place
from flint.frontends.jax_step.specs import check_spec
from flint.ir.mesh import Mesh

if TYPE_CHECKING:
    from jax import Array
    from jax.extend.core import JaxprEqn, Var


#: Equations that do to each layer's slice what they do to the whole stack.
_ROWWISE = ("convert_element_type", "sharding_constraint", "transpose", "copy", "neg", "mul", "div")


@dataclass(frozen=True)
class ScanCut:
    """`traced` with one scan cut; shorter scans stand at equations `starts`, in order."""

    traced: Traced
    starts: tuple[int, ...]


def cut_scan(traced: Traced, index: int, layers: Sequence[int], mesh: Mesh) -> ScanCut:
    """Replace the scan at equation `index` by shorter ones that begin at 0 and at `layers`.

    Stacked parameters become one argument for each shorter scan. What every layer returned unread
    disappears; what is read is joined again after the last one.

    Raises FlintError: FL241 (the scan runs backwards), FL244 (it reads values that are computed
    from the parameters of all layers together).
    """
    equation = traced.program.equations[index]
    if equation.params["reverse"]:
        raise FlintError(
            "FL241",
            "a scan that runs from its last layer to its first cannot be cut by layer index",
            place=place(equation),
        )
    edges = (0, *layers, equation.params["length"])
    ranges = list(pairwise(edges))
    stacked = _Stacked(traced, index, ranges, mesh)
    slices = [stacked.sliced(a) for a in _stacked_operands(equation)]
    scans, names, after = _shorter(equation, ranges, slices)
    before = traced.program.equations[:index]
    program = replace(
        traced.program,
        arguments=stacked.arguments(),
        equations=tuple(
            [*(e for e in before if id(e) not in stacked.replaced), *stacked.made, *scans, *after]
            + list(traced.program.equations[index + 1 :])
        ),
    )
    first = index - len(stacked.replaced) + len(stacked.made)
    described = {v: a for v, a in traced.described.items() if v in program.arguments}
    cut = Traced(renamed(program, names), described | stacked.described)
    return ScanCut(cut, tuple(range(first, first + len(scans))))


def _stacked_operands(equation: JaxprEqn) -> list[Var]:
    first = sum(scan_operands(equation))
    return list(equation.invars[first:])


def _shorter(
    equation: JaxprEqn, ranges: Sequence[tuple[int, int]], slices: Sequence[Sequence[Var]]
) -> tuple[list[JaxprEqn], dict[Var, Var], list[JaxprEqn]]:
    """The shorter scans, new names of what the whole one returned, and what joins its stacks."""
    from jax.extend import core

    new = core.gensym()
    fixed, count = scan_operands(equation)
    carry = list(equation.invars[fixed : fixed + count])
    unchanged = _unchanged(equation)
    scans, stacks = [], []
    for number, (start, end) in enumerate(ranges):
        results = [new(v.aval) for v in equation.outvars[:count]]
        returned = [_shortened(v, end - start, new) for v in equation.outvars[count:]]
        params = equation.params | {"length": end - start}
        params["unroll"] = min(params.get("unroll", 1), end - start)
        operands = [*equation.invars[:fixed], *carry, *(s[number] for s in slices)]
        scan = equation.replace(invars=operands, outvars=[*results, *returned], params=params)
        scans.append(scan)
        stacks.append(returned)
        carry = [c if same else r for c, r, same in zip(carry, results, unchanged, strict=True)]
    names = dict(zip(equation.outvars[:count], carry, strict=True))
    after: list[JaxprEqn] = []
    for variable, parts in zip(equation.outvars[count:], zip(*stacks, strict=True), strict=True):
        if not is_dropped(variable):
            names[variable] = applied(_joined, parts, equation.source_info, after)
    return scans, names, after


def _joined(*parts: Array) -> Array:
    import jax.numpy as jnp

    return jnp.concatenate(parts)


def _unchanged(equation: JaxprEqn) -> list[bool]:
    """Which carried values each iteration hands on as they are: they need no scan to get there."""
    fixed, count = scan_operands(equation)
    body = equation.params["jaxpr"].jaxpr
    return [
        a is b
        for a, b in zip(body.invars[fixed : fixed + count], body.outvars[:count], strict=True)
    ]


def _shortened(variable: Var, length: int, new: Callable[[object], Var]) -> Var:
    aval = variable.aval.update(shape=(length, *variable.aval.shape[1:]))
    return type(variable)(aval) if is_dropped(variable) else new(aval)


class _Stacked:
    """Slices of stacked operands: of arguments, of arguments through row-wise equations, others.

    `made` are new equations before the scans, `replaced` the identities of those that they replace,
    and `described` the new arguments.
    """

    def __init__(
        self, traced: Traced, index: int, ranges: Sequence[tuple[int, int]], mesh: Mesh
    ) -> None:
        self.traced, self.ranges, self.mesh = traced, ranges, mesh
        self.scan = traced.program.equations[index]
        self.made: list[JaxprEqn] = []
        self.replaced: set[int] = set()
        self.described: dict[Var, ModelArgument] = {}
        self._instead: dict[Var, list[Var]] = {}
        self._maker = {v: e for e in traced.program.equations[:index] for v in e.outvars}
        self._readers = _readers(traced.program)
        self._from_parameters = from_parameters(traced)

    def arguments(self) -> tuple[Var, ...]:
        """The arguments of the program, slices instead of what they are slices of."""
        return tuple(w for v in self.traced.program.arguments for w in self._instead.get(v, [v]))

    def sliced(self, operand: Var) -> list[Var]:
        """One variable for each range: the rows of `operand` that its layers read."""
        chain, argument, dimension = self._chain(operand)
        if argument is not None:
            found = self._argument_slices(argument, dimension)
            for equation in reversed(chain):
                found = [self._rowwise(equation, v) for v in found]
            self.replaced |= set(map(id, chain))
            return found
        if operand in self._from_parameters:
            self._refuse(operand)
        return [self._slice(operand, start, end) for start, end in self.ranges]

    def _chain(self, operand: Var) -> tuple[list[JaxprEqn], Var | None, int]:
        """Row-wise equations from a stacked parameter to `operand`, last first; None if not so."""
        chain: list[JaxprEqn] = []
        dimension, variable = 0, operand
        while len(self._readers.get(variable, ())) == 1:
            described = self.traced.described.get(variable)
            if described is not None:
                return chain, variable if described.is_parameter else None, dimension
            equation = self._maker.get(variable)
            if equation is None or equation.primitive.name not in _ROWWISE:
                break
            source = _one_operand(equation)
            if source is None:
                break
            if equation.primitive.name == "transpose":
                dimension = equation.params["permutation"][dimension]
            chain.append(equation)
            variable = source
        return [], None, 0

    def _argument_slices(self, variable: Var, dimension: int) -> list[Var]:
        import jax
        from jax.extend import core

        whole = self.traced.described[variable]
        new, found = core.gensym(), []
        for start, end in self.ranges:
            shape = list(whole.struct.shape)
            shape[dimension] = end - start
            part = jax.ShapeDtypeStruct(
                tuple(shape), whole.struct.dtype, sharding=whole.struct.sharding
            )
            name = f"{whole.name}, layers {start}-{end - 1}"
            check_spec(part.sharding.spec, part.shape, part.dtype, name, self.mesh, None)
            found.append(new(variable.aval.update(shape=tuple(shape))))
            self.described[found[-1]] = replace(whole, struct=part, layers=(start, end))
        self._instead[variable] = found
        return found

    def _rowwise(self, equation: JaxprEqn, operand: Var) -> Var:
        from jax.extend import core

        shape = operand.aval.shape
        if equation.primitive.name == "transpose":
            shape = tuple(shape[d] for d in equation.params["permutation"])
        result = core.gensym()(equation.outvars[0].aval.update(shape=shape))
        operands = [operand if is_variable(a) else a for a in equation.invars]
        self.made.append(equation.replace(invars=operands, outvars=[result]))
        return result

    def _slice(self, operand: Var, start: int, end: int) -> Var:
        import jax

        def rows(value: Array) -> Array:
            return jax.lax.slice_in_dim(value, start, end)

        return applied(rows, [operand], self.scan.source_info, self.made)

    def _refuse(self, operand: Var) -> None:
        described = self.traced.described.get(operand)
        maker = self._maker.get(operand)
        what = (
            f"{described.name}, which is also read outside it"
            if described is not None
            else f"{operand.aval.str_short()}, computed from the parameters of all layers at once"
        )
        raise FlintError(
            "FL244",
            f"a scan that is cut reads {what}",
            place=place(maker if maker is not None else self.scan),
            help="let the scan read the stacked parameters themselves, and compute inside it",
        )


def _one_operand(equation: JaxprEqn) -> Var | None:
    """The only operand that is not a literal scalar, or None."""
    variables = [a for a in equation.invars if is_variable(a)]
    return variables[0] if len(variables) == 1 else None


def _readers(program: OpenJaxpr) -> dict[Var, list[JaxprEqn | None]]:
    """Who reads each variable; the results of the program count as one reader."""
    found: dict[Var, list[JaxprEqn | None]] = {}
    for equation in program.equations:
        for variable in reads(equation):
            found.setdefault(variable, []).append(equation)
    for result in program.results:
        if is_variable(result):
            found.setdefault(result, []).append(None)
    return found
