"""Transposed operands of matrix products: a product reads them as they lie, nothing moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from jax import Array


_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default: 0, _aten.bmm.default: 0, _aten.addmm.default: 1}


def product(a: Array, b: Array, a_transposed: bool, b_transposed: bool) -> Array:
    """The product of matrices, or of batches of them, of which each may be given transposed."""
    from jax import lax

    batch = tuple(range(a.ndim - 2))
    contracted = (a.ndim - (2 if a_transposed else 1),), (b.ndim - (1 if b_transposed else 2),)
    return lax.dot_general(a, b, (contracted, (batch, batch)))


def fold_transposes(graph: torch.fx.Graph) -> None:
    """Join transposes of transposes, and let products take their operands as they were before."""
    for node in list(graph.nodes):
        if node.target is _aten.permute.default:
            _join(node)
        elif node.target in _PRODUCTS and not node.kwargs:
            _fold(graph, node)
    for node in reversed(list(graph.nodes)):
        if node.target is _aten.permute.default and not node.users:
            graph.erase_node(node)


def _join(node: torch.fx.Node) -> None:
    source, order = node.args[0], _order(node)
    if source.target is _aten.permute.default:
        before = _order(source)
        source, order = source.args[0], [before[d] for d in order]
    if order == sorted(order):
        node.replace_all_uses_with(source)
    else:
        node.args = (source, order)


def _order(node: torch.fx.Node) -> list[int]:
    order = node.args[1]
    return [d % len(order) for d in order]


def _fold(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    first = _PRODUCTS[node.target]
    (a, a_transposed), (b, b_transposed) = map(_untransposed, node.args[first : first + 2])
    if not (a_transposed or b_transposed):
        return
    with graph.inserting_before(node):
        made = graph.call_function(product, (a, b, a_transposed, b_transposed))
    made.meta = dict(node.meta)
    if first:
        node.target, node.args = _aten.add.Tensor, (made, node.args[0])
    else:
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _untransposed(operand: Any) -> tuple[Any, bool]:
    """What a product reads, and whether the last two dimensions of it are exchanged."""
    if operand.target is not _aten.permute.default:
        return operand, False
    order = _order(operand)
    last = len(order) - 1
    if order == [*range(last - 1), last, last - 1]:
        return operand.args[0], True
    return operand, False
