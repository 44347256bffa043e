"""Weights that join two (gate and up), split as HuggingFace's shards of them are.

A packed weight is sharded so that each device has its part of the gate and its part of the up
projection; what it computes is then split without communication. In one array with one sharding
that is an order of the columns: for every device its part of the first, then of the second. The
values of weights say nothing here, so the graph takes them to be in that order and splits by it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flint.frontends.torch_graph.names import module_path

if TYPE_CHECKING:
    from flint.frontends.torch_private import OpOverload


_aten = torch.ops.aten


@dataclass(frozen=True)
class Packed:
    """What a module computes with a packed weight: its last dimension, and shards of that."""

    size: int
    shards: int


def split_by_shards(graph_module: torch.fx.GraphModule, packed: Mapping[str, Packed]) -> set[str]:
    """Rewrite `chunk` and `split` into halves in the modules of `packed` (by path), in place.

    Returns the paths of modules in which there was nothing to rewrite: they will move data.
    """
    missing = set(packed)
    for node in list(graph_module.graph.nodes):
        found = packed.get(module_path(node))
        if found is not None and _halves_last_dimension(node, found.size):
            missing.discard(module_path(node))
            _rewrite(graph_module.graph, node, found)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    return missing


def _halves_last_dimension(node: torch.fx.Node, size: int) -> bool:
    if node.op != "call_function" or node.target not in (
        _aten.chunk.default,
        _aten.split.Tensor,
        _aten.split_with_sizes.default,
    ):
        return False
    value, into, *rest = node.args
    dimension = node.kwargs.get("dim", rest[0] if rest else 0)
    shape = value.meta["val"].shape
    halves = {_aten.chunk.default: 2, _aten.split.Tensor: size // 2}
    wanted = halves.get(node.target, [size // 2] * 2)
    return bool(shape[-1] == size and into == wanted and dimension in (-1, len(shape) - 1))


def _rewrite(graph: torch.fx.Graph, split: torch.fx.Node, packed: Packed) -> None:
    """Halves as views of (..., shards, 2, part): the order in which the shards hold them."""
    value = split.args[0]
    lead, part = list(value.meta["val"].shape[:-1]), packed.size // 2 // packed.shards
    with graph.inserting_before(split):
        apart = _call(graph, split, _aten.reshape.default, value, [*lead, packed.shards, 2, part])
        for user in list(split.users):
            assert user.target is operator.getitem, "the halves of a split are taken one by one"
            half = _call(graph, split, _aten.select.int, apart, -2, user.args[1])
            whole = _call(graph, split, _aten.reshape.default, half, [*lead, packed.size // 2])
            user.replace_all_uses_with(whole)


def _call(
    graph: torch.fx.Graph,
    like: torch.fx.Node,
    target: OpOverload,
    value: torch.fx.Node,
    *args: object,
) -> torch.fx.Node:
    node = graph.call_function(target, (value, *args))
    node.meta = {k: v for k, v in like.meta.items() if k != "val"}
    node.meta["val"] = target(value.meta["val"], *args)
    return node
