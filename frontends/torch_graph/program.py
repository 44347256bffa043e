"""A step as a JAX function: graphs, arguments with shardings, what is donated, what comes out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from flint.frontends.torch_graph.block_calls import block_functions, blocks_as_operators, mark_calls
from flint.frontends.torch_graph.export import Input, export_step
from flint.frontends.torch_graph.interpreter import Interpreter, refuse_unknown
from flint.frontends.torch_graph.joint import Joint, trace_joint
from flint.frontends.torch_graph.names import refuse_impossible, scope_of_parameter
from flint.frontends.torch_graph.optimizer.update import Update, optimizer_update
from flint.frontends.torch_graph.partition import Parts, partition
from flint.frontends.torch_graph.shardings.annotations import annotate, tensors_of
from flint.frontends.torch_graph.shardings.packed import split_by_shards
from flint.frontends.torch_graph.shardings.tensors import Shardings, plan_shardings
from flint.frontends.torch_ops.table import load_table
from flint.frontends.torch_ops.types import jax_dtype
from flint.ir.mesh import Mesh
from flint.steps.step import TorchStep

if TYPE_CHECKING:
    from jax import Array, ShapeDtypeStruct
    from jax.sharding import PartitionSpec


@dataclass(frozen=True)
class Argument:
    """One argument of the step: its name, type, sharding, and whether its memory is reused."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: PartitionSpec
    donated: bool = False


@dataclass(frozen=True)
class TorchProgram:
    """A step ready for JAX: `function` takes `arguments`, in order.

    `warnings` are sentences for the user about shardings that could not be as asked for.
    """

    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    warnings: tuple[str, ...] = ()


def torch_program(step: TorchStep, mesh: Mesh, *, blocks: bool = True) -> TorchProgram:
    """Export a step, place what the user said about shardings, and differentiate it.

    Without `blocks`, layers that repeat are traced each by itself: the same program, slower.
    """
    load_table()
    exported = export_step(step)
    refuse_impossible(exported.graph_module.graph)
    shardings = plan_shardings(step, mesh, **tensors_of(exported))
    moved = split_by_shards(exported.graph_module, shardings.packed)
    annotate(exported, shardings)
    trainable = [step.trains and i.trainable for i in exported.inputs]
    with blocks_as_operators(exported.graph_module, trainable, blocks) as found:
        joint = trace_joint(exported.graph_module, trainable)
        mark_calls(joint, found)
        parts = partition(joint)
    functions = block_functions(found)
    refuse_unknown(
        chain(parts.forward, parts.backward, *(b.graphs() for b in found)), known=functions
    )
    body = _Body(exported.inputs, joint, parts, Interpreter(calls=functions), shardings)
    warnings = (*shardings.warnings, *map(not_split, sorted(moved)))
    if step.optimizer is None:
        return TorchProgram(lambda *inputs: body.run(inputs), body.arguments(), warnings)
    named = dict(step.module.named_parameters())
    update = optimizer_update(step.optimizer, body.stepped(named), step.clip_norm)
    return replace(_with_optimizer(body, update), warnings=warnings)


def not_split(module: str) -> str:
    """What to tell the user about a packed weight in a module that does not split by halves."""
    return (
        f"{module}: the plan packs two weights into one, but nothing there splits their product "
        "in halves; mismatched shards are exchanged"
    )


@dataclass(frozen=True)
class _Body:
    """The forward and backward pass as a function of the inputs of the exported graph."""

    inputs: tuple[Input, ...]
    joint: Joint
    parts: Parts
    interpreter: Interpreter
    shardings: Shardings

    def arguments(self, donated: Collection[str] = ()) -> tuple[Argument, ...]:
        """The inputs; those that change, and those in `donated`, give their memory away."""
        found = []
        for number, described in enumerate(self.inputs):
            value = self.joint.primals[number].meta["val"]
            shape = tuple(value.shape)
            gone = number in self.joint.mutations or described.name in donated
            spec = self._spec(described, shape)
            found.append(Argument(described.name, shape, jax_dtype(value.dtype).name, spec, gone))
        return tuple(found)

    def _spec(self, described: Input, shape: tuple[int, ...]) -> PartitionSpec:
        from jax.sharding import PartitionSpec

        if described.kind == "constant":
            return PartitionSpec()
        return self.shardings.argument(described.name, shape)

    def stepped(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Those parameters that get a gradient: PyTorch's optimizers leave out all others."""
        with_gradient = {self.inputs[i].name for i in self.joint.gradients}
        return {name: p for name, p in parameters.items() if name in with_gradient}

    def run(self, inputs: Sequence[Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Outputs, gradients by name of the parameter, new values of what changed by name."""
        import jax.numpy as jnp

        joint = self.joint
        values = {node: inputs[number] for number, node in joint.primals.items()}
        for node in joint.tangents.values():
            values[node] = jnp.ones((), jax_dtype(node.meta["val"].dtype))
        self.interpreter.run(self.parts.forward, values, "forward")
        self.interpreter.run(self.parts.backward, values, "backward")
        gradients = {self.inputs[i].name: values[n] for i, n in joint.gradients.items()}
        return (
            tuple(values[n] for n in joint.outputs.values()),
            {name: self._placed(name, g) for name, g in gradients.items()},
            {self.inputs[i].name: values[n] for i, n in joint.mutations.items()},
        )

    def _placed(self, name: str, gradient: Array) -> Array:
        import jax

        with jax.named_scope(scope_of_parameter(name, "backward")):
            spec = self.shardings.gradient(name, gradient.shape)
            return jax.lax.with_sharding_constraint(gradient, spec)


def _with_optimizer(body: _Body, update: Update) -> TorchProgram:
    """The body, then the update. Parameters and state are donated, and come back."""
    specs = update.state_specs
    names = [(name, key) for name, of in specs.items() for key in of]
    steps = {name: scoped(name, step) for name, step in update.steps.items()}
    update = replace(update, steps=steps)
    count = len(body.inputs)
    trained = {i.name: n for n, i in enumerate(body.inputs) if i.name in specs}
    state_arguments = tuple(
        state_argument(name, key, specs[name][key], body.shardings) for name, key in names
    )

    def step(*arrays: Array) -> tuple[Any, ...]:
        outputs, gradients, changed = body.run(arrays[:count])
        state: dict[str, dict[str, Any]] = {}
        for (name, key), array in zip(names, arrays[count:], strict=True):
            state.setdefault(name, {})[key] = array
        params = {name: arrays[n] for name, n in trained.items()}
        grad_specs = {n: body.shardings.gradient(n, g.shape) for n, g in gradients.items()}
        params, state = update.apply(params, gradients, state, grad_specs)
        return outputs, params, state, changed

    return TorchProgram(step, (*body.arguments(donated=trained), *state_arguments))


def scoped(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    """The update of the parameter `name`, under the scope of the module that holds it."""

    def under_scope(*arrays: Array) -> object:
        import jax

        with jax.named_scope(scope_of_parameter(name, "optimizer")):
            return step(*arrays)

    return under_scope


def state_argument(name: str, key: str, spec: ShapeDtypeStruct, shardings: Shardings) -> Argument:
    """The optimizer's state `key` of the parameter `name`."""
    shape = tuple(spec.shape)
    placed = shardings.argument(name, shape)
    return Argument(f"optimizer.{name}.{key}", shape, spec.dtype, placed, donated=True)
