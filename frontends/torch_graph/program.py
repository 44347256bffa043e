"""A step as a JAX function: graphs, arguments with shardings, what is donated, what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flint.frontends.torch_graph.annotations import annotate, tensors_of
from flint.frontends.torch_graph.export import Exported, Input, export_step
from flint.frontends.torch_graph.interpreter import DTYPES, Interpreter, refuse_unknown
from flint.frontends.torch_graph.joint import Joint, trace_joint
from flint.frontends.torch_graph.shardings import Shardings, plan_shardings
from flint.frontends.torch_ops.table import load_table
from flint.mesh import Mesh
from flint.step import TorchStep


@dataclass(frozen=True)
class Argument:
    """One argument of the step: its name, type, sharding, and whether its memory is reused."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: Any
    donated: bool = False


@dataclass(frozen=True)
class TorchProgram:
    """A step ready for JAX: `function` takes `arguments`, in order."""

    function: Callable[..., Any]
    arguments: tuple[Argument, ...]


def torch_program(step: TorchStep, mesh: Mesh) -> TorchProgram:
    """Export a step, place what the user said about shardings, and differentiate it."""
    load_table()
    exported = export_step(step)
    shardings = plan_shardings(step, mesh, **tensors_of(exported))
    annotate(exported, shardings)
    trainable = [step.trains and i.trainable for i in exported.inputs]
    joint = trace_joint(exported.graph_module, trainable)
    refuse_unknown(joint.graph_module.graph.nodes)
    return TorchProgram(_function(exported, joint), _arguments(exported, joint, shardings))


def _arguments(exported: Exported, joint: Joint, shardings: Shardings) -> tuple[Argument, ...]:
    found = []
    for number, described in enumerate(exported.inputs):
        value = joint.primals[number].meta["val"]
        shape = tuple(value.shape)
        spec = _spec(described, shape, shardings)
        donated = number in joint.mutations
        found.append(Argument(described.name, shape, DTYPES[value.dtype], spec, donated))
    return tuple(found)


def _spec(described: Input, shape: Sequence[int], shardings: Shardings) -> Any:
    from jax.sharding import PartitionSpec

    if described.kind == "constant":
        return PartitionSpec()
    return shardings.argument(described.name, shape)


def _function(exported: Exported, joint: Joint) -> Callable[..., Any]:
    """(outputs, gradients by number, new values of mutated inputs by number) of the inputs."""
    nodes = [n for n in joint.graph_module.graph.nodes if n.op == "call_function"]
    forward = [n for n in nodes if n.meta.get("partitioner_tag") != "is_backward"]
    backward = [n for n in nodes if n.meta.get("partitioner_tag") == "is_backward"]

    def step(*inputs: Any) -> Any:
        import jax.numpy as jnp

        values = {node: inputs[number] for number, node in joint.primals.items()}
        for node in joint.tangents.values():
            values[node] = jnp.ones((), DTYPES[node.meta["val"].dtype])
        interpreter = Interpreter()
        interpreter.run(forward, values, "forward")
        interpreter.run(backward, values, "backward")
        outputs = tuple(values[n] for n in joint.outputs.values())
        gradients = {i: values[n] for i, n in joint.gradients.items()}
        return outputs, gradients, {i: values[n] for i, n in joint.mutations.items()}

    return step
