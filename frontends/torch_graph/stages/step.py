"""The forward and backward pass of one stage on one microbatch, as a JAX function with ports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from flint.frontends.torch_graph.block_calls import (
    TracedBlocks,
    block_functions,
    blocks_as_operators,
    mark_calls,
)
from flint.frontends.torch_graph.interpreter import Interpreter, refuse_unknown
from flint.frontends.torch_graph.joint import Joint, trace_joint
from flint.frontends.torch_graph.names import scope_of_parameter
from flint.frontends.torch_graph.partition import Parts, partition
from flint.frontends.torch_graph.program import Argument
from flint.frontends.torch_graph.shardings.tensors import Shardings
from flint.frontends.torch_graph.stages.graphs import StageGraph, StageInput
from flint.frontends.torch_ops.types import jax_dtype
from flint.steps.captured import Port, Role

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True)
class PortedProgram:
    """A function for JAX that returns a flat tuple; arguments and results with their ports."""

    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    argument_ports: tuple[Port, ...]
    result_ports: tuple[Port, ...]


@dataclass(frozen=True)
class StageStep:
    """A stage's step, its trained parameters as the optimizer gets them, and which of its outputs
    have a gradient, by number."""

    program: PortedProgram
    trained: tuple[Argument, ...]
    differentiable: frozenset[int]
    written: tuple[str, ...]


def stage_step(
    stage: StageGraph,
    shardings: Shardings,
    differentiable: frozenset[int],
    traced: TracedBlocks | None = None,
) -> StageStep:
    """Trace a stage forward and backward.

    `differentiable` are the numbers of the INPUTs that the stage before gives a gradient on to.
    Layers that are in `traced` are not traced again. Raises FlintError FL220 (operators that are
    not known).
    """
    trainable = [_has_gradient(i, differentiable) for i in stage.inputs]
    with blocks_as_operators(stage.graph_module, trainable, traced=traced) as found:
        joint = trace_joint(stage.graph_module, trainable)
        mark_calls(joint, found)
        parts = partition(joint)
    functions = block_functions(found)
    refuse_unknown(
        chain(parts.forward, parts.backward, *(b.graphs() for b in found)), known=functions
    )
    body = _StageBody(
        stage, joint, parts, Interpreter(calls=functions), shardings, tuple(trainable)
    )
    inputs = [body.argument(i) for i in range(len(stage.inputs))]
    cotangents = [body.cotangent(i) for i in joint.tangents]

    def step(*arrays: Array) -> tuple[Any, ...]:
        return body.run(arrays)

    program = PortedProgram(
        step,
        (*inputs, *cotangents),
        (*(body.port(i) for i in range(len(stage.inputs))), *map(_cotangent_port, joint.tangents)),
        body.results(),
    )
    written = [stage.inputs[i].port for i in joint.mutations]
    return StageStep(
        program,
        tuple(inputs[i] for i in body.trained),
        frozenset(joint.tangents),
        tuple(p.name for p in written if p.role is Role.BATCH),
    )


def _has_gradient(described: StageInput, differentiable: frozenset[int]) -> bool:
    if described.port.role is Role.INPUT:
        return described.port.number in differentiable
    return described.trainable


def _cotangent_port(number: int) -> Port:
    return Port(Role.COTANGENT, number=number)


@dataclass(frozen=True)
class _StageBody:
    """A traced stage. Results are outputs, gradients of inputs and of parameters, new values."""

    stage: StageGraph
    joint: Joint
    parts: Parts
    interpreter: Interpreter
    shardings: Shardings
    trainable: tuple[bool, ...]

    @property
    def trained(self) -> list[int]:
        """Numbers of the inputs that are parameters with a gradient."""
        return [i for i in self.joint.gradients if self.port(i).role is Role.PARAMETER]

    @property
    def received(self) -> list[int]:
        """Numbers of the inputs whose gradient the stage before waits for."""
        values = enumerate(zip(self.stage.inputs, self.trainable, strict=True))
        return [i for i, (described, wanted) in values if wanted and described.kind == "value"]

    def port(self, number: int) -> Port:
        """What an input is; an argument of the module that the stage writes to is kept like a
        buffer."""
        port = self.stage.inputs[number].port
        if port.role is Role.BATCH and number in self.joint.mutations:
            return Port(Role.PARAMETER, port.name)
        return port

    def argument(self, number: int) -> Argument:
        described = self.stage.inputs[number]
        value = self.joint.primals[number].meta["val"]
        name = described.port.name or f"input.{described.port.number}"
        dtype = jax_dtype(value.dtype).name
        donated = number in self.joint.mutations
        return Argument(name, tuple(value.shape), dtype, described.spec, donated)

    def cotangent(self, number: int) -> Argument:
        """The gradient of an output, sharded as the output."""
        from jax.sharding import PartitionSpec

        value = self.joint.tangents[number].meta["val"]
        spec = self.stage.boundary[number] if self.stage.boundary else PartitionSpec()
        dtype = jax_dtype(value.dtype).name
        return Argument(f"cotangent.{number}", tuple(value.shape), dtype, spec)

    def results(self) -> tuple[Port, ...]:
        received = (self.stage.inputs[i].port.number for i in self.received)
        return (
            *self.stage.outputs,
            *(Port(Role.INPUT_GRADIENT, number=n) for n in received),
            *(Port(Role.GRADIENT, self.port(i).name) for i in self.trained),
            *(Port(Role.PARAMETER, self.port(i).name) for i in self.joint.mutations),
        )

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Inputs, then gradients of outputs, to everything in `results`."""
        joint, count = self.joint, len(self.stage.inputs)
        values = {node: arrays[number] for number, node in joint.primals.items()}
        values |= dict(zip(joint.tangents.values(), arrays[count:], strict=True))
        self.interpreter.run(self.parts.forward, values, "forward")
        self.interpreter.run(self.parts.backward, values, "backward")
        return (
            *(values[joint.outputs[i]] for i in range(len(self.stage.outputs))),
            *(self._input_gradient(i, values, arrays[i]) for i in self.received),
            *(self._placed(i, values[joint.gradients[i]]) for i in self.trained),
            *(values[n] for n in joint.mutations.values()),
        )

    def _input_gradient(self, number: int, values: Mapping[Any, Any], value: Array) -> Array:
        """The gradient of an INPUT: zeros if nothing differentiable reads it."""
        import jax
        import jax.numpy as jnp

        found = self.joint.gradients.get(number)
        gradient = jnp.zeros(value.shape, value.dtype) if found is None else values[found]
        with jax.named_scope("@backward"):
            spec = self.stage.inputs[number].spec
            return jax.lax.with_sharding_constraint(gradient, spec)

    def _placed(self, number: int, gradient: Array) -> Array:
        import jax

        name = self.port(number).name
        with jax.named_scope(scope_of_parameter(name, "backward")):
            spec = self.shardings.gradient(name, gradient.shape)
            return jax.lax.with_sharding_constraint(gradient, spec)


def ported(
    function: Callable[..., Any],
    arguments: Sequence[tuple[Port, Argument]],
    results: Sequence[Port],
) -> PortedProgram:
    """A program from pairs of ports and arguments."""
    return PortedProgram(
        function, tuple(a for _, a in arguments), tuple(p for p, _ in arguments), tuple(results)
    )
