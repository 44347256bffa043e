"""How much an exported graph computes, node by node: enough to balance stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from flint.frontends.torch_graph.declared import declared_flops, is_declared

_aten = torch.ops.aten
#: Operators whose work counts: products, convolutions and attention, however they are written.
_COUNTED = frozenset(
    [
        _aten.linear,
        _aten.matmul,
        _aten.mm,
        _aten.bmm,
        _aten.addmm,
        _aten.baddbmm,
        _aten.einsum,
        _aten.bilinear,
        _aten.conv1d,
        _aten.conv2d,
        _aten.conv3d,
        _aten.conv_transpose1d,
        _aten.conv_transpose2d,
        _aten.conv_transpose3d,
        _aten.convolution,
        _aten.scaled_dot_product_attention,
    ]
)


def node_flops(graph_module: torch.fx.GraphModule) -> dict[Any, int]:
    """Floating-point operations of the forward pass by node, two for a multiplication and addition.

    As `torch.utils.flop_counter` counts them, and as the program declares them for operators of
    its own; a node that runs a graph has all that is in it.
    """
    known: dict[Any, int] = {}
    return {node: _flops(node, graph_module, known) for node in graph_module.graph.nodes}


def _flops(node: torch.fx.Node, owner: torch.fx.GraphModule, known: dict[Any, int]) -> int:
    if node.op != "call_function":
        return 0
    inner = [getattr(owner, n.target) for n in node.all_input_nodes if n.op == "get_attr"]
    graphs = [g for g in inner if isinstance(g, torch.fx.GraphModule)]
    if graphs:
        return sum(sum(node_flops(g).values()) for g in graphs)
    if is_declared(node.target):
        return declared_flops(node)
    if getattr(node.target, "overloadpacket", None) not in _COUNTED:
        return 0
    types: dict[Any, Any] = {}
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: _empty(n, types))
    key = (node.target, tuple(types.values()), _scalars(node.args), _scalars(node.kwargs))
    if key not in known:
        with FlopCounterMode(display=False) as counter:
            node.target(*args, **kwargs)
        known[key] = counter.get_total_flops()
    return known[key]


def _empty(node: torch.fx.Node, types: dict[Any, Any]) -> Any:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return value
    types[node] = (tuple(value.shape), value.dtype)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _scalars(value: Any) -> Any:
    """What is not a node among arguments, in a form that can be compared."""
    if isinstance(value, torch.fx.Node):
        return None
    if isinstance(value, tuple | list):
        return tuple(map(_scalars, value))
    if isinstance(value, Mapping):
        return tuple((k, _scalars(v)) for k, v in value.items())
    return repr(value)
