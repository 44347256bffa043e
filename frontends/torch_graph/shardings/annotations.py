"""What the user said about shardings, written into an exported graph as operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from flint.frontends.torch_graph.constraints import FREE, text_of
from flint.frontends.torch_graph.export import Exported
from flint.frontends.torch_graph.names import module_path, without_root
from flint.frontends.torch_graph.shardings.placements import entry_axes, spec_axes
from flint.frontends.torch_graph.shardings.tensors import NamedTensor, Shardings
from flint.frontends.torch_ops.nn.attention import scaled_dot_product_attention
from flint.frontends.torch_ops.nn.recurrent import WHOLE as WHOLE_LAYERS
from flint.frontends.torch_ops.tensors.products import WHOLE, linear
from flint.frontends.torch_ops.types import jax_dtype

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

    from flint.frontends.torch_private import OpOverload

# Products of flattened operands take them unflattened.
#
# Models flatten (sequence, batch, heads, size) to (sequence x batch, features), multiply, and unflatten.
# The shards of a dimension that is not the first of those joined have no place in the flat one.

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


def tensors_of(exported: Exported) -> dict[str, Any]:
    """What `plan_shardings` asks about a module: its tensors by kind, and its modules."""
    nodes = [n for n in exported.graph_module.graph.nodes if n.op == "placeholder"]
    aliases = _aliases(exported.module)
    kinds: dict[str, list[NamedTensor]] = {"parameter": [], "buffer": [], "input": []}
    for described, node in zip(exported.inputs, nodes, strict=True):
        value = node.meta["val"]
        names = aliases.get(described.name, (described.name,))
        tensor = NamedTensor(
            names, tuple(value.shape), jax_dtype(value.dtype).name, value.dtype.is_floating_point
        )
        if described.kind in kinds:
            kinds[described.kind].append(tensor)
    return {
        "parameters": kinds["parameter"],
        "buffers": kinds["buffer"],
        "inputs": kinds["input"],
        "modules": [name for name, _ in exported.module.named_modules()],
    }


def _aliases(module: torch.nn.Module) -> dict[str, tuple[str, ...]]:
    """By first name, all names of tensors that several modules share."""
    names: dict[int, list[str]] = {}
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(tensor), []).append(name)
    return {n[0]: tuple(n) for n in names.values()}


def annotate(exported: Exported, shardings: Shardings) -> None:
    """Keep attention and products whole, constrain parameters in use and what modules return."""
    graph = exported.graph_module.graph
    unflatten_products(exported.graph_module)
    _keep_whole(exported.graph_module)
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    weights: dict[Any, Any] = {}
    for described, node in zip(exported.inputs, placeholders, strict=True):
        if described.kind == "parameter":
            weights |= _at_use(graph, node, described.name, shardings)
    _activations(graph, shardings, weights)
    exported.graph_module.recompile()


_WHOLE = {
    torch.ops.aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
    **WHOLE,
    **WHOLE_LAYERS,
}


def _keep_whole(graph_module: torch.fx.GraphModule) -> None:
    for part in graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.target = _WHOLE.get(node.target, node.target)


def _at_use(
    graph: torch.fx.Graph, parameter: torch.fx.Node, name: str, shardings: Shardings
) -> dict[Any, Any]:
    """One constraint for each module that uses a parameter; its gradient is constrained too.

    Returns the nodes that stand for the parameter, each with the PartitionSpec it is used with.
    """
    shape = tuple(parameter.meta["val"].shape)
    spec = shardings.at_use(name, shape)
    if spec is None:
        return {parameter: shardings.argument(name, shape)}
    use, gradient = text_of(spec), text_of(shardings.gradient(name, shape))
    made: dict[str, Any] = {}
    for user in list(parameter.users):
        path = module_path(user)
        if path not in made:
            with graph.inserting_before(user):
                made[path] = _constraint(graph, parameter, use, gradient, user)
        user.replace_input_with(parameter, made[path])
    return dict.fromkeys(made.values(), spec)


def _constraint(
    graph: torch.fx.Graph, value: torch.fx.Node, spec: str, gradient: str, like: torch.fx.Node
) -> torch.fx.Node:
    node = graph.call_function(torch.ops.flint.constrain.default, (value, spec, gradient))
    node.meta = {
        k: v for k, v in like.meta.items() if k in ("nn_module_stack", "stack_trace", "custom")
    }
    node.meta["val"] = value.meta["val"]
    return node


def _activations(graph: torch.fx.Graph, shardings: Shardings, weights: Mapping[Any, Any]) -> None:
    """Constrain what modules return: the values that leave them, in the order they are made."""
    wanted = {path for path, _ in shardings.outputs}
    if not wanted:
        return
    left: dict[tuple[str, str], list[Any]] = {}
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        if not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        for key, (full_path, _) in stack.items():
            path = without_root(full_path)
            if full_path and path in wanted and any(_outside(u, key) for u in node.users):
                left.setdefault((key, path), []).append(node)
    for (key, path), nodes in left.items():
        for index, node in enumerate(nodes):
            spec = shardings.activation(path, index, tuple(node.meta["val"].shape))
            if spec is not None:
                _constrain_outside(graph, node, key, text_of(spec))
                _gather_for_product(graph, node, spec, weights)


def _outside(user: torch.fx.Node, key: str) -> bool:
    return key not in (user.meta.get("nn_module_stack") or {})


def _constrain_outside(graph: torch.fx.Graph, node: torch.fx.Node, key: str, spec: str) -> None:
    users = [u for u in node.users if _outside(u, key)]
    with graph.inserting_after(node):
        constrained = _constraint(graph, node, spec, spec, node)
    for user in users:
        user.replace_input_with(node, constrained)


def _gather_for_product(
    graph: torch.fx.Graph, node: torch.fx.Node, spec: PartitionSpec, weights: Mapping[Any, Any]
) -> None:
    """Gather the gradient of a product or look-up over the axes that its weight is sharded over.

    A product whose result is scattered over them (sequence parallelism) gets a gradient scattered
    likewise. Both products of the backward pass want the gradient whole and the weight sharded;
    propagation would gather the weight instead, and reduce the gradient of a whole table.
    """
    product = _product_behind(node)
    weight = product.args[_WEIGHT[product.target]] if product else None
    axes = spec_axes(weights[weight]) if weight in weights else set()
    rank = len(node.meta["val"].shape)
    rows = [entry_axes(e) for e in spec][: rank - 1]  # the last dimension is the weight's own
    whole = [tuple(a for a in entry if a not in axes) for entry in rows]
    if product is None or whole == rows:
        return
    gradient = text_of([e or None for e in [*whole, *spec[rank - 1 :]]])
    # Left free, a look-up in a sharded table is done in the whole one, for each part of the rows.
    forward = FREE if product.target is linear else gradient
    with graph.inserting_after(product):
        gathered = _constraint(graph, product, forward, gradient, product)
    product.replace_all_uses_with(gathered, delete_user_cb=lambda user: user is not gathered)


#: Which argument of an operator is its weight.
_WEIGHT = {linear: 1, torch.ops.aten.embedding.default: 0}


def _product_behind(node: torch.fx.Node) -> torch.fx.Node | None:
    """The product or look-up that a value is, except operators of one tensor on it; or None."""
    while node.target not in _WEIGHT:
        shape = node.meta["val"].shape
        inputs = [
            i for i in node.all_input_nodes if getattr(i.meta.get("val"), "shape", None) == shape
        ]
        if node.op == "placeholder" or len(inputs) != 1:
            return None
        [node] = inputs
    return node
