"""Parts of an exported graph that repeat: the layers of a model, found by module and compared."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flint.frontends.torch_graph.names import without_root
from flint.frontends.torch_private import schema_of

#: Parts with fewer nodes are not worth a function of their own.
SMALLEST_BLOCK = 12


@dataclass(frozen=True)
class RepeatedPart:
    """One occurrence of a block: its nodes in order, what they read and what others read."""

    path: str
    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def repeated_parts(
    graph_module: torch.fx.GraphModule, differentiable: Mapping[Any, bool]
) -> list[list[RepeatedPart]]:
    """Groups of parts that compute the same thing from other tensors, at least two in each.

    A part is what one call of one module does. Parts are equal if operators, their other arguments,
    shapes, types and strides of all tensors, and which of them are differentiated are equal. Where
    parts lie inside others, those that save most work count. `differentiable` says for each
    node whether a gradient flows through it.
    """
    nodes = [n for n in graph_module.graph.nodes if n.op not in ("placeholder", "output")]
    position = {n: i for i, n in enumerate(nodes)}
    groups: dict[Any, list[RepeatedPart]] = {}
    for path, start, stop in _calls_of_modules(nodes):
        part = _part(path, nodes[start:stop], position, start)
        if part is None:
            continue
        key = part_fingerprint(graph_module, part, differentiable)
        groups.setdefault(key, []).append(part)
    return _most_saving([g for g in groups.values() if len(g) > 1], position)


def differentiable_nodes(
    graph_module: torch.fx.GraphModule, trainable: Sequence[bool]
) -> dict[Any, bool]:
    """For each node whether a gradient may flow through it."""
    found: dict[Any, bool] = {}
    flags = iter(trainable)
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            found[node] = next(flags)
        elif node.target in _STOPS_GRADIENTS or not _may_have_gradient(node.meta.get("val")):
            found[node] = False
        else:
            found[node] = any(found[i] for i in node.all_input_nodes)
    return found


_STOPS_GRADIENTS = frozenset(
    [
        torch.ops.aten.detach.default,
        torch.ops.aten.detach_.default,
        torch.ops.higher_order.wrap_with_set_grad_enabled,
    ]
)


def _may_have_gradient(value: object) -> bool:
    values = value if isinstance(value, tuple | list) else [value]
    return any(
        isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex()) for v in values
    )


def _calls_of_modules(nodes: Sequence[Any]) -> list[tuple[str, int, int]]:
    """(path, start, stop) of every call of a module whose nodes follow one another."""
    first: dict[str, int] = {}
    count: dict[str, int] = {}
    last: dict[str, int] = {}
    paths: dict[str, str] = {}
    for number, node in enumerate(nodes):
        for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
            first.setdefault(key, number)
            last[key] = number
            count[key] = count.get(key, 0) + 1
            paths[key] = path
    return [
        (without_root(paths[key]), first[key], last[key] + 1)
        for key in first
        if last[key] + 1 - first[key] == count[key] >= SMALLEST_BLOCK
    ]


def _part(
    path: str, nodes: Sequence[Any], position: Mapping[Any, int], start: int
) -> RepeatedPart | None:
    """The part that `nodes` are, or None if they change a tensor from outside."""
    stop = start + len(nodes)
    inputs: dict[Any, None] = {}
    outputs = []
    for node in nodes:
        for read in node.all_input_nodes:
            if not start <= position.get(read, -1) < stop:
                inputs[read] = None
        if any(not start <= position.get(u, stop) < stop for u in node.users):
            outputs.append(node)
    inside = set(nodes)
    if any(_changes_outside(n, inside) for n in nodes):
        return None
    if not all(isinstance(o.meta.get("val"), torch.Tensor) for o in (*inputs, *outputs)):
        return None
    return RepeatedPart(path, tuple(nodes), tuple(inputs), tuple(outputs)) if outputs else None


def _changes_outside(node: torch.fx.Node, inside: set[Any]) -> bool:
    """Whether a node writes into a tensor that comes from outside, or may."""
    if node.target in _UPDATES_STATISTICS:
        return any(a not in inside for a in node.args[3:5] if isinstance(a, torch.fx.Node))
    schema = schema_of(node.target)
    if schema is None or not schema.is_mutable:
        return False
    for argument, value in zip(schema.arguments, node.args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            while isinstance(value, torch.fx.Node) and value in inside and _is_view(value):
                value = value.args[0]
            if value not in inside:
                return True
    return False


_UPDATES_STATISTICS = frozenset(
    [torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default]
)


def _is_view(node: torch.fx.Node) -> bool:
    schema = schema_of(node.target)
    return schema is None or any(a.alias_info is not None for a in schema.arguments)


# comparison ------------------------------------------------------------------------------------


def part_fingerprint(
    graph_module: torch.fx.GraphModule, part: RepeatedPart, differentiable: Mapping[Any, bool]
) -> Hashable:
    """Equal for parts that compute the same."""
    names: dict[Any, Any] = {n: ("input", i) for i, n in enumerate(part.inputs)}
    names |= {n: i for i, n in enumerate(part.nodes)}
    prefix = len(part.path)
    steps = []
    for node in part.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        where = without_root(next(reversed(stack.values()))[0])[prefix:] if stack else ""
        target = node.target
        if node.op == "get_attr":
            target = graph_fingerprint(getattr(graph_module, node.target))
        arguments = plain_arguments((node.args, node.kwargs), names)
        steps.append((node.op, target, arguments, tensor_type(node.meta.get("val")), where))
    inputs = tuple((tensor_type(n.meta["val"]), differentiable[n]) for n in part.inputs)
    outputs = tuple(names[n] for n in part.outputs)
    return tuple(steps), inputs, outputs


def graph_fingerprint(value: object) -> Hashable:
    """Equal for graphs inside operators that compute the same."""
    if not isinstance(value, torch.fx.GraphModule):
        return id(value)
    names = {n: i for i, n in enumerate(value.graph.nodes)}
    return tuple(
        (
            n.op,
            "" if n.op == "placeholder" else n.target,
            plain_arguments((n.args, n.kwargs), names),
            tensor_type(n.meta.get("val")),
        )
        for n in value.graph.nodes
    )


def plain_arguments(value: object, names: Mapping[Any, Any]) -> Hashable:
    """Arguments as something that can be compared and hashed."""
    if isinstance(value, torch.fx.Node):
        return ("node", names[value])
    if isinstance(value, tuple | list):
        return tuple(plain_arguments(v, names) for v in value)
    if isinstance(value, Mapping):
        return tuple((k, plain_arguments(v, names)) for k, v in sorted(value.items()))
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    return (type(value).__name__, str(value))


def tensor_type(value: object) -> Hashable:
    """Shape, type and strides of a tensor, or of tensors; None for anything else."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype, tuple(value.stride()))
    if isinstance(value, tuple | list):
        return tuple(tensor_type(v) for v in value)
    return None


def _most_saving(
    groups: list[list[RepeatedPart]], position: Mapping[Any, int]
) -> list[list[RepeatedPart]]:
    """Groups without overlaps, those first that leave out the most nodes."""
    taken: set[Any] = set()
    chosen: list[list[RepeatedPart]] = []
    for group in sorted(groups, key=lambda g: -(len(g) - 1) * len(g[0].nodes)):
        free = []
        for part in group:
            if taken.isdisjoint(part.nodes):
                free.append(part)
                taken.update(part.nodes)
        if len(free) > 1:
            chosen.append(free)
        else:
            taken.difference_update(*(p.nodes for p in free))
    return sorted(chosen, key=lambda g: position[g[0].nodes[0]])
