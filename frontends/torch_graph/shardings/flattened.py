"""Products of flattened operands take them unflattened.

Models flatten (sequence, batch, heads, size) to (sequence x batch, features), multiply, and unflatten.
The shards of a dimension that is not the first of those joined have no place in the flat one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from flint.frontends.torch_private import OpOverload


_aten = torch.ops.aten
_VIEWS = {_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default}
#: Products of a flat operand and a matrix: which argument is flat.
_PRODUCTS = {_aten.linear.default: 0, _aten.addmm.default: 1, _aten.mm.default: 0}


def unflatten_products(graph_module: torch.fx.GraphModule) -> None:
    """Rewrite view, product, view into view, product of more dimensions, view, in place."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.target in _PRODUCTS and not node.kwargs:
            _unflatten(graph, node)
    for node in list(graph.nodes):
        if node.target in _VIEWS:
            _join(node)
    graph.eliminate_dead_code()
    graph_module.recompile()


def _unflatten(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    flat = node.args[_PRODUCTS[node.target]]
    if flat.target not in _VIEWS or len(_shape(flat)) != 2:
        return
    source = flat.args[0]
    leading = _leading(_shape(source), _shape(flat))
    if len(leading) < 2:
        return
    made = _Maker(graph, node)
    x = made.view(source, [*leading, _shape(flat)[1]])
    product = made.product(x, [*leading, _shape(node)[1]])
    node.replace_all_uses_with(made.view(product, _shape(node)))


def _shape(node: torch.fx.Node) -> list[int]:
    return list(node.meta["val"].shape)


def _leading(shape: Sequence[int], flat: Sequence[int]) -> list[int]:
    """The dimensions that were joined into the first of `flat`, if no dimension was cut."""
    for count in range(1, len(shape)):
        if [math.prod(shape[:count]), math.prod(shape[count:])] == list(flat):
            return list(shape[:count])
    return []


class _Maker:
    """Replaces a node by several, with its module and its line."""

    def __init__(self, graph: torch.fx.Graph, node: torch.fx.Node) -> None:
        self.graph, self.node = graph, node

    def view(self, source: torch.fx.Node, shape: list[int]) -> torch.fx.Node:
        return self._add(_aten.view.default, (source, shape), shape)

    def product(self, x: torch.fx.Node, shape: list[int]) -> torch.fx.Node:
        target, args = self.node.target, self.node.args
        if target is _aten.linear.default:
            return self._add(target, (x, *args[1:]), shape)
        product = self._add(_aten.matmul.default, (x, args[-1]), shape)
        if target is _aten.mm.default:
            return product
        return self._add(_aten.add.Tensor, (product, args[0]), shape)

    def _add(self, target: OpOverload, args: tuple[Any, ...], shape: list[int]) -> torch.fx.Node:
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(target, args)
        made.meta = {**self.node.meta, "val": self.node.meta["val"].new_empty(shape)}
        return made


def _join(node: torch.fx.Node) -> None:
    """A view of a view is one of the whole; one that changes nothing is none."""
    source = node.args[0]
    if source.target in _VIEWS:
        source = source.args[0]
        node.args = (source, _shape(node))
    if _shape(source) == _shape(node):
        node.replace_all_uses_with(source)
