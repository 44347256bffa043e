"""Repeated parts of a graph as operators: differentiated once each, called where they occur."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from flint.frontends.torch_graph.blocks import (
    RepeatedPart,
    differentiable_nodes,
    part_fingerprint,
    repeated_parts,
)
from flint.frontends.torch_graph.interpreter import Interpreter
from flint.frontends.torch_graph.joint import Joint, trace_joint
from flint.frontends.torch_graph.partition import Parts, partition
from flint.frontends.torch_private import forget_library

if TYPE_CHECKING:
    from jax import Array
    from torch.autograd.function import FunctionCtx

    from flint.frontends.torch_private import OpOverload


_NAMESPACE = "flint_blocks"


@dataclass(frozen=True)
class Block:
    """A part that repeats: its joint graph, its operators, and its occurrences.

    The forward operator takes the inputs and gives the outputs, then what is saved and is no
    input. The backward operator takes everything saved, then the gradients of `tangents`, and
    gives the gradients of the inputs `gradients`. Both take the number of the occurrence. `path` is
    the module that was traced.
    """

    path: str

    joint: Joint
    parts: Parts
    forward: OpOverload
    backward: OpOverload
    calls: tuple[RepeatedPart, ...]

    @property
    def kept(self) -> list[Any]:
        """Saved nodes that are no inputs: further results of the forward operator."""
        return [n for n in self.parts.saved if n.op != "placeholder"]

    def graphs(self) -> tuple[Any, ...]:
        """All nodes that need an operator."""
        return (*self.parts.forward, *self.parts.backward)


class _Occurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, block: Block, number: int, *inputs: torch.Tensor) -> Any:
        count = len(block.joint.outputs)
        found = block.forward(list(inputs), number)
        kept = dict(zip(block.kept, found[count:], strict=True))
        given = {node: inputs[i] for i, node in block.joint.primals.items()}
        ctx.block, ctx.number = block, number
        ctx.save_for_backward(*(kept[n] if n in kept else given[n] for n in block.parts.saved))
        ctx.mark_non_differentiable(
            *(found[i] for i in range(count) if i not in block.joint.tangents)
        )
        return tuple(found[:count])

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> Any:
        joint = ctx.block.joint
        tangents = [gradients[i] for i in joint.tangents]
        found = ctx.block.backward([*ctx.saved_tensors, *tangents], ctx.number)
        by_input = dict(zip(joint.gradients, found, strict=True))
        return None, None, *(by_input.get(i) for i in range(len(ctx.needs_input_grad) - 2))


@dataclass(frozen=True)
class TracedBlocks:
    """Blocks by what they compute, and the library that holds their operators."""

    library: torch.library.Library
    blocks: dict[Any, Block] = field(default_factory=dict)


@contextlib.contextmanager
def traced_blocks() -> Iterator[TracedBlocks]:
    """Blocks for several graphs, each traced once. Their operators exist as long as the context."""
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    try:
        yield TracedBlocks(library)
    finally:
        forget_library(library)


@contextlib.contextmanager
def blocks_as_operators(
    graph_module: torch.fx.GraphModule,
    trainable: Sequence[bool],
    wanted: bool = True,
    traced: TracedBlocks | None = None,
) -> Iterator[list[Block]]:
    """Replace repeated parts of a graph by operators, which exist as long as the context does.

    With `traced`, they exist as long as that, and what it has is not traced again.
    """
    with contextlib.nullcontext(traced) if traced is not None else traced_blocks() as known:
        assert known is not None
        flows = differentiable_nodes(graph_module, trainable)
        groups = repeated_parts(graph_module, flows) if wanted else []
        blocks = [_block(known, graph_module, group, flows) for group in groups]
        replaced: dict[Any, Any] = {}
        for block in blocks:
            for number in range(len(block.calls)):
                _replace(graph_module.graph, block, number, replaced)
        graph_module.recompile()
        yield blocks


def _block(
    known: TracedBlocks,
    owner: torch.fx.GraphModule,
    parts: list[RepeatedPart],
    flows: dict[Any, bool],
) -> Block:
    key = part_fingerprint(owner, parts[0], flows)
    if key not in known.blocks:
        name = f"block{len(known.blocks)}"
        known.blocks[key] = _traced(known.library, name, owner, parts[0], flows)
    return replace(known.blocks[key], calls=tuple(parts))


def _traced(
    library: torch.library.Library,
    name: str,
    owner: torch.fx.GraphModule,
    part: RepeatedPart,
    flows: dict[Any, bool],
) -> Block:
    joint = trace_joint(_cut_out(owner, part), [flows[n] for n in part.inputs])
    cut = partition(joint)
    kept = [n for n in cut.saved if n.op != "placeholder"]
    forward = _operator(library, f"{name}_forward", [*joint.outputs.values(), *kept])
    backward = _operator(library, f"{name}_backward", list(joint.gradients.values()))
    return Block(part.path, joint, cut, forward, backward, (part,))


def _cut_out(owner: torch.fx.GraphModule, part: RepeatedPart) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    for node in part.inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in part.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] for n in part.outputs))
    return torch.fx.GraphModule(owner, graph)


def _operator(library: torch.library.Library, name: str, results: list[Any]) -> OpOverload:
    """An operator of our own that gives tensors like `results`."""
    types = [(v.shape, v.stride(), v.dtype) for v in (n.meta["val"] for n in results)]

    def fake(inputs: list[torch.Tensor], number: int) -> list[torch.Tensor]:
        return [torch.empty_strided(s, t, dtype=d, device="meta") for s, t, d in types]

    library.define(f"{name}(Tensor[] inputs, int number) -> Tensor[]")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=library)
    return getattr(getattr(torch.ops, _NAMESPACE), name).default


def _replace(graph: torch.fx.Graph, block: Block, number: int, replaced: dict[Any, Any]) -> None:
    """Replace the nodes of one occurrence by one call; `replaced` is old to new."""
    part = block.calls[number]

    def call(*inputs: torch.Tensor) -> tuple[Any, ...]:
        outputs: tuple[Any, ...] = _Occurrence.apply(block, number, *inputs)
        return outputs

    call.__name__ = call.__qualname__ = "block"
    last = part.nodes[-1]
    with graph.inserting_after(last):
        node = graph.call_function(call, tuple(replaced.get(n, n) for n in part.inputs))
    node.meta = {"nn_module_stack": _outer_stack(part), "val": tuple(_values(part.outputs))}
    after = node
    for index, output in enumerate(part.outputs):
        with graph.inserting_after(after):
            after = graph.call_function(_item, (node, index))
        after.meta = {**output.meta, "nn_module_stack": node.meta["nn_module_stack"]}
        output.replace_all_uses_with(after)
        replaced[output] = after
    for old in reversed(part.nodes):
        graph.erase_node(old)


def _item(values: Sequence[Any], index: int) -> Any:
    return values[index]


def _values(nodes: Sequence[Any]) -> list[Any]:
    return [n.meta["val"] for n in nodes]


def _outer_stack(part: RepeatedPart) -> dict[str, Any]:
    """The stack of modules down to the one that the part is a call of."""
    return {part.path: (part.path, "")}


def mark_calls(joint: Joint, blocks: Sequence[Block]) -> None:
    """Write into a traced graph which module each call of a block belongs to."""
    by_operator = {op: b for b in blocks for op in (b.forward, b.backward)}
    for node in joint.graph_module.graph.nodes:
        block = by_operator.get(node.target) if node.op == "call_function" else None
        if block is not None:
            node.meta["nn_module_stack"] = _outer_stack(block.calls[node.args[1]])


def block_functions(blocks: Sequence[Block]) -> dict[Any, Callable[..., Any]]:
    """What computes each operator of blocks: functions that JAX traces once."""
    found: dict[Any, Callable[..., Any]] = {}
    for block in blocks:
        found[block.forward] = _called(_forward(block))
        found[block.backward] = _called(_backward(block))
    return found


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    function.__name__ = function.__qualname__ = "block"
    jitted = jax.jit(function)

    def call(inputs: Sequence[Any], number: int) -> list[Array]:
        results: list[Array] = jitted(*inputs)
        return results

    return call


def _forward(block: Block) -> Callable[..., Any]:
    results = [*block.joint.outputs.values(), *block.kept]
    interpreter = Interpreter(inside=block.path)

    def forward(*inputs: Array) -> Any:
        values = {node: inputs[i] for i, node in block.joint.primals.items()}
        interpreter.run(block.parts.forward, values, "forward")
        return [values[n] for n in results]

    return forward


def _backward(block: Block) -> Callable[..., Any]:
    reads = [*block.parts.saved, *block.joint.tangents.values()]
    interpreter = Interpreter(inside=block.path)

    def backward(*inputs: Array) -> Any:
        values = dict(zip(reads, inputs, strict=True))
        interpreter.run(block.parts.backward, values, "backward")
        return [values[n] for n in block.joint.gradients.values()]

    return backward
