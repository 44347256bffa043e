"""A whole JAX model, cut into the functions of its pipeline stages without being rewritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError, nearest
from flint.frontends.jax_stages.cut.flow import without_mixed_calls
from flint.frontends.jax_stages.cut.jaxprs import (
    Flops,
    OpenJaxpr,
    applied,
    is_dropped,
    is_variable,
    reads,
    renamed,
    scan_operands,
)
from flint.frontends.jax_stages.cut.layers import (
    FoundLayers,
    find_layers,
    find_scope,
    known_scopes,
    opened_for_layers,
    opened_for_scopes,
)
from flint.frontends.jax_stages.cut.parts import Cutting
from flint.frontends.jax_stages.cut.stages import stage_functions
from flint.frontends.jax_stages.cut.trace import (
    ModelArgument,
    Traced,
    from_parameters,
    traced_model,
)
from flint.frontends.jax_stages.microbatch import one_microbatch
from flint.frontends.jax_stages.stage_function import StageFunction
from flint.frontends.jax_step.equations import place
from flint.frontends.jax_step.program import definition
from flint.frontends.jax_step.specs import check_spec
from flint.frontends.stages.cut_points import LayerCuts, ScopeCuts, layer_starts, parse_cut
from flint.frontends.stages.pipeline import Tied
from flint.ir.mesh import Mesh
from flint.steps.pipeline import Pipeline

if TYPE_CHECKING:
    from jax import Array
    from jax.extend.core import JaxprEqn, Var

# A scan over stacked parameters, cut into shorter scans over slices of them.

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


@dataclass(frozen=True)
class CutModel:
    """The stages of a model, and the parameters that several of them hold.

    `tied` are pairs ((stage, parameter name), (stage, parameter name)): each stage that reads a
    parameter, paired with the first that does.
    """

    stages: tuple[StageFunction, ...]
    tied: tuple[Tied, ...]


@dataclass(frozen=True)
class _Point:
    """Where a stage begins: at an equation, or at a layer of the scan that this equation is."""

    equation: int
    layer: int = 0


def cut_model(pipeline: Pipeline, mesh: Mesh, count: int) -> CutModel:
    """Cut `pipeline.model`, and its loss, into `count` stages as `pipeline.cut` says.

    Raises FlintError: FL241 (no such layers or scope, points out of order or not as many as
    stages), FL242 (more stages than layers), FL243 (microbatches do not divide the batch), FL244
    (more values cross a cut than `crossing` says, or none, or a scan that cannot be cut), FL240
    (no scalar loss), FL203 (the user's function raised), and FL102 to FL106 for shardings.
    """
    microbatch = one_microbatch(pipeline, mesh, pipeline.model)
    cut = parse_cut(pipeline.cut, count)
    where, work = definition(pipeline.model), Flops()
    traced = without_mixed_calls(traced_model(pipeline, mesh, microbatch), work)
    if count == 1:
        cutting = Cutting(traced, (), {})
    elif isinstance(cut, LayerCuts):
        cutting = _at_layers(traced, cut, count, mesh, work, where)
    else:
        cutting = _at_scopes(traced, cut, mesh, work, where)
    stages, tied = stage_functions(cutting, pipeline, mesh, microbatch, work)
    return CutModel(stages, tied)


def _at_layers(
    traced: Traced, cut: LayerCuts, count: int, mesh: Mesh, work: Flops, where: str | None
) -> Cutting:
    path = tuple(cut.name.split("/"))
    traced = opened_for_layers(traced, path, work)
    layers = find_layers(traced, path, work)
    if layers is None:
        raise _no_scope(traced, cut.name, where)
    before, flops, after = _layer_flops(traced, layers, work)
    starts = layer_starts(cut, layers.count, count, flops, before, after, where)
    points = [_point(layers, i) for i in starts]
    return _cut_at(traced, points, [layers], mesh)


def _at_scopes(
    traced: Traced, cut: ScopeCuts, mesh: Mesh, work: Flops, where: str | None
) -> Cutting:
    paths = [tuple(s.split("/")) for s in cut.scopes]
    traced = opened_for_scopes(traced, paths, work)
    points, groups = [], list[FoundLayers]()
    for name, path in zip(cut.scopes, paths, strict=True):
        first = find_scope(traced, path)
        if first is not None:
            points.append(_Point(first))
            continue
        layers = find_layers(traced, path[:-1], work) if path[-1].isdigit() else None
        if layers is None or (layers.name.split("/")[-1:] != [*path[-2:-1]]):
            raise _no_scope(traced, name, where)
        if not int(path[-1]) < layers.count:
            raise FlintError(
                "FL241",
                f"no stage can begin at '{name}': '{layers.name}' has {layers.count} layers",
                place=where,
            )
        groups += [layers] if layers not in groups else []
        points.append(_point(layers, int(path[-1])))
    order = [(p.equation, p.layer) for p in points]
    if order != sorted(set(order)) or order[0] == (0, 0):
        raise FlintError(
            "FL241",
            f"the scopes of cut '{','.join(cut.scopes)}' are not in program order",
            place=where,
            help="give the scopes in the order in which the model runs them; the first stage "
            "begins with the model",
        )
    return _cut_at(traced, points, groups, mesh)


def _point(layers: FoundLayers, index: int) -> _Point:
    if layers.scan is not None:
        return _Point(layers.scan, index)
    return _Point(layers.spans[index][0])


def _no_scope(traced: Traced, name: str, where: str | None) -> FlintError:
    known = known_scopes(traced)
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return FlintError(
        "FL241",
        f"the model has no layers or scope '{name}'{nearest(name, known)}",
        place=where,
        help=f"its scopes are {shown}"
        if known
        else "name parts of the model with jax.named_scope, or put layers into a list or scan",
    )


def _layer_flops(traced: Traced, layers: FoundLayers, work: Flops) -> tuple[int, list[int], int]:
    """FLOPs before the layers, of each of them, and after them."""
    equations = traced.program.equations
    if layers.scan is not None:
        each = work.of_one(equations[layers.scan]) // max(layers.count, 1)
        before, after = work.of(equations[: layers.scan]), work.of(equations[layers.scan + 1 :])
        return before, [each] * layers.count, after
    flops = [work.of(equations[first : last + 1]) for first, last in layers.spans]
    before = work.of(equations[: layers.spans[0][0]])
    return before, flops, work.of(equations[layers.spans[-1][1] + 1 :])


def _cut_at(
    traced: Traced, points: Sequence[_Point], groups: Sequence[FoundLayers], mesh: Mesh
) -> Cutting:
    """Cut the scans that stages begin inside; the last one first, so that indices hold."""
    content = _list_content(traced, groups)
    first = [traced.program.equations[p.equation].outvars[0] for p in points]
    names = {g.scan: g.name for g in groups}
    for scan in sorted({p.equation for p in points if p.layer}, reverse=True):
        layers = [p.layer for p in points if p.equation == scan and p.layer]
        whole = traced.program.equations[scan]
        cut = cut_scan(traced, scan, layers, mesh)
        traced = cut.traced
        made = [traced.program.equations[i].outvars[0] for i in cut.starts]
        edges = (0, *layers, whole.params["length"])
        for number, variable in enumerate(made):
            content[variable] = (names[scan], edges[number], edges[number + 1] - 1)
        for number, point in enumerate(points):
            if point.equation == scan:
                first[number] = made[edges.index(point.layer)]
    maker = {v: i for i, e in enumerate(traced.program.equations) for v in e.outvars}
    return Cutting(traced, tuple(maker[v] for v in first), content)


def _list_content(traced: Traced, groups: Sequence[FoundLayers]) -> dict[Any, tuple[str, int, int]]:
    """By an equation's first result, the layer of a list that it belongs to."""
    found = {}
    for layers in groups:
        for number, (start, end) in enumerate(layers.spans):
            for equation in traced.program.equations[start : end + 1]:
                found[equation.outvars[0]] = (layers.name, number, number)
    return found
