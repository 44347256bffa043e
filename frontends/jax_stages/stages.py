"""`Stage`s and `Layers` of a pipeline become one function for each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flint.errors import FlintError
from flint.frontends.jax_stages.cut.jaxprs import Flops
from flint.frontends.jax_stages.microbatch import Microbatch, on_boundary, one_microbatch
from flint.frontends.jax_stages.parts import StagePart, described, layers_part, shown, stage_part
from flint.frontends.jax_stages.stage_function import StageFunction, traced
from flint.frontends.jax_step.program import definition
from flint.frontends.stages.cut_points import split_layers
from flint.ir.mesh import Mesh
from flint.steps.pipeline import Layers, Pipeline, Stage


def stage_functions(pipeline: Pipeline, mesh: Mesh, count: int) -> list[StageFunction]:
    """The `count` stages that `pipeline.stages` give.

    Raises FlintError: FL240 (a number of stages or a split that does not fit, names that repeat, a
    loss that is not a scalar), FL242 (more stages than layers), FL243, FL244, and what `capture_jax`
    raises for arguments and functions.
    """
    microbatch = one_microbatch(pipeline, mesh, pipeline.stages[0].fn)
    plan = _plan(pipeline, mesh, count, microbatch)
    stages: list[StageFunction] = []
    known: dict[Any, StageFunction] = {}
    values: tuple[Any, ...] = ()
    for number, parts in enumerate(plan):
        stage = _stage(parts, values, number == 0, number == count - 1, pipeline, microbatch)
        if stage.key not in known:
            known[stage.key] = _with_outputs(stage, pipeline, mesh, microbatch)
        values = known[stage.key].outputs
        stages.append(replace(stage, outputs=values))
    return stages


def _plan(
    pipeline: Pipeline, mesh: Mesh, count: int, microbatch: Microbatch
) -> list[list[StagePart]]:
    given = list(pipeline.stages)
    axis = pipeline.axis
    at = [i for i, s in enumerate(given) if isinstance(s, Layers)]
    if not at:
        if len(given) != count:
            raise FlintError(
                "FL240",
                f"{len(given)} stages are given, but the pipeline has {count}: '{axis}' "
                f"({mesh.axis_size(axis)}) times chunks ({pipeline.chunks})",
                help="give that many stages, or parts around one flint.Layers",
            )
        plan = [[stage_part(s, i, mesh, axis)] for i, s in enumerate(given) if isinstance(s, Stage)]
    elif len(at) > 1:
        raise FlintError(
            "FL240", f"{len(at)} Layers are given, but only one can be split over stages"
        )
    else:
        plan = _around(given, at[0], pipeline, mesh, count, microbatch)
    _refuse_repeated_names(plan)
    return plan


def _around(
    given: Sequence[Stage | Layers],
    at: int,
    pipeline: Pipeline,
    mesh: Mesh,
    count: int,
    microbatch: Microbatch,
) -> list[list[StagePart]]:
    layers = given[at]
    assert isinstance(layers, Layers), "its index was found by its type"
    parts = [
        stage_part(s, i, mesh, pipeline.axis) if isinstance(s, Stage) else None
        for i, s in enumerate(given)
    ]
    before, after = [p for p in parts[:at] if p], [p for p in parts[at + 1 :] if p]
    flops = (0, 1, 0)
    if layers.split == "balanced" and count <= layers.count:
        one = layers_part(layers, 0, 1, mesh, pipeline.axis)
        flops = _flops(before, one, after, pipeline, mesh, microbatch)
    numbers = split_layers(layers.count, count, layers.split, layers.name, flops)
    starts = [sum(numbers[:s]) for s in range(count)]
    plan = [
        [layers_part(layers, start, n, mesh, pipeline.axis)]
        for start, n in zip(starts, numbers, strict=True)
    ]
    plan[0][:0] = before
    plan[-1] += after
    return plan


def _flops(
    before: list[StagePart],
    layer: StagePart,
    after: list[StagePart],
    pipeline: Pipeline,
    mesh: Mesh,
    microbatch: Microbatch,
) -> tuple[int, int, int]:
    batch = microbatch.inputs | microbatch.targets
    values = microbatch.rebuild_inputs(batch)
    found = []
    for part in [*before, layer, *after]:
        place = definition(part.fn)
        jaxpr, out = traced(part.call, (part.params, *values), mesh, part.label, place)
        values = (out,)
        found.append(Flops().of(jaxpr.eqns))
    if pipeline.loss is not None:
        goals = microbatch.rebuild_targets(batch)
        place = definition(pipeline.loss)
        jaxpr, _ = traced(pipeline.loss, (*values, *goals), mesh, "loss", place)
        found.append(Flops().of(jaxpr.eqns))
    at = len(before)
    return sum(found[:at]), found[at], sum(found[at + 1 :])


def _stage(
    parts: list[StagePart],
    inputs: tuple[Any, ...],
    first: bool,
    last: bool,
    pipeline: Pipeline,
    microbatch: Microbatch,
) -> StageFunction:
    label = ", ".join(p.label for p in parts)

    def run(
        params: dict[str, Any], batch: dict[str, Any], values: tuple[Any, ...]
    ) -> tuple[object, ...]:
        import jax

        given = microbatch.rebuild_inputs(batch) if first else values
        if not first and len(values) > 1:
            given = (values,)
        for part in parts:
            given = (part.call(params, *given),)
        if not last:
            return _flat(given[0], label, place)
        result = given[0]
        if pipeline.loss is not None:
            with jax.named_scope("loss"):
                result = pipeline.loss(result, *microbatch.rebuild_targets(batch))
        return tuple(jax.tree.leaves(result))

    place = definition(parts[0].fn)
    batch = (microbatch.inputs if first else {}) | (microbatch.targets if last else {})
    params = {name: leaf for part in parts for name, leaf in part.params.items()}
    key = (tuple(p.key for p in parts), tuple(map(described, inputs)), first, last)
    return StageFunction(run, params, batch, inputs, (), label, key, last, place)


def _flat(result: Any, label: str, place: str | None) -> tuple[Any, ...]:
    """One array, or a flat tuple of several, as a tuple."""
    import jax

    if isinstance(result, jax.Array):
        return (result,)
    several = isinstance(result, tuple) and len(result) > 1
    if several and all(isinstance(r, jax.Array) for r in result):
        return tuple(result)
    raise FlintError(
        "FL244",
        f"{label} returns {jax.tree.structure(result)} to the next stage ({shown(result)})",
        place=place,
        help="return one array, or a flat tuple of as many arrays as `crossing` says",
    )


def _with_outputs(
    stage: StageFunction, pipeline: Pipeline, mesh: Mesh, microbatch: Microbatch
) -> StageFunction:
    args = (dict(stage.params), dict(stage.batch), stage.inputs)
    values = traced(stage.fn, args, mesh, stage.label, stage.place)[1]
    if not stage.is_last:
        values = on_boundary(values, pipeline, mesh, microbatch, stage.label)
    elif pipeline.trains:
        _refuse_no_loss(values, stage, pipeline)
    return replace(stage, outputs=tuple(values))


def _refuse_no_loss(values: tuple[Any, ...], stage: StageFunction, pipeline: Pipeline) -> None:
    """Raise FlintError FL240 unless the step ends with one floating scalar."""
    import jax.numpy as jnp

    if len(values) == 1 and not values[0].shape and jnp.issubdtype(values[0].dtype, jnp.floating):
        return
    what = "loss returns" if pipeline.loss is not None else f"without a loss, {stage.label} returns"
    raise FlintError(
        "FL240",
        f"{what} {shown(values) or 'nothing'}, not a scalar to differentiate",
        place=definition(pipeline.loss) if pipeline.loss is not None else stage.place,
        help="give a loss(output, *targets) that is a mean over the microbatch",
    )


def _refuse_repeated_names(plan: list[list[StagePart]]) -> None:
    seen: set[str] = set()
    for part in (p for parts in plan for p in parts if not p.start):
        if part.name in seen:
            raise FlintError(
                "FL240",
                f"two parts of the pipeline are called '{part.name}'",
                help="names distinguish their parameters: give each part its own",
            )
        seen.add(part.name)
