"""Stage functions of a program that was cut between equations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from flint.errors import FlintError
from flint.frontends.jax_program import definition
from flint.frontends.jax_stages.boundary import on_boundary
from flint.frontends.jax_stages.cut_flow import Flow, flow_of
from flint.frontends.jax_stages.cut_jaxpr import Digests, Work, is_variable, place, reads, scope
from flint.frontends.jax_stages.cut_trace import Argument, Traced
from flint.frontends.jax_stages.microbatch import Microbatch
from flint.frontends.jax_stages.stage_function import StageFunction
from flint.mesh import Mesh
from flint.pipeline import Pipeline

Tied = tuple[tuple[tuple[int, str], tuple[int, str]], ...]


@dataclass(frozen=True)
class Cutting:
    """A program, and the equation at which each stage but the first begins.

    `content` are, by an equation's first result, the layers that it is: (name, first, last).
    """

    traced: Traced
    starts: tuple[int, ...]
    content: Mapping[Any, tuple[str, int, int]]


@dataclass(frozen=True)
class _Part:
    """One stage as variables of the program: what it reads, its equations and what it gives."""

    number: int
    arguments: tuple[Any, ...]
    constants: tuple[Any, ...]
    inputs: tuple[Any, ...]
    equations: tuple[Any, ...]
    results: tuple[Any, ...]
    label: str


def stage_functions(
    cutting: Cutting, pipeline: Pipeline, mesh: Mesh, microbatch: Microbatch, work: Work
) -> tuple[tuple[StageFunction, ...], Tied]:
    """The stages, and the pairs of parameters that are one.

    Raises FlintError FL244: a cut that more values cross than `pipeline.crossing` says, or none.
    """
    flow = flow_of(cutting.traced.program, cutting.traced.described, work)
    edges = (0, *cutting.starts, len(flow.program.equations))
    crossing = [flow.crossing(p) for p in cutting.starts]
    parts: list[_Part] = []
    for number, (start, end) in enumerate(pairwise(edges)):
        label = _label(cutting, flow, start, end) or f"stage {number}"
        inputs = tuple(crossing[number - 1]) if number else ()
        last = number == len(edges) - 2
        results = flow.program.results if last else tuple(crossing[number])
        parts.append(_part(number, cutting, flow, (start, end), inputs, results, label))
    for number, values in enumerate(crossing):
        _check_crossing(values, flow, cutting.starts[number], parts, number, pipeline)
    return _functions(parts, cutting, pipeline, mesh, microbatch), _tied(parts, cutting)


def _part(
    number: int,
    cutting: Cutting,
    flow: Flow,
    span: tuple[int, int],
    inputs: tuple[Any, ...],
    results: tuple[Any, ...],
    label: str,
) -> _Part:
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
    return _Part(
        number,
        tuple(v for v in program.arguments if v in leaves),
        tuple(v for v in program.constants if v in leaves),
        inputs,
        tuple(program.equations[i] for i in sorted(chosen)),
        results,
        label,
    )


# what crosses ---------------------------------------------------------------------------------


def _check_crossing(
    values: Sequence[Any],
    flow: Flow,
    position: int,
    parts: Sequence[_Part],
    number: int,
    pipeline: Pipeline,
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
    if len(values) > pipeline.crossing:
        shown = "; ".join(_described(v, flow, position) for v in values)
        raise FlintError(
            "FL244",
            f"the cut between stage {number} ({before}) and {number + 1} ({after}) needs "
            f"{len(values)} values, crossing is {pipeline.crossing}: {shown}",
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


# functions ------------------------------------------------------------------------------------


def _functions(
    parts: Sequence[_Part],
    cutting: Cutting,
    pipeline: Pipeline,
    mesh: Mesh,
    microbatch: Microbatch,
) -> tuple[StageFunction, ...]:
    digests, shared = Digests(), _shared_parameters(parts, cutting)
    stages: list[StageFunction] = []
    inputs: tuple[Any, ...] = ()
    for part in parts:
        is_last = part is parts[-1]
        outputs = tuple(_struct(r) for r in part.results)
        if not is_last:
            outputs = _on_boundary(outputs, pipeline, mesh, microbatch, part.label)
        described = [cutting.traced.described[v] for v in part.arguments]
        stages.append(
            StageFunction(
                fn=_evaluated(part, cutting),
                params={a.name: a.struct for a in described if a.is_parameter},
                batch={a.name: a.struct for a in described if not a.is_parameter},
                inputs=inputs,
                outputs=outputs,
                label=part.label,
                key=_key(part, described, cutting, inputs, outputs, digests, shared),
                is_last=is_last,
                place=definition(pipeline.model),
            )
        )
        inputs = outputs
    return tuple(stages)


def _on_boundary(
    values: tuple[Any, ...], pipeline: Pipeline, mesh: Mesh, microbatch: Microbatch, label: str
) -> tuple[Any, ...]:
    """Shardings of what leaves a stage; fewer values than `crossing` take its first shardings."""
    boundary = pipeline.boundary
    if isinstance(boundary, list | tuple) and not hasattr(boundary, "unreduced"):
        boundary = tuple(boundary)[: len(values)]
    fitting = replace(pipeline, crossing=len(values), boundary=boundary)
    return on_boundary(values, fitting, mesh, microbatch, label)


def _struct(atom: Any) -> Any:
    import jax

    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def _evaluated(part: _Part, cutting: Cutting) -> Any:
    """The stage's equations as a function; scopes and places in the source stay theirs."""
    from jax.extend import core

    described = cutting.traced.described
    params = [v for v in part.arguments if described[v].is_parameter]
    batch = [v for v in part.arguments if not described[v].is_parameter]
    effects = set().union(*(e.effects for e in part.equations))
    jaxpr = core.Jaxpr(
        part.constants,
        [*params, *batch, *part.inputs],
        part.results,
        part.equations,
        effects,
        core.DebugInfo("jit", f"stage {part.label}", None, None),
    )
    constants = [cutting.traced.program.constants[v] for v in part.constants]
    evaluate = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, constants))
    names = [described[v].name for v in params], [described[v].name for v in batch]

    def stage(
        params: Mapping[str, Any], batch: Mapping[str, Any], inputs: Sequence[Any]
    ) -> tuple[Any, ...]:
        held = [params[n] for n in names[0]]
        return tuple(evaluate(*held, *(batch[n] for n in names[1]), *inputs))

    return stage


def _key(
    part: _Part,
    described: Sequence[Argument],
    cutting: Cutting,
    inputs: tuple[Any, ...],
    outputs: tuple[Any, ...],
    digests: Digests,
    shared: Mapping[str, Sequence[int]],
) -> tuple[Any, ...]:
    """Equal for stages that compute the same; names count only of what several stages share."""
    program = cutting.traced.program
    structs = [*(a.struct for a in described), *inputs, *outputs]
    named = (a.name if not a.is_parameter or a.name in shared else "" for a in described)
    return (
        digests.of([*part.constants, *part.arguments, *part.inputs], part.equations, part.results),
        tuple(named),
        tuple((str(s.dtype), s.shape, str(getattr(s, "sharding", None))) for s in structs),
        tuple(id(program.constants[v]) for v in part.constants),
    )


def _shared_parameters(parts: Sequence[_Part], cutting: Cutting) -> dict[str, list[int]]:
    """The stages that read each parameter that several of them read."""
    readers: dict[Any, list[int]] = {}
    for part in parts:
        for variable in part.arguments:
            if cutting.traced.described[variable].is_parameter:
                readers.setdefault(variable, []).append(part.number)
    described = cutting.traced.described
    return {described[v].name: stages for v, stages in readers.items() if len(stages) > 1}


def _tied(parts: Sequence[_Part], cutting: Cutting) -> Tied:
    shared = _shared_parameters(parts, cutting)
    return tuple(
        ((stages[0], name), (stage, name))
        for name, stages in shared.items()
        for stage in stages[1:]
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
    return ", ".join(_texts(found))


def _add(found: list[tuple[str, int, int]], here: tuple[str, int, int]) -> None:
    last = found[-1] if found else None
    if last is None or last[0] != here[0] or (last[1] < 0) != (here[1] < 0):
        if here not in found:
            found.append(here)
    elif here[2] > last[2]:
        found[-1] = (last[0], last[1], here[2])


def _texts(found: Iterable[tuple[str, int, int]]) -> list[str]:
    texts = []
    for name, first, last in found:
        if first < 0:
            texts.append(name)
        else:
            texts.append(f"{name} {first}" if first == last else f"{name} {first}-{last}")
    return texts
