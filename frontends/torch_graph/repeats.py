"""Equal layers of a module run once while it is exported; the others are copies of what it did.

Two modules beside each other are equal if their classes, attributes, shapes and submodules are. A
call of one stands for a call of another if the arguments are alike and the call left no trace in
attributes. Copies are made in the exported graph, so that whatever reads it sees every layer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from flint.frontends.torch_private import (
    MODULE_STATE,
    OpOverload,
    forget_library,
    own_buffers,
    own_modules,
    own_parameters,
    pytree,
)

_NAMESPACE = "flint_repeats"
_PRIMITIVE = (int, float, bool, str, type(None), torch.dtype, torch.device)


class NotRepeated(Exception):
    """What was omitted cannot be copied in: the module has to be exported as it is."""


@dataclass
class _Record:
    """A call that was run: what it got, what it gave, and whether others may be copies of it."""

    types: list[tuple[Any, ...]] = field(default_factory=list)
    #: For each leaf of the result: ("given", i) an argument, ("made", i) a new tensor, or ("is", v).
    leaves: list[tuple[str, Any]] = field(default_factory=list)
    structure: Any = None
    usable: bool = False


@contextlib.contextmanager
def equal_layers_once(module: torch.nn.Module) -> Iterator[None]:
    """While the context lasts, only the first of equal calls of equal layers runs.

    A graph that is traced meanwhile has operators in the places of the others: see `expand`.
    """
    layers = _equal_layers(module)
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    try:
        with _Calls(library, layers).in_place():
            yield
    finally:
        forget_library(library)


class _Calls:
    """Forwards that replace those of layers, and the calls that they have seen."""

    def __init__(self, library: torch.library.Library, layers: dict[torch.nn.Module, int]) -> None:
        self.layers = layers
        self.records: list[_Record] = []
        self.known: dict[Any, int] = {}
        for name in ("begin", "end", "copy"):
            library.define(f"{name}(Tensor[] given, Tensor[] own, int record) -> Tensor[]")
        for name in ("begin", "end"):
            torch.library.register_fake(f"{_NAMESPACE}::{name}", _alike, lib=library)
        torch.library.register_fake(f"{_NAMESPACE}::copy", self._fake_copy, lib=library)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        for layer, kind in self.layers.items():
            layer.forward = self._forward(layer, layer.forward, kind)
        try:
            yield
        finally:
            for layer in self.layers:
                del layer.forward

    def _fake_copy(self, given: object, own: object, record: int) -> list[torch.Tensor]:
        types = self.records[record].types
        return [
            torch.empty_strided(shape, stride, dtype=dtype, device=device)
            for shape, stride, dtype, device in types
        ]

    def _forward(
        self, layer: torch.nn.Module, original: Callable[..., Any], kind: int
    ) -> Callable[..., Any]:
        def forward(*args: object, **kwargs: object) -> object:
            leaves, structure = pytree.tree_flatten((args, kwargs))
            key = _call_key(kind, leaves, structure)
            if key is None:
                return original(*args, **kwargs)
            number = self.known.get(key)
            if number is not None and self.records[number].usable:
                return self._copied(layer, leaves, number)
            if number is not None:
                return original(*args, **kwargs)
            self.known[key] = len(self.records)
            self.records.append(_Record())
            return self._recorded(layer, original, leaves, structure, self.known[key])

        return forward

    def _recorded(
        self,
        layer: torch.nn.Module,
        original: Callable[..., Any],
        leaves: list[Any],
        structure: pytree.TreeSpec,
        number: int,
    ) -> object:
        """Run a call between two marks in the graph."""
        record = self.records[number]
        before = _attributes(layer)
        given = _tensors(leaves)
        marked = torch.ops.flint_repeats.begin(given, _own(layer), number)
        position = {id(t): i for i, t in enumerate(given)}
        inner = [marked[position[id(v)]] if id(v) in position else v for v in leaves]
        args, kwargs = pytree.tree_unflatten(inner, structure)
        result = original(*args, **kwargs)
        results, record.structure = pytree.tree_flatten(result)
        inside = {id(t): i for i, t in enumerate(marked)}
        made = _tensors([r for r in results if id(r) not in inside])
        if not made or not all(isinstance(r, (torch.Tensor, *_PRIMITIVE)) for r in results):
            raise NotRepeated
        ended = torch.ops.flint_repeats.end(made, [], number)
        places = {id(t): i for i, t in enumerate(made)}
        for leaf in results:
            if id(leaf) in inside:
                record.leaves.append(("given", inside[id(leaf)]))
            elif id(leaf) in places:
                record.leaves.append(("made", places[id(leaf)]))
            else:
                record.leaves.append(("is", leaf))
        record.types = [(t.shape, t.stride(), t.dtype, t.device) for t in made]
        record.usable = _attributes(layer) == before
        return _assembled(record, given, ended)

    def _copied(self, layer: torch.nn.Module, leaves: list[Any], number: int) -> object:
        record, given = self.records[number], _tensors(leaves)
        made = torch.ops.flint_repeats.copy(given, _own(layer), number)
        return _assembled(record, given, made)


def _alike(given: list[torch.Tensor], own: object, record: int) -> list[torch.Tensor]:
    return [torch.empty_like(t) for t in given]


def _assembled(record: _Record, given: list[Any], made: list[torch.Tensor]) -> object:
    sources = {"given": given, "made": made}
    leaves = [value if how == "is" else sources[how][value] for how, value in record.leaves]
    return pytree.tree_unflatten(leaves, record.structure)


def _tensors(leaves: list[Any]) -> list[Any]:
    return list({id(v): v for v in leaves if isinstance(v, torch.Tensor)}.values())


def _call_key(kind: int, leaves: list[Any], structure: object) -> Hashable:
    """Equal for calls that one run may stand for; None for calls that must run."""
    order = {id(t): i for i, t in enumerate(_tensors(leaves))}
    parts: list[Any] = [kind, str(structure)]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            own = (tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, str(leaf.device))
            parts.append((*own, order[id(leaf)]))
        elif isinstance(leaf, _PRIMITIVE):
            parts.append((type(leaf).__name__, repr(leaf)))
        else:
            return None
    return tuple(parts) if order else None


def _own(layer: torch.nn.Module) -> list[torch.Tensor]:
    return [*layer.parameters(), *layer.buffers()]


def _attributes(layer: torch.nn.Module) -> list[tuple[str, int, int]]:
    """What a call may leave in a layer: values of attributes by identity, sizes of containers."""
    found = []
    for part in layer.modules():
        for key, value in (*vars(part).items(), *own_buffers(part).items()):
            size = len(value) if isinstance(value, list | dict | set) else 0
            found.append((key, id(value), size))
    return found


# equal modules ---------------------------------------------------------------------------------


def _equal_layers(module: torch.nn.Module) -> dict[torch.nn.Module, int]:
    """Layers that have equals beside them, outermost first, with the number of their kind."""
    found: dict[torch.nn.Module, int] = {}
    kinds = 0

    def visit(parent: torch.nn.Module) -> None:
        nonlocal kinds
        groups: list[list[torch.nn.Module]] = []
        for child in parent.children():
            group = next((g for g in groups if _equal(g[0], child)), None)
            if group is None:
                groups.append([child])
            else:
                group.append(child)
        for group in groups:
            if len(group) > 1 and any(True for _ in group[0].children()):
                found.update(dict.fromkeys(group, kinds))
                kinds += 1
            else:
                for child in group:
                    visit(child)

    visit(module)
    return found


def _equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two modules compute the same from tensors of their own."""
    if type(one) is not type(other) or "forward" in vars(one) or one is other:
        return False
    mine, yours = vars(one), vars(other)
    if mine.keys() != yours.keys():
        return False
    if not all(_same(mine[k], yours[k]) for k in mine if k not in MODULE_STATE):
        return False
    for state in (own_parameters, own_buffers):
        left, right = state(one), state(other)
        if left.keys() != right.keys() or not all(_alike_tensors(left[k], right[k]) for k in left):
            return False
    left, right = own_modules(one), own_modules(other)
    return left.keys() == right.keys() and all(
        (left[k] is None and right[k] is None)
        or (left[k] is not None and right[k] is not None and _equal(left[k], right[k]))
        for k in left
    )


def _alike_tensors(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return (
        type(one) is type(other)
        and one.shape == other.shape
        and one.dtype == other.dtype
        and one.stride() == other.stride()
        and one.requires_grad == other.requires_grad
    )


def _same(one: Any, other: Any) -> bool:
    """Equality that says no where it is in doubt."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, _PRIMITIVE):
        return bool(one == other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, set):
        return not one and not other
    return False


# copies ----------------------------------------------------------------------------------------


def expand(graph_module: torch.fx.GraphModule) -> None:
    """Put copies of recorded calls where calls were omitted, and take the marks away.

    Raises NotRepeated if a call is not in the graph that its copy belongs to.
    """
    for part in list(graph_module.modules()):
        if isinstance(part, torch.fx.GraphModule):
            _expand_graph(part.graph)
            part.recompile()


def _expand_graph(graph: torch.fx.Graph) -> None:
    begins = _marks(graph, "begin")
    ends = {n.args[2]: n for n in _marks(graph, "end")}
    bodies: dict[int, tuple[Any, list[Any]]] = {}
    for begin in begins:
        number = begin.args[2]
        if number not in ends:
            raise NotRepeated
        bodies[number] = (begin, _between(begin, ends[number]))
    for copy in _marks(graph, "copy"):
        if copy.args[2] not in bodies:
            raise NotRepeated
        _paste(graph, copy, *bodies[copy.args[2]], ends[copy.args[2]])
    for mark in (*begins, *ends.values()):
        for item in list(mark.users):
            item.replace_all_uses_with(mark.args[0][item.args[1]])
            graph.erase_node(item)
        graph.erase_node(mark)


def _marks(graph: torch.fx.Graph, name: str) -> list[Any]:
    wanted = f"{_NAMESPACE}::{name}"
    return [n for n in graph.nodes if _operator_name(n) == wanted]


def _operator_name(node: torch.fx.Node) -> str:
    target = node.target
    return str(target.name()) if isinstance(target, OpOverload) else ""


def _between(begin: torch.fx.Node, end: torch.fx.Node) -> list[Any]:
    found = []
    node = begin.next
    while node is not end:
        if begin not in node.all_input_nodes:
            found.append(node)
        node = node.next
    return found


def _paste(
    graph: torch.fx.Graph,
    copy: torch.fx.Node,
    begin: torch.fx.Node,
    body: list[Any],
    end: torch.fx.Node,
) -> None:
    """The nodes of a recorded call once more, on the tensors of another."""
    copies = dict(zip(begin.args[1], copy.args[1], strict=True))
    for item in begin.users:
        copies[item] = copy.args[0][item.args[1]]
    for node in body:
        with graph.inserting_before(copy):
            copies[node] = graph.node_copy(node, lambda n: copies.get(n, n))
        copies[node].meta = {**node.meta, "nn_module_stack": _moved(node, begin, copy)}
    for item in list(copy.users):
        made = end.args[0][item.args[1]]
        item.replace_all_uses_with(copies.get(made, made))
        graph.erase_node(item)
    graph.erase_node(copy)


def _moved(node: torch.fx.Node, begin: torch.fx.Node, copy: torch.fx.Node) -> dict[str, Any]:
    """The stack of modules of a node, as it is under the layer of its copy."""
    old, new = (list(n.meta["nn_module_stack"].items()) for n in (begin, copy))
    (old_key, (old_path, _)), (new_key, (new_path, _)) = old[-1], new[-1]
    inner = list((node.meta.get("nn_module_stack") or {}).items())[len(old) :]
    moved = [
        (new_key + key[len(old_key) :], (new_path + path[len(old_path) :], kind))
        for key, (path, kind) in inner
    ]
    return dict([*new, *moved])
