"""Forward and backward of a graph in one: traced by AOTAutograd on meta tensors.

A fault of that tracing is worked around. Composite operators that also have a Python kernel for
meta tensors (`nll_loss`, `where.Scalar`, `prelu`, ...) take that kernel under the Python
dispatcher, which autograd knows nothing about: their gradients vanish. Made for torch 2.13, where
`OpOverload.py_kernels` holds those kernels.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from flint.frontends.torch_graph import constraints as _constraints  # noqa: F401 - registers ops
from flint.frontends.torch_graph.decompositions import decompositions
from flint.frontends.torch_graph.interpreter import fold_transposes
from flint.frontends.torch_graph.names import module_path
from flint.frontends.torch_private import (
    DispatchKey,
    cached_kernels,
    descriptors,
    has_kernel,
    meta_kernels,
    names_of_operators,
    trace_forward_and_backward,
)

if TYPE_CHECKING:
    from flint.frontends.torch_private import OpOverload


@dataclass(frozen=True)
class Joint:
    """A graph of plain ATen operators without mutation; nodes by what they are.

    `primals` are the placeholders of the inputs, `tangents` those of the gradients of outputs, by
    number. `gradients` and `mutations` say which node is the gradient, or the new value, of which
    input.
    """

    graph_module: torch.fx.GraphModule
    primals: dict[int, Any]
    tangents: dict[int, Any]
    outputs: dict[int, Any]
    gradients: dict[int, Any]
    mutations: dict[int, Any]


def trace_joint(graph_module: torch.fx.GraphModule, trainable: Sequence[bool]) -> Joint:
    """Trace a flat graph; `trainable` says which inputs get gradients (none: forward only).

    Every output of the graph becomes a tensor of its own, no view of another.
    """
    _separate_outputs(graph_module)
    examples = tuple(
        _example(node, wanted)
        for node, wanted in zip(
            [n for n in graph_module.graph.nodes if n.op == "placeholder"], trainable, strict=True
        )
    )
    gradients = contextlib.nullcontext() if any(trainable) else torch.no_grad()
    with gradients, composites_decompose(), contextlib.ExitStack() as stack:
        joint = trace_forward_and_backward()(
            stack, graph_module, examples, decompositions=decompositions()
        )
    fold_transposes(joint.graph_module.graph)
    _place_sums(joint.graph_module.graph)
    return _sorted_out(joint.graph_module)


#: Where PyTorch keeps the modules that a node, or the forward node it differentiates, is of.
_STACKS = {"nn_module_stack", "fwd_nn_module_stack"}


def _place_sums(graph: torch.fx.Graph) -> None:
    """Sums of gradients, which autograd adds itself, belong to what all their terms belong to."""
    for node in graph.nodes:
        if node.op != "call_function" or _STACKS & node.meta.keys():
            continue
        paths = [path.split(".") for path in map(module_path, node.all_input_nodes) if path]
        shared = ".".join(os.path.commonprefix(paths)) if paths else ""
        if shared:
            node.meta["nn_module_stack"] = {shared: (shared, "")}


def _separate_outputs(graph_module: torch.fx.GraphModule) -> None:
    graph = graph_module.graph
    output = graph.output_node()
    fresh = []
    for node in output.args[0]:
        with graph.inserting_before(output):
            fresh.append(graph.call_function(torch.ops.flint.identity.default, (node,)))
        fresh[-1].meta = {k: v for k, v in node.meta.items() if k in ("nn_module_stack", "val")}
    output.args = (tuple(fresh),)
    graph_module.recompile()


def _example(node: torch.fx.Node, trainable: bool) -> torch.Tensor:
    value = node.meta["val"]
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device="meta", requires_grad=trainable
    )


def _sorted_out(graph_module: torch.fx.GraphModule) -> Joint:
    d = descriptors()

    found = Joint(graph_module, {}, {}, {}, {}, {})
    for node in graph_module.graph.nodes:
        if node.op != "placeholder":
            continue
        what = node.meta["desc"]
        if isinstance(what, d.PlainAOTInput):
            found.primals[what.idx] = node
        else:
            assert isinstance(what, d.TangentAOTInput), f"unexpected input of a joint graph: {what}"
            found.tangents[what.output.idx] = node
    output = graph_module.graph.output_node()
    for node, what in zip(output.args[0], output.meta["desc"], strict=True):
        if node is not None:
            _place_output(found, node, what)
    return found


def _place_output(found: Joint, node: torch.fx.Node, what: Any) -> None:
    d = descriptors()

    if isinstance(what, d.PlainAOTOutput):
        found.outputs[what.idx] = node
    elif isinstance(what, d.GradAOTOutput) and isinstance(what.grad_of, d.PlainAOTInput):
        found.gradients[what.grad_of.idx] = node
    else:
        assert isinstance(what, d.InputMutationAOTOutput), f"unexpected output: {what}"
        found.mutations[what.mutated_input.idx] = node


@contextmanager
def composites_decompose() -> Iterator[None]:
    """Hide the meta kernels of composite operators, so that their own decomposition is traced."""
    meta = DispatchKey.Meta
    hidden = {op: op.py_kernels.pop(meta) for op in _shadowed() if meta in op.py_kernels}
    _forget(hidden)
    try:
        yield
    finally:
        for op, kernel in hidden.items():
            op.py_kernels[meta] = kernel
        _forget(hidden)


def _forget(ops: Iterable[OpOverload]) -> None:
    for op in ops:
        cached_kernels(op).clear()


@cache
def _shadowed() -> tuple[OpOverload, ...]:
    """Composite operators whose decomposition is shadowed by a Python meta kernel."""
    meta_kernels()

    found = []
    for name in names_of_operators():
        if not name.startswith("aten::") or not has_kernel(name, "CompositeImplicitAutograd"):
            continue
        base, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if DispatchKey.Meta in getattr(op, "py_kernels", {}):
            found.append(op)
    return tuple(found)
