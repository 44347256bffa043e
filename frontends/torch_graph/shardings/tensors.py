"""How the tensors of a PyTorch step lie on the mesh, from what the user wrote about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError, nearest
from flint.frontends.torch_graph.shardings.packed import Packed
from flint.frontends.torch_graph.shardings.placements import (
    fsdp_axes,
    fully_sharded,
    partition_spec,
)
from flint.frontends.torch_graph.shardings.tp_plan import (
    STYLES,
    Layout,
    Style,
    checked_plan,
    layout_spec,
    sharded_dimension,
)
from flint.ir.mesh import Mesh
from flint.steps.step import TorchStep

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

#: Key of `TorchStep.shardings` that holds a HuggingFace plan, and the axes that it means by itself.
PLAN_KEY = "tp_plan"
PLAN_AXES = ("model", "tp")


@dataclass(frozen=True)
class NamedTensor:
    """A parameter, buffer or input: all its names (tied parameters have several) and its type."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    floating: bool = True


@dataclass(frozen=True)
class Constraint:
    """What is known about an activation before its shape is: a placement, or a plan's layout."""

    placement: object
    where: str
    layout: Layout | None = None
    axis: str = ""
    sequence: bool = False


@dataclass(frozen=True)
class Shardings:
    """PartitionSpecs by name. Made by `plan_shardings`.

    `outputs` are constraints by module and number of the tensor that it returns; `packed` is for
    `packed.split_by_shards`. `warnings` says what the user asked for in general and could not have
    in particular.
    """

    mesh: Mesh
    rest: Mapping[str, Any]
    use: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    outputs: Mapping[tuple[str, int], Constraint] = field(default_factory=dict)
    packed: Mapping[str, Packed] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def argument(self, name: str, shape: Sequence[int]) -> PartitionSpec:
        """How the argument `name`, or a state of the optimizer for it, is sharded at rest.

        `shape` is that of the argument or of the state: a state with as many dimensions is sharded
        where its sizes are the parameter's, any other is replicated.
        """
        return _for_shape(self.rest[name], self.shapes[name], tuple(shape))

    def at_use(self, name: str, shape: Sequence[int]) -> PartitionSpec | None:
        """How a parameter is sharded where it is computed with; None where that is as at rest.

        Fully sharded parameters are gathered over the axes of `fsdp` and stay sharded over others.
        """
        if name not in self.use:
            return None
        return _for_shape(self.use[name], self.shapes[name], tuple(shape))

    def gradient(self, name: str, shape: Sequence[int]) -> PartitionSpec:
        """How the gradient of a parameter is sharded: as the parameter is at rest."""
        return self.argument(name, shape)

    def activation(self, module: str, index: int, shape: Sequence[int]) -> PartitionSpec | None:
        """The constraint on tensor `index` of what `module` returns, or None.

        Raises FlintError: FL102, FL103, FL106 and FL222 for a placement that cannot be.
        """
        found, size = self.outputs.get((module, index)), tuple(shape)
        if found is None:
            return None
        if found.layout is not None:
            return layout_spec(found.layout, size, found.axis, self.mesh, sequence=found.sequence)
        what = f"what {module or 'the module'} returns"
        return partition_spec(
            found.placement, size, "", what, self.mesh, found.where, may_be_open=True
        )


def plan_shardings(
    step: TorchStep,
    mesh: Mesh,
    *,
    parameters: Sequence[NamedTensor],
    buffers: Sequence[NamedTensor] = (),
    inputs: Sequence[NamedTensor] = (),
    modules: Iterable[str] = (),
) -> Shardings:
    """Read `step.shardings`, `step.activations` and `step.fsdp` for a module's tensors.

    Patterns are globs (see `patterns.matching`) over the names of parameters, buffers and inputs
    together; where several match, the last one written counts. Whatever no pattern names is
    replicated, except under `fsdp`: parameters are fully sharded, and inputs with the batch (the
    first dimension of the first input) in dimension 0 are sharded there, if it divides. `modules`
    are module paths, "" the whole; a pattern of `activations` means the first tensor that a
    module returns, `layers.*.attention[1]` the second.

    >>> step = TorchStep(model, shardings={"layers.*.wq.weight": ("model", None)}, fsdp="data")
    >>> plan_shardings(step, Mesh.parse("data=2,model=4"), parameters=[
    ...     NamedTensor(("layers.0.wq.weight",), (64, 64), "bf16")
    ... ]).argument("layers.0.wq.weight", (64, 64))
    P(('model', 'data'),)

    Raises FlintError: FL221 (a pattern that matches nothing), FL222 (a placement or plan that
    cannot be), FL102, FL103 and FL106 (axes and sizes that do not fit).
    """
    planner = _Planner(step, mesh, tuple(parameters), tuple(buffers), tuple(inputs), tuple(modules))
    try:
        return planner.plan()
    except FlintError as error:
        error.place = "  ".join(filter(None, (step.made_at, error.place)))
        raise


class _Planner:
    """One reading of a step: placements by the first name of each tensor, constraints by module."""

    def __init__(
        self,
        step: TorchStep,
        mesh: Mesh,
        parameters: tuple[NamedTensor, ...],
        buffers: tuple[NamedTensor, ...],
        inputs: tuple[NamedTensor, ...],
        modules: tuple[str, ...],
    ) -> None:
        self.step, self.mesh, self.modules = step, mesh, modules
        self.parameters, self.inputs = parameters, inputs
        self.tensors = (*parameters, *buffers, *inputs)
        self.by_name = {name: t for t in self.tensors for name in t.names}
        self.placed: dict[str, Any] = {}
        self.outputs: dict[tuple[str, int], Constraint] = {}
        self.packed: dict[str, Packed] = {}
        self.warnings: dict[str, None] = {}

    def plan(self) -> Shardings:
        for key, value in self.step.shardings.items():
            if _is_plan(key):
                self._read_plan(key, value)
            else:
                self._read_pattern(key, value)
        for pattern, placement in self.step.activations.items():
            self._read_activation(pattern, placement)
        rest, use = self._at_rest()
        return Shardings(
            self.mesh,
            _spread(rest, self.tensors),
            _spread(use, self.tensors),
            {name: t.shape for name, t in self.by_name.items()},
            self.outputs,
            self.packed,
            tuple(self.warnings),
        )

    def _read_pattern(self, pattern: object, placement: object) -> None:
        where = f"shardings[{pattern!r}]"
        if not isinstance(pattern, str):
            raise FlintError(
                "FL222",
                f"{pattern!r} is not the name of a tensor",
                place=where,
                help='keys are globs over names, "tp_plan" or ("tp_plan", axis)',
            )
        found = matching(pattern, list(self.by_name))
        if not found:
            raise no_match(pattern, list(self.by_name), "parameter, buffer or input", where)
        for name in found:
            tensor = self.by_name[name]
            self.placed[tensor.names[0]] = partition_spec(
                placement, tensor.shape, tensor.dtype, name, self.mesh, where
            )

    def _read_activation(self, pattern: str, placement: object) -> None:
        where = f"activations[{pattern!r}]"
        plain, index = _split_index(pattern)
        found = matching(plain, self.modules)
        if not found:
            raise no_match(plain, [m for m in self.modules if m], "module", where)
        for path in found:
            self.outputs[path, index] = Constraint(placement, where)

    # plans ------------------------------------------------------------------------------------

    def _read_plan(self, key: object, value: object) -> None:
        where = f"shardings[{key!r}]"
        axis = self._plan_axis(key, where)
        plan = checked_plan(value, where)
        sequence = "sequence_parallel" in plan.values()
        modules: dict[str, Style] = {}
        parameters: dict[str, Style] = {}
        for pattern, name in plan.items():
            of_modules = self._plan_matches(pattern, self.modules)
            of_parameters = self._plan_matches(pattern, self._parameter_names())
            modules |= dict.fromkeys(of_modules, STYLES[name])
            parameters |= dict.fromkeys(of_parameters, STYLES[name])
            if not of_modules and not of_parameters:
                self.warnings[f"'{pattern}' of the tensor-parallel plan matches nothing"] = None
        if not modules and not parameters:
            raise no_match(next(iter(plan)), self.modules, "module or parameter", where)
        for name in self._parameter_names():
            owner = name if name in parameters else name.rpartition(".")[0]
            style = parameters.get(owner) or modules.get(owner)
            if style is not None:
                self._place_by_plan(name, owner, style, axis)
        for path, style in modules.items():
            self._constrain_by_plan(path, style, where, axis, sequence)

    def _plan_axis(self, key: Any, where: str) -> str:
        if key != PLAN_KEY:
            self.mesh.axis_size(key[1])
            return str(key[1])
        found = [a for a in PLAN_AXES if a in self.mesh.names]
        if found:
            return found[0]
        raise FlintError(
            "FL222",
            f"no axis of the mesh is called {' or '.join(PLAN_AXES)}",
            place=where,
            help=f'name the axis of the plan: ("tp_plan", "{self.mesh.names[-1]}")',
        )

    def _plan_matches(self, pattern: str, names: Sequence[str]) -> list[str]:
        """Names that a rule of a plan means.

        A rule may be written for a module inside this one, as `config.base_model_tp_plan` is.
        """
        return matching(pattern, names) or matching(f"**.{pattern}", names)

    def _parameter_names(self) -> list[str]:
        return [name for t in self.parameters for name in t.names]

    def _place_by_plan(self, name: str, owner: str, style: Style, axis: str) -> None:
        """Shard a parameter; `owner` is what the plan names, it or its module."""
        from jax.sharding import PartitionSpec

        tensor = self.by_name[name]
        dimension = sharded_dimension(style, len(tensor.shape))
        if dimension is None:
            self.placed[tensor.names[0]] = PartitionSpec()
            return
        size, over = tensor.shape[dimension], self.mesh.axis_size(axis)
        if size % over:
            self._warn(
                name,
                f"stays whole: '{axis}' ({over}) does not divide dimension {dimension} ({size})",
            )
            return
        if style.packed and len(tensor.shape) > 1 and size % (2 * over) == 0:
            self.packed[owner.rpartition(".")[0]] = Packed(size, over)
        self.placed[tensor.names[0]] = PartitionSpec(*[None] * dimension, axis)

    def _constrain_by_plan(
        self, path: str, style: Style, where: str, axis: str, sequence: bool
    ) -> None:
        if style.output is not None:
            self.outputs[path, 0] = Constraint(None, where, style.output, axis, sequence)

    def _warn(self, name: str, message: str) -> None:
        """Once for tensors of all layers that differ in their number alone."""
        self.warnings[f"{without_numbers(name)} {message}"] = None

    # at rest ----------------------------------------------------------------------------------

    def _at_rest(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Placements at rest of all tensors, and at use of those that FSDP gathers."""
        from jax.sharding import PartitionSpec

        axes = fsdp_axes(self.step.fsdp, self.mesh)
        rest = {t.names[0]: self.placed.get(t.names[0], PartitionSpec()) for t in self.tensors}
        use: dict[str, Any] = {}
        if axes:
            self._shard_parameters(axes, rest, use)
            self._shard_batch(axes, rest)
        return rest, use

    def _shard_parameters(
        self, axes: tuple[str, ...], rest: dict[str, Any], use: dict[str, Any]
    ) -> None:
        for tensor in self.parameters:
            if not tensor.floating or not tensor.shape:
                continue
            name = tensor.names[0]
            placed = rest[name]
            sharded = fully_sharded(placed, tensor.shape, axes, self.mesh)
            if sharded is None:
                shown = f"{' and '.join(axes)} divide none of its dimensions {list(tensor.shape)}"
                self._warn(name, f"is not fully sharded: {shown}")
            elif sharded != placed:
                rest[name], use[name] = sharded, placed

    def _shard_batch(self, axes: tuple[str, ...], rest: dict[str, Any]) -> None:
        from jax.sharding import PartitionSpec

        batch = next((t.shape[0] for t in self.inputs if t.shape), 0)
        for tensor in self.inputs:
            if tensor.names[0] in self.placed or tensor.shape[:1] != (batch,):
                continue
            sharded = fully_sharded(PartitionSpec(), tensor.shape[:1], axes, self.mesh)
            if sharded is not None:
                rest[tensor.names[0]] = sharded


def _is_plan(key: object) -> bool:
    return key == PLAN_KEY or (isinstance(key, tuple) and len(key) == 2 and key[0] == PLAN_KEY)


def _split_index(pattern: str) -> tuple[str, int]:
    """`layers.*.attention[1]` as its glob and 1; without brackets, 0."""
    found = re.fullmatch(r"(.*)\[(\d+)\]", pattern)
    return (found[1], int(found[2])) if found else (pattern, 0)


def _spread(specs: Mapping[str, Any], tensors: Iterable[NamedTensor]) -> dict[str, Any]:
    return {n: specs[t.names[0]] for t in tensors if t.names[0] in specs for n in t.names}


def _for_shape(
    spec: PartitionSpec, whole: tuple[int, ...], shape: tuple[int, ...]
) -> PartitionSpec:
    from jax.sharding import PartitionSpec

    if shape == whole:
        return spec
    if len(shape) != len(whole):
        return PartitionSpec()
    kept = zip(spec, whole, shape, strict=False)
    return PartitionSpec(*(entry if old == new else None for entry, old, new in kept))


# Globs over dotted names (`layers.*.attention.wq.weight`) and what to say when one matches none.


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The names that `pattern` matches, in their order.

    `*` stands for any characters within one part of a dotted name and `?` for one of them; a part
    `**` stands for any number of parts, none included. Brackets are ordinary characters:
    `cache[0]` is a name.
    """
    expression = _compiled(pattern)
    return [name for name in names if expression.fullmatch(name)]


def no_match(pattern: str, names: Sequence[str], what: str, where: str) -> FlintError:
    """FL221: `pattern`, written in `where`, matches none of `names`, which are names of `what`."""
    shown = ", ".join(_shortened(names))
    return FlintError(
        "FL221",
        f"'{pattern}' matches no {what}{_suggestion(pattern, names)}",
        place=where,
        help=f"there are: {shown}" if shown else f"the module has no {what}",
    )


def without_numbers(name: str) -> str:
    """A name with stars for the numbers of layers: `layers.*.norm.weight`."""
    return re.sub(r"(?<=\.)\d+(?=\.|\Z)", "*", name)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    *front, last = pattern.split(".")
    text = "".join(r"(?:[^.]+\.)*" if p == "**" else _part(p) + r"\." for p in front)
    if last != "**":
        text += _part(last)
    elif text.endswith(r"\."):
        text = text.removesuffix(r"\.") + r"(?:\.[^.]+)*"
    else:
        text += ".*"
    return re.compile(text, re.DOTALL)


def _part(part: str) -> str:
    return re.escape(part).replace(r"\*", "[^.]*").replace(r"\?", "[^.]")


def _suggestion(pattern: str, names: Sequence[str]) -> str:
    """The nearest name, its numbers as stars where the pattern has stars."""
    general = {without_numbers(name): name for name in reversed(names)}
    if "*" in pattern:
        return nearest(pattern, list(reversed(general)))
    return nearest(pattern, list(names))


def _shortened(names: Sequence[str], limit: int = 12) -> list[str]:
    """Names with the numbers of layers as stars, each once, at most `limit`."""
    general = list(dict.fromkeys(map(without_numbers, names)))
    return general[:limit] + (["..."] if len(general) > limit else [])
