"""A whole JAX model, cut into the functions of its pipeline stages without being rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flint.errors import FlintError, nearest
from flint.frontends.jax_stages.cut.flow import without_mixed_calls
from flint.frontends.jax_stages.cut.jaxprs import Flops
from flint.frontends.jax_stages.cut.layers import (
    FoundLayers,
    find_layers,
    find_scope,
    known_scopes,
    opened_for_layers,
    opened_for_scopes,
)
from flint.frontends.jax_stages.cut.parts import Cutting
from flint.frontends.jax_stages.cut.scan import cut_scan
from flint.frontends.jax_stages.cut.stages import stage_functions
from flint.frontends.jax_stages.cut.trace import Traced, traced_model
from flint.frontends.jax_stages.microbatch import one_microbatch
from flint.frontends.jax_stages.stage_function import StageFunction
from flint.frontends.jax_step.program import definition
from flint.frontends.stages.cut_points import LayerCuts, ScopeCuts, layer_starts, parse_cut
from flint.frontends.stages.pipeline import Tied
from flint.ir.mesh import Mesh
from flint.steps.pipeline import Pipeline


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
