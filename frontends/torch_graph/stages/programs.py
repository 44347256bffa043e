"""A PyTorch step in stages, as JAX functions: each different stage once."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from flint.errors import FlintError
from flint.frontends.stages.pipeline import Tied, layers_label, microbatch_size
from flint.frontends.torch_graph.block_calls import TracedBlocks, traced_blocks
from flint.frontends.torch_graph.blocks import graph_fingerprint, plain_arguments, tensor_type
from flint.frontends.torch_graph.export import Exported, definition, export_step
from flint.frontends.torch_graph.names import module_path
from flint.frontends.torch_graph.optimizer.update import (
    CLIP_SCOPE,
    Update,
    optimizer_update,
    scaled_gradients,
    squared_norm,
)
from flint.frontends.torch_graph.program import Argument, not_split, scoped, state_argument
from flint.frontends.torch_graph.shardings.annotations import annotate, tensors_of
from flint.frontends.torch_graph.shardings.packed import split_by_shards
from flint.frontends.torch_graph.shardings.tensors import Shardings, plan_shardings
from flint.frontends.torch_graph.stages.boundary import Boundary, refuse_axis
from flint.frontends.torch_graph.stages.cut_modules import first_modules
from flint.frontends.torch_graph.stages.graphs import Rules, StageGraph, split_graph
from flint.frontends.torch_graph.stages.step import PortedProgram, StageStep, ported, stage_step
from flint.frontends.torch_ops.table import load_table
from flint.frontends.torch_private import pytree
from flint.ir.mesh import Mesh
from flint.steps.captured import Port, Role
from flint.steps.pipeline import Pipeline
from flint.steps.step import TorchStep

if TYPE_CHECKING:
    from jax import Array

# What the optimizer does with the parameters of one stage, once in a step.

_SQUARED_NORM = Port(Role.SQUARED_NORM)


@dataclass(frozen=True)
class StageOptimizer:
    """The optimizer of a whole model, and what it needs to know to be cut into stages.

    `clip_norm` is the largest norm of all gradients, `gradient_dtype` what gradients were added up
    in ("" is their own).
    """

    update: Update
    shardings: Shardings
    clip_norm: float | None = None
    gradient_dtype: str = ""

    def gradient(self, parameter: Argument) -> tuple[Port, Argument]:
        """The accumulated gradient of a parameter, as an argument."""
        name, shape = parameter.name, parameter.shape
        dtype = self.gradient_dtype or parameter.dtype
        spec = self.shardings.gradient(name, shape)
        return Port(Role.GRADIENT, name), Argument(f"gradient.{name}", shape, dtype, spec)

    def norm_program(self, trained: Sequence[Argument]) -> PortedProgram:
        """The sum of the squares of the gradients of `trained`: zero, if there are none."""
        import jax

        gradients = [self.gradient(p) for p in trained]
        specs = {port.name: argument.spec for port, argument in gradients}

        def norm(*arrays: Array) -> tuple[Array]:
            with jax.named_scope(CLIP_SCOPE):
                return (squared_norm(dict(zip(specs, arrays, strict=True)), specs),)

        return ported(norm, gradients, [_SQUARED_NORM])

    def update_program(self, trained: Sequence[Argument]) -> PortedProgram | None:
        """New values of those of `trained` that the optimizer holds, and its state; or None."""
        held = [replace(p, donated=True) for p in trained if p.name in self.update.steps]
        if not held:
            return None
        steps = {p.name: scoped(p.name, self.update.steps[p.name]) for p in held}
        states = [s for p in held for s in self._states(p.name)]
        arguments = [
            *((Port(Role.PARAMETER, p.name), p) for p in held),
            *map(self.gradient, held),
            *states,
            *self._norm_argument(),
        ]
        counts = {p.name: len(self.update.state_specs[p.name]) for p in held}

        def update(*arrays: Array) -> tuple[Any, ...]:
            count = len(held)
            gradients = self._clipped(held, arrays[count : 2 * count], arrays[-1])
            parameters, own = [], []
            rest = iter(arrays[2 * count :])
            for parameter, array in zip(held, arrays, strict=False):
                state = [next(rest) for _ in range(counts[parameter.name])]
                new, *kept = steps[parameter.name](array, gradients[parameter.name], *state)
                parameters.append(new)
                own += kept
            return (*parameters, *own)

        results = [*(Port(Role.PARAMETER, p.name) for p in held), *(port for port, _ in states)]
        return ported(update, arguments, results)

    def _states(self, name: str) -> list[tuple[Port, Argument]]:
        return [
            (Port(Role.STATE, f"{name}.{key}"), state_argument(name, key, spec, self.shardings))
            for key, spec in self.update.state_specs[name].items()
        ]

    def _norm_argument(self) -> list[tuple[Port, Argument]]:
        from jax.sharding import PartitionSpec

        if self.clip_norm is None:
            return []
        return [(_SQUARED_NORM, Argument("squared_norm", (), "float32", PartitionSpec()))]

    def _clipped(
        self, held: Sequence[Argument], gradients: Sequence[Any], total: Any
    ) -> Mapping[str, Any]:
        """Gradients by name, clipped, in the type of their parameters as PyTorch wants them."""
        import jax

        found = {p.name: g for p, g in zip(held, gradients, strict=True)}
        if self.clip_norm is not None:
            with jax.named_scope(CLIP_SCOPE):
                found = scaled_gradients(found, total, self.clip_norm)
        with jax.named_scope("@optimizer"):
            return {p.name: found[p.name].astype(p.dtype) for p in held}


class Renumbered:
    """Names of modules and parameters with numbers that begin at 0 in each list of a stage.

    >>> name = Renumbered()
    >>> name("layers.8.wq.weight"), name("layers.9.wq.weight")
    ('layers.0.wq.weight', 'layers.1.wq.weight')
    """

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}

    def __call__(self, name: str) -> str:
        parts = name.split(".")
        found: list[str] = []
        for depth, part in enumerate(parts):
            if part.isdecimal():
                known = self._numbers.setdefault(".".join(parts[:depth]), {})
                part = str(known.setdefault(part, len(known)))
            found.append(part)
        return ".".join(found)


def stage_key(stage: StageGraph) -> Hashable:
    """Equal for stages that compute the same from arguments that are sharded alike."""
    name = Renumbered()
    inputs = tuple(
        (i.port.role, name(i.port.name), i.port.number, i.kind, str(i.spec), i.trainable)
        for i in stage.inputs
    )
    nodes = list(stage.graph_module.graph.nodes)
    numbers = {n: i for i, n in enumerate(nodes)}
    steps = []
    for node in nodes:
        target = "" if node.op in ("placeholder", "output") else node.target
        if node.op == "get_attr":
            target = graph_fingerprint(getattr(stage.graph_module, node.target))
        arguments = plain_arguments((node.args, node.kwargs), numbers)
        if node.op == "placeholder":
            arguments = ()
        kind = tensor_type(node.meta.get("val"))
        steps.append((node.op, target, arguments, kind, name(module_path(node))))
    return inputs, tuple(steps), stage.outputs, tuple(map(str, stage.boundary))


def stage_label(stage: StageGraph, begins: Sequence[str], loss: bool) -> str:
    """`tok_embeddings, layers 0-7`: the modules of a stage, those in lists by their numbers.

    A module is named at the depth at which it parts from the lists that the cut lies in.
    """
    lists = [begin.split(".")[:-1] for begin in begins] or [[]]
    units = [u for u in dict.fromkeys(_unit(path, lists) for path in stage.paths) if u]
    shown: list[str] = []
    while units:
        name, number = units.pop(0)
        if number is None:
            shown.append(name)
            continue
        last = number
        while units and units[0] == (name, last + 1):
            del units[0]
            last += 1
        shown.append(layers_label(name or "modules", number, last))
    return ", ".join([*shown, *(["loss"] if loss else [])])


def _unit(path: str, lists: Sequence[Sequence[str]]) -> tuple[str, int | None] | None:
    """A module by name, or by list and number; None for one that holds a list."""
    parts = path.split(".")
    depth = max(len(os.path.commonprefix([parts, list(of)])) for of in lists)
    if len(parts) <= depth:
        return None
    if parts[depth].isdecimal():
        return ".".join(parts[:depth]), int(parts[depth])
    return ".".join(parts[: depth + 1]), None


@dataclass(frozen=True)
class StagePrograms:
    """What `staged.StageBodies` is, before it is lowered."""

    step: PortedProgram
    norm: PortedProgram | None = None
    update: PortedProgram | None = None


@dataclass(frozen=True)
class StagedModel:
    """The different stages of a model, which stage is which, and parameters in two stages.

    The fields are those of `CapturedPipeline`. A parameter in `tied` is called as in the body of
    its stage, whose names are those of the first stage that has it.
    """

    bodies: tuple[StagePrograms, ...]
    stages: tuple[int, ...]
    labels: tuple[str, ...]
    tied: tuple[Tied, ...]
    warnings: tuple[str, ...]


def staged_model(pipeline: Pipeline, mesh: Mesh) -> StagedModel:
    """Export the module on one microbatch, cut it, and differentiate each different stage.

    Raises FlintError: FL240 to FL244 as `capture_torch_pipeline`, and what `torch_program` raises.
    """
    load_table()
    step: TorchStep = one_microbatch(pipeline.model, pipeline.microbatches)
    count = mesh.axis_size(pipeline.axis) * pipeline.chunks
    exported = export_step(step)
    begins = first_modules(pipeline.cut, exported, count)
    shardings = _planned(step, mesh, exported, pipeline.microbatches)
    moved = split_by_shards(exported.graph_module, shardings.packed)
    annotate(exported, shardings)
    refuse_axis(exported, shardings, pipeline.axis)
    boundary = Boundary(pipeline, mesh, exported, shardings, batch_size(step))
    rules = Rules(pipeline.crossing, boundary.spec, boundary.argument)
    graphs = split_graph(exported, begins, rules, step.trains)
    labels = tuple(stage_label(g, begins, g is graphs[-1] and step.trains) for g in graphs)
    builder = _Builder(graphs, shardings, _optimizer(pipeline, step, graphs, shardings))
    with traced_blocks() as traced:
        bodies, stages = builder.build(traced)
    written = sorted({name for s in builder.steps for name in s.written})
    warnings = (
        *shardings.warnings,
        *boundary.whole_batch(step.fsdp),
        *map(not_split, sorted(moved)),
        *map(_kept_once, written),
    )
    return StagedModel(bodies, stages, labels, builder.tied(stages), warnings)


def _planned(step: TorchStep, mesh: Mesh, exported: Exported, microbatches: int) -> Shardings:
    """The shardings; what they do not divide may be a microbatch, of which the user wrote none."""
    try:
        return plan_shardings(step, mesh, **tensors_of(exported))
    except FlintError as error:
        if error.code != "FL103" or microbatches == 1:
            raise
        note = f"arguments are those of one of {microbatches} microbatches"
        shown = f"{note}; {error.help}" if error.help else note
        raise FlintError("FL103", error.message, place=error.place, help=shown) from error


def _kept_once(name: str) -> str:
    return f"{name} is written in place: its memory counts once, not for every microbatch"


def _optimizer(
    pipeline: Pipeline, step: TorchStep, graphs: Sequence[StageGraph], shardings: Shardings
) -> StageOptimizer | None:
    if step.optimizer is None:
        return None
    used = {name for graph in graphs for name in _trained(graph)}
    named = {n: p for n, p in step.module.named_parameters() if n in used}
    clip_norm = step.clip_norm if pipeline.clip_norm is None else pipeline.clip_norm
    update = optimizer_update(step.optimizer, named)
    return StageOptimizer(update, shardings, clip_norm, pipeline.gradient_dtype)


def _trained(graph: StageGraph) -> list[str]:
    return [i.port.name for i in graph.inputs if i.trainable]


class _Builder:
    """Traces stages in order, equal ones once."""

    def __init__(
        self, graphs: Sequence[StageGraph], shardings: Shardings, optimizer: StageOptimizer | None
    ) -> None:
        self.graphs, self.shardings, self.optimizer = graphs, shardings, optimizer
        self.steps: list[StageStep] = []
        self.firsts: list[StageGraph] = []

    def build(self, traced: TracedBlocks) -> tuple[tuple[StagePrograms, ...], tuple[int, ...]]:
        known: dict[Any, int] = {}
        stages: list[int] = []
        programs: list[StagePrograms] = []
        seen: set[str] = set()
        gradients: frozenset[int] = frozenset()
        for graph in self.graphs:
            repeated = [name in seen for name in _trained(graph)]
            seen.update(_trained(graph))
            key = (stage_key(graph), gradients, tuple(repeated), self._update_key(graph))
            if key not in known:
                known[key] = len(programs)
                self.steps.append(stage_step(graph, self.shardings, gradients, traced))
                self.firsts.append(graph)
                programs.append(self._programs(graph, self.steps[-1], repeated))
            stages.append(known[key])
            gradients = self.steps[known[key]].differentiable
        return tuple(programs), tuple(stages)

    def _update_key(self, graph: StageGraph) -> Hashable:
        """Equal for stages whose parameters, in order, the optimizer treats alike."""
        if self.optimizer is None:
            return None
        update = self.optimizer.update
        return tuple(
            (id(update.steps.get(name)), str(update.state_specs.get(name)))
            for name in _trained(graph)
        )

    def _programs(
        self, graph: StageGraph, step: StageStep, repeated: Sequence[bool]
    ) -> StagePrograms:
        optimizer = self.optimizer
        if optimizer is None:
            return StagePrograms(step.program)
        norm = None
        if optimizer.clip_norm is not None:
            # A parameter of several stages has the same gradient in each: it counts in the first.
            skipped = {n for n, again in zip(_trained(graph), repeated, strict=True) if again}
            norm = optimizer.norm_program([p for p in step.trained if p.name not in skipped])
        return StagePrograms(step.program, norm, optimizer.update_program(step.trained))

    def tied(self, stages: Sequence[int]) -> tuple[Tied, ...]:
        """Every parameter of several stages: the first of them with each of the others."""
        ends: dict[str, list[tuple[int, str]]] = {}
        for number, body in enumerate(stages):
            with_gradient = {p.name for p in self.steps[body].trained}
            own, shown = _trained(self.graphs[number]), _trained(self.firsts[body])
            for name, port in zip(own, shown, strict=True):
                if port in with_gradient:
                    ends.setdefault(name, []).append((number, port))
        return tuple((of[0], other) for of in ends.values() for other in of[1:])


def one_microbatch(step: TorchStep, count: int) -> TorchStep:
    """The step for one of `count` microbatches: its module on a part of the batch.

    The batch is dimension 0 of the first argument that is a tensor; every tensor among arguments
    and arguments of the loss whose dimension 0 has that size is divided, all others stay whole.
    Raises FlintError FL243: there is no batch, or `count` does not divide it.
    """
    batch = batch_size(step)
    place = definition(step.module)
    if batch is None and count > 1:
        raise FlintError(
            "FL243",
            f"no argument has a batch dimension for {count} microbatches",
            place=place,
            help="give the module a tensor whose dimension 0 is the batch",
        )
    size = microbatch_size(batch, count, "the first argument", place) if batch is not None else 0

    def divided(leaf: object) -> object:
        if batch is None or not isinstance(leaf, torch.Tensor) or leaf.shape[:1] != (batch,):
            return leaf
        return leaf.detach().narrow(0, 0, size)

    args, kwargs, loss_args = pytree.tree_map(
        divided, (tuple(step.args), dict(step.kwargs), tuple(step.loss_args))
    )
    return replace(step, args=args, kwargs=kwargs, loss_args=loss_args)


def batch_size(step: TorchStep) -> int | None:
    """Dimension 0 of the first argument that is a tensor with dimensions, or None."""
    return next((int(t.shape[0]) for t in _tensors(step) if t.dim()), None)


def _tensors(step: TorchStep) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves((tuple(step.args), dict(step.kwargs))):
        if isinstance(leaf, torch.Tensor):
            yield leaf
