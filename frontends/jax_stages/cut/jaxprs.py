"""Reading and rewriting jaxprs for cutting: scopes, work, inlining."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from flint.frontends.jax_step.equations import bodies
from flint.passes.work import formulas
from flint.passes.work.declared import ArrayType, KernelCall
from flint.passes.work.hand_written import work_of_call, work_of_kernel

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
    from jax.extend.source_info_util import SourceInfo

    Atom: TypeAlias = Var | Literal


#: Calls of a jitted function. Every other equation with a body is kept whole, except a scan that
#: is cut between its iterations.
_JIT = ("jit", "pjit", "closed_call", "core_call")


def is_variable(atom: Atom) -> bool:
    """Whether an operand is a variable of a jaxpr, not a literal."""
    from jax.extend import core

    return not isinstance(atom, core.Literal)


def reads(equation: JaxprEqn) -> list[Var]:
    return [a for a in equation.invars if is_variable(a)]


def is_dropped(variable: Var) -> bool:
    """Whether a result of an equation is one that nothing can read."""
    from jax.extend import core

    return isinstance(variable, core.DropVar)


def scope(equation: JaxprEqn) -> tuple[str, ...]:
    """The parts of an equation's scope, outermost first."""
    return tuple(p for p in str(equation.source_info.name_stack).split("/") if p)


def is_call(equation: JaxprEqn) -> bool:
    """Whether an equation calls a jitted or rematerialized function."""
    return equation.primitive.name in (*_JIT, "checkpoint", "remat", "remat2")


def scan_operands(equation: JaxprEqn) -> tuple[int, int]:
    """How many operands of a scan are constants, and how many it carries; the rest are stacked."""
    params = equation.params
    if "num_consts" in params:
        return int(params["num_consts"]), int(params["num_carry"])
    constants, carried, _ = params["ft_in"].unpack()  # since JAX 0.11
    return len(constants), len(carried)


# work -----------------------------------------------------------------------------------------


@dataclass
class Flops:
    """Estimated FLOPs of equations: of matrix products and convolutions, loops multiplied, and
    what kernels declare.

    Each body is read once, however often it is called.
    """

    _known: dict[int, int] = field(default_factory=dict)

    def of(self, equations: Iterable[JaxprEqn]) -> int:
        """FLOPs of these equations together, on the whole mesh."""
        return sum(map(self.of_one, equations))

    def of_one(self, equation: JaxprEqn) -> int:
        name = equation.primitive.name
        if name == "dot_general":
            return _dot_flops(equation)
        if name == "conv_general_dilated":
            return _convolution_flops(equation)
        if name.startswith("ragged_dot"):
            rows, inner = equation.invars[0].aval.shape[-2:]
            return _product_flops(int(rows) * int(equation.outvars[0].aval.shape[-1]), int(inner))
        if name == "pallas_call":
            called, estimate = str(equation.params["name"]), equation.params["cost_estimate"]
            return work_of_kernel(called, _kernel_call(equation), estimate).flops
        if name == "ffi_call":
            target = str(equation.params["target_name"])
            return work_of_call(target, _kernel_call(equation), None).flops
        inside = [self._of_body(b) for b in bodies(equation)]
        if not inside:
            return 0
        if name == "cond":
            return max(inside)
        return sum(inside) * int(equation.params.get("length", 1) if name == "scan" else 1)

    def _of_body(self, jaxpr: Jaxpr) -> int:
        if id(jaxpr) not in self._known:
            self._known[id(jaxpr)] = self.of(jaxpr.eqns)
        return self._known[id(jaxpr)]


def _dot_flops(equation: JaxprEqn) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    inner = math.prod(int(equation.invars[0].aval.shape[d]) for d in contracted)
    return _product_flops(math.prod(map(int, equation.outvars[0].aval.shape)), inner)


def _convolution_flops(equation: JaxprEqn) -> int:
    kernel = equation.invars[1].aval.shape
    features = equation.params["dimension_numbers"].rhs_spec[0]
    per_output = math.prod(map(int, kernel)) // int(kernel[features])
    return _product_flops(math.prod(map(int, equation.outvars[0].aval.shape)), per_output)


def _product_flops(results: int, inner: int) -> int:
    return formulas.product(1, results, 1, inner, product="").flops


def _kernel_call(equation: JaxprEqn) -> KernelCall:
    operands, results = (
        tuple(
            ArrayType(tuple(map(int, a.shape)), str(a.dtype), int(a.size) * a.dtype.itemsize)
            for a in (v.aval for v in variables)
        )
        for variables in (equation.invars, equation.outvars)
    )
    return KernelCall(operands, results, dict(equation.params.get("attributes") or ()))


# rewriting ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenJaxpr:
    """A jaxpr as its parts: `constants` are the values of variables that are closed over."""

    arguments: tuple[Var, ...]
    constants: dict[Var, Any]
    equations: tuple[JaxprEqn, ...]
    results: tuple[Atom, ...]


def opened(closed: ClosedJaxpr) -> OpenJaxpr:
    constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    jaxpr = closed.jaxpr
    return OpenJaxpr(tuple(jaxpr.invars), constants, tuple(jaxpr.eqns), tuple(jaxpr.outvars))


def inlined(program: OpenJaxpr, chosen: Callable[[JaxprEqn], bool]) -> OpenJaxpr:
    """`program` with the jitted calls that `chosen` picks replaced by what they call, once.

    It is `program` itself if there are none.
    """
    calls = [e for e in program.equations if e.primitive.name in _JIT and chosen(e)]
    if not calls:
        return program
    picked = set(map(id, calls))
    constants = dict(program.constants)
    equations: list[JaxprEqn] = []
    renamed: dict[Var, Atom] = {}

    def current(atom: Atom) -> Atom:
        return renamed.get(atom, atom) if is_variable(atom) else atom

    for equation in program.equations:
        inputs = [current(a) for a in equation.invars]
        if id(equation) not in picked:
            equations.append(equation.replace(invars=inputs))
            continue
        inner, results = _called(equation, inputs, constants)
        equations += inner
        for variable, result in zip(equation.outvars, results, strict=True):
            renamed[variable] = result
    found = tuple(current(a) for a in program.results)
    return OpenJaxpr(program.arguments, constants, tuple(equations), found)


def _called(
    equation: JaxprEqn, inputs: Sequence[Atom], constants: dict[Var, Any]
) -> tuple[list[JaxprEqn], list[Atom]]:
    """The equations of a call with new variables, and its results; shardings become constraints."""
    params = equation.params
    body = params.get("jaxpr", params.get("call_jaxpr"))
    outer = equation.source_info
    made: list[JaxprEqn] = []
    inputs = _constrained(inputs, params.get("in_shardings", ()), outer, made)
    inner, results = copied(opened(body), inputs, outer, constants)
    made += inner
    return made, _constrained(results, params.get("out_shardings", ()), outer, made)


def copied(
    program: OpenJaxpr, inputs: Sequence[Atom], outer: SourceInfo, constants: dict[Var, Any]
) -> tuple[list[JaxprEqn], list[Atom]]:
    """The equations of `program` on `inputs` with variables of their own, and its results.

    `outer` is the source of the call: its scope goes before theirs. `constants` is added to.
    """
    from jax.extend import core

    new = core.gensym()
    names: dict[Var, Atom] = dict(zip(program.arguments, inputs, strict=True))
    for variable, value in program.constants.items():
        names[variable] = new(variable.aval)
        constants[names[variable]] = value

    def current(atom: Atom) -> Atom:
        return names[atom] if is_variable(atom) else atom

    made = []
    for equation in program.equations:
        operands = [current(a) for a in equation.invars]
        for variable in equation.outvars:
            names[variable] = variable if is_dropped(variable) else new(variable.aval)
        info = equation.source_info
        info = info.replace(name_stack=outer.name_stack + info.name_stack)
        results = [names[v] for v in equation.outvars]
        made.append(equation.replace(invars=operands, outvars=results, source_info=info))
    return made, [current(a) for a in program.results]


def _constrained(
    atoms: Sequence[Atom], shardings: Sequence[object], outer: SourceInfo, made: list[JaxprEqn]
) -> list[Atom]:
    """`atoms` with the shardings that a jitted function was given for them."""
    import jax

    found = list(atoms)
    for number, sharding in enumerate(shardings):
        if isinstance(sharding, jax.sharding.NamedSharding) and is_variable(found[number]):
            constrain = partial(jax.lax.with_sharding_constraint, shardings=sharding)
            found[number] = applied(constrain, [found[number]], outer, made)
    return found


def applied(
    function: Callable[..., Any], atoms: Sequence[Atom], outer: SourceInfo, made: list[JaxprEqn]
) -> Var:
    """The variable `function(*atoms)`; its equations are added to `made`, with source `outer`."""
    import jax

    structs = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in atoms]
    program = opened(jax.make_jaxpr(function)(*structs))
    inner, (result,) = copied(program, atoms, outer, {})
    made += [e.replace(source_info=outer) for e in inner]
    return result


def renamed(program: OpenJaxpr, names: Mapping[Var, Atom]) -> OpenJaxpr:
    """`program` in which equations and results read `names[v]` instead of variable v."""

    def current(atom: Atom) -> Atom:
        return names.get(atom, atom) if is_variable(atom) else atom

    equations = tuple(
        e.replace(invars=[current(a) for a in e.invars]) if any(v in names for v in reads(e)) else e
        for e in program.equations
    )
    results = tuple(current(a) for a in program.results)
    return replace(program, equations=equations, results=results)
