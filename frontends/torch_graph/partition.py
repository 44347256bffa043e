"""A joint graph cut into its forward and its backward part, and what goes from one to the other."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from flint.frontends.torch_graph.joint import Joint

_aten = torch.ops.aten
#: Results that are made again in the backward pass: other views of a tensor that is kept anyway.
VIEWS = frozenset(
    [
        _aten.alias.default,
        _aten.expand.default,
        _aten.permute.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.t.default,
        _aten.transpose.int,
        _aten.unsqueeze.default,
        _aten.view.default,
        _aten.detach.default,
    ]
)


@dataclass(frozen=True)
class Parts:
    """Nodes of a joint graph in order. `saved` are those of the forward that the backward reads."""

    forward: tuple[Any, ...]
    backward: tuple[Any, ...]
    saved: tuple[Any, ...]


def partition(joint: Joint) -> Parts:
    """Cut as autograd does: the forward is what outputs need, and what else is used is saved.

    Views and constants are made again in the backward pass, and parameters that a constraint
    gathers are gathered again. Changes the graph.
    """
    graph = joint.graph_module.graph
    results = [*joint.outputs.values(), *joint.mutations.values()]
    forward = _ancestors(results)
    forward |= {
        n for n in graph.nodes if n.target is operator.getitem and n.all_input_nodes[0] in forward
    }
    _remake(graph, forward, _ancestors(joint.gradients.values()) - forward)
    backward = _ancestors(joint.gradients.values()) - forward
    nodes = [n for n in graph.nodes if n.op in ("call_function", "get_attr")]
    read = {a for n in backward for a in n.all_input_nodes if a in forward}
    read |= {n for n in joint.gradients.values() if n in forward}
    return Parts(
        tuple(n for n in nodes if n in forward),
        tuple(n for n in nodes if n in backward),
        tuple(n for n in graph.nodes if n in read),
    )


def _ancestors(nodes: Iterable[Any]) -> set[Any]:
    found: set[Any] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found


def _remake(graph: torch.fx.Graph, forward: set[Any], backward: set[Any]) -> None:
    """Give backward nodes their own copies of views, constants and gathered parameters."""
    copies: dict[Any, Any] = {}
    first = next((n for n in graph.nodes if n in backward), None)
    if first is None:
        return

    def own(node: torch.fx.Node) -> torch.fx.Node:
        if node not in forward or not _is_made_again(node):
            return node
        if node not in copies:
            arguments = torch.fx.map_arg((node.args, node.kwargs), own)
            with graph.inserting_before(first):
                copies[node] = _copy(graph, node, *arguments)
        return copies[node]

    for node in [n for n in graph.nodes if n in backward]:
        node.args, node.kwargs = torch.fx.map_arg((node.args, node.kwargs), own)


def _is_made_again(node: torch.fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target in VIEWS or not node.all_input_nodes:
        return True
    return _gathers(node)


def _gathers(node: torch.fx.Node) -> bool:
    return (
        node.target is torch.ops.flint.constrain.default
        and node.all_input_nodes[0].op == "placeholder"
    )


def _copy(
    graph: torch.fx.Graph, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.Node:
    target = torch.ops.flint.gather_again.default if _gathers(node) else node.target
    copy = graph.call_function(target, args[:2] if _gathers(node) else args, kwargs)
    copy.meta = dict(node.meta)
    return copy
