"""A graph of ATen operators, run on JAX arrays: this is where PyTorch becomes JAX."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flint.errors import FlintError
from flint.frontends.torch_graph.declared import call_of, is_declared
from flint.frontends.torch_graph.names import name_stack, place_of, who_uses
from flint.frontends.torch_ops.registry import find_op
from flint.frontends.torch_ops.types import jax_dtype
from flint.frontends.torch_private import OpOverload

if TYPE_CHECKING:
    from jax import Array

# Transposed operands of matrix products: a product reads them as they lie, nothing moves.

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


#: Functions of a graph that are no operators of PyTorch.
_PLAIN: dict[Any, Callable[..., Any]] = {operator.getitem: operator.getitem, product: product}


@dataclass(frozen=True)
class Interpreter:
    """Runs nodes of a graph. `calls` are functions for targets that stand for whole blocks.

    `inside` is the module path of the block that the graph is, "" for the whole program.
    """

    inside: str = ""
    calls: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)

    def run(self, nodes: Iterable[Any], values: dict[Any, Any], phase: str) -> None:
        """Compute `nodes` in order. `values` has what they read, and receives what they give."""
        import jax

        for node in nodes:
            if node.op != "call_function":
                continue
            with jax.named_scope(name_stack(node, phase, self.inside)):
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                found = self._function(node)(*args, **kwargs)
            if node.target not in self.calls:
                _check(node, found)
            values[node] = found

    def _function(self, node: torch.fx.Node) -> Callable[..., Any]:
        function = self.calls.get(node.target) or function_of(node.target)
        return function or call_of(node)


def function_of(target: object) -> Callable[..., Any] | None:
    """What computes a node's target in JAX, or None."""
    if target in _PLAIN:
        return _PLAIN[target]
    if isinstance(target, OpOverload):
        return find_op(target.name())
    return None


def refuse_unknown(nodes: Iterable[Any], known: Iterable[Any] = ()) -> None:
    """Raise FlintError FL220 that lists every operator that no table knows, and who uses it."""
    missing: dict[str, dict[str, None]] = {}
    place = ""
    known = set(known)
    for node in nodes:
        if node.op != "call_function" or node.target in known:
            continue
        if function_of(node.target) is None and not is_declared(node.target):
            users = missing.setdefault(_name(node.target), {})
            users[who_uses(node)] = None
            place = place or place_of(node)
    if not missing:
        return
    listed = "; ".join(f"{op} in {_few(list(users))}" for op, users in sorted(missing.items()))
    one = next(iter(sorted(missing)))
    raise FlintError(
        "FL220",
        f"{len(missing)} operator{'s are' if len(missing) > 1 else ' is'} unknown: {listed}",
        place=place or None,
        help=f'register what it computes in JAX: @flint.torch_op("{one}")',
    )


def _few(paths: list[str]) -> str:
    shown = ", ".join(paths[:3])
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown


def _name(target: object) -> str:
    if isinstance(target, OpOverload):
        return str(target.name())
    return str(getattr(target, "__name__", target))


def _check(node: torch.fx.Node, found: Any) -> None:
    """Assert that shape and type of a result are those that PyTorch gives it."""
    expected = node.meta.get("val")
    many = isinstance(expected, tuple | list)
    pairs = zip(expected, found, strict=True) if many else [(expected, found)]
    for one, other in pairs:
        if isinstance(one, torch.Tensor):
            given = (tuple(getattr(other, "shape", ())), str(getattr(other, "dtype", "")))
            wanted = (tuple(one.shape), jax_dtype(one.dtype).name)
            assert given == wanted, (
                f"{_name(node.target)} gives {given[1]}{list(given[0])}, but PyTorch "
                f"{wanted[1]}{list(wanted[0])}, at {place_of(node)}"
            )
