"""Stage functions of a model that was cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flint.frontends.jax_stages.cut.digests import Digests
from flint.frontends.jax_stages.cut.flow import flow_of
from flint.frontends.jax_stages.cut.jaxprs import Flops
from flint.frontends.jax_stages.cut.parts import CutStage, Cutting, check_crossing, parts_of
from flint.frontends.jax_stages.cut.slices import narrowed
from flint.frontends.jax_stages.cut.trace import ModelArgument, Traced
from flint.frontends.jax_stages.microbatch import Microbatch, on_boundary
from flint.frontends.jax_stages.stage_function import StageFunction
from flint.frontends.jax_step.program import definition
from flint.ir.mesh import Mesh
from flint.steps.pipeline import Pipeline

if TYPE_CHECKING:
    from jax import ShapeDtypeStruct

    from flint.frontends.jax_stages.cut.jaxprs import Atom


Tied = tuple[tuple[tuple[int, str], tuple[int, str]], ...]


def stage_functions(
    cutting: Cutting, pipeline: Pipeline, mesh: Mesh, microbatch: Microbatch, work: Flops
) -> tuple[tuple[StageFunction, ...], Tied]:
    """The stages, and the pairs of parameters that are one.

    Raises FlintError: FL244 (a cut that more values cross than `pipeline.crossing` says, or none),
    and what `on_boundary` raises.
    """
    flow = flow_of(cutting.traced.program, cutting.traced.described, work)
    parts = parts_of(cutting, flow)
    check_crossing(parts, flow, cutting.starts, pipeline.crossing)
    parts, traced = narrowed(parts, cutting.traced, mesh)
    return _functions(parts, traced, pipeline, mesh, microbatch), _tied(parts, traced)


def _functions(
    parts: Sequence[CutStage],
    traced: Traced,
    pipeline: Pipeline,
    mesh: Mesh,
    microbatch: Microbatch,
) -> tuple[StageFunction, ...]:
    digests, shared = Digests(), _shared_parameters(parts, traced)
    stages: list[StageFunction] = []
    inputs: tuple[Any, ...] = ()
    for part in parts:
        is_last = part is parts[-1]
        outputs = tuple(_struct(r) for r in part.results)
        if not is_last:
            outputs = _on_boundary(outputs, pipeline, mesh, microbatch, part.label)
        described = [traced.described[v] for v in part.arguments]
        stages.append(
            StageFunction(
                fn=_evaluated(part, traced),
                params={a.name: a.struct for a in described if a.is_parameter},
                batch={a.name: a.struct for a in described if not a.is_parameter},
                inputs=inputs,
                outputs=outputs,
                label=part.label,
                key=_key(part, described, traced, inputs, outputs, digests, shared),
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
    import jax

    boundary = pipeline.boundary
    one = isinstance(boundary, jax.sharding.PartitionSpec | jax.sharding.NamedSharding)
    if boundary is not None and not one:
        boundary = tuple(boundary)[: len(values)]
    fitting = replace(pipeline, crossing=len(values), boundary=boundary)
    return on_boundary(values, fitting, mesh, microbatch, label)


def _struct(atom: Atom) -> ShapeDtypeStruct:
    import jax

    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def _evaluated(part: CutStage, traced: Traced) -> Callable[..., tuple[Any, ...]]:
    """The stage's equations as a function; scopes and places in the source stay theirs."""
    from jax.extend import core

    described = traced.described
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
    constants = [traced.program.constants[v] for v in part.constants]
    evaluate = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, constants))
    names = [described[v].name for v in params], [described[v].name for v in batch]

    def stage(
        params: Mapping[str, Any], batch: Mapping[str, Any], inputs: Sequence[Any]
    ) -> tuple[Any, ...]:
        held = [params[n] for n in names[0]]
        return tuple(evaluate(*held, *(batch[n] for n in names[1]), *inputs))

    return stage


def _key(
    part: CutStage,
    described: Sequence[ModelArgument],
    traced: Traced,
    inputs: tuple[Any, ...],
    outputs: tuple[Any, ...],
    digests: Digests,
    shared: Mapping[str, Sequence[int]],
) -> tuple[Any, ...]:
    """Equal for stages that compute the same; names count only of what several stages share."""
    program = traced.program
    structs = [*(a.struct for a in described), *inputs, *outputs]
    named = (a.name if not a.is_parameter or a.name in shared else "" for a in described)
    return (
        digests.of([*part.constants, *part.arguments, *part.inputs], part.equations, part.results),
        tuple(named),
        tuple((str(s.dtype), s.shape, str(getattr(s, "sharding", None))) for s in structs),
        tuple(id(program.constants[v]) for v in part.constants),
    )


def _shared_parameters(parts: Sequence[CutStage], traced: Traced) -> dict[str, list[int]]:
    """The stages that read each parameter that several of them read."""
    readers: dict[Any, list[int]] = {}
    for part in parts:
        for variable in part.arguments:
            if traced.described[variable].is_parameter:
                readers.setdefault(variable, []).append(part.number)
    described = traced.described
    return {described[v].name: stages for v, stages in readers.items() if len(stages) > 1}


def _tied(parts: Sequence[CutStage], traced: Traced) -> Tied:
    shared = _shared_parameters(parts, traced)
    return tuple(
        ((stages[0], name), (stage, name))
        for name, stages in shared.items()
        for stage in stages[1:]
    )
