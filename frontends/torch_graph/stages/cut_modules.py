"""Where the user cuts a module: the modules with which its stages begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from flint.errors import FlintError, nearest
from flint.frontends.stages.cut_points import LayerCuts, ScopeCuts, layer_starts, parse_cut
from flint.frontends.torch_graph.declared import declared_flops, is_declared
from flint.frontends.torch_graph.export import Exported, definition
from flint.frontends.torch_graph.names import without_root

#: Modules that hold others in an order.
_NOT_CALLED = (torch.nn.ModuleList, torch.nn.ModuleDict)
_LISTS = (*_NOT_CALLED, torch.nn.Sequential)


def first_modules(text: str, exported: Exported, stages: int) -> list[str]:
    """Paths of the modules with which the stages begin, all but the first.

    `text` is `Pipeline.cut`. A list of layers may be called by the end of its path, where only one
    list ends like that: "layers" for `model.layers`. Raises FlintError: FL241 (not a cut, or no
    such modules or layers), FL242 (more stages than layers).
    """
    cut = parse_cut(text, stages)
    if stages == 1:
        return []
    module = exported.module
    if isinstance(cut, ScopeCuts):
        paths = [scope.replace("/", ".") for scope in cut.scopes]
        if len(paths) > 1 or not isinstance(_modules(module).get(paths[0]), _NOT_CALLED):
            return [_existing(path, module) for path in paths]
        cut = LayerCuts(paths[0])
    layers = _layers(cut.name.replace("/", "."), module)
    each, before, after = _work(layers, exported) if cut.balanced else ([], 0, 0)
    starts = layer_starts(cut, len(layers), stages, each, before, after, definition(module))
    return [layers[i] for i in starts]


def _modules(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    return dict(module.named_modules(remove_duplicate=False))


def _existing(path: str, module: torch.nn.Module) -> str:
    known = [name for name in _modules(module) if name]
    if path in known:
        return path
    raise FlintError(
        "FL241",
        f"the cut names '{path}', which is not a module{nearest(path, known)}",
        place=definition(module),
        help="name modules as named_modules() does: encoder.3",
    )


def _layers(path: str, module: torch.nn.Module) -> list[str]:
    """Paths of the modules in a list, in order."""
    known = _modules(module)
    lists = [name for name, found in known.items() if isinstance(found, _LISTS)]
    ending = [name for name in lists if name.endswith(f".{path}")]
    if path not in known and len(ending) == 1:
        [path] = ending
    if path in lists:
        return [f"{path}.{name}" for name, _ in known[path].named_children()]
    shown = ", ".join(name for name in lists[:8] if name)
    raise FlintError(
        "FL241",
        f"there is no list of layers '{path}'{nearest(path, lists)}",
        place=definition(module),
        help=f"lists of layers are: {shown}" if shown else "name the first module of each stage",
    )


def _work(layers: Sequence[str], exported: Exported) -> tuple[list[int], int, int]:
    """FLOPs of each layer, of all that runs before the first, and of all that runs after."""
    number = {path: i for i, path in enumerate(layers)}
    each, before, after, started = [0] * len(layers), 0, 0, False
    for node, flops in node_flops(exported.graph_module).items():
        paths = (without_root(p) for p, _ in (node.meta.get("nn_module_stack") or {}).values())
        layer = next((number[p] for p in paths if p in number), None)
        if layer is not None:
            each[layer] += flops
            started = True
        elif started:
            after += flops
        else:
            before += flops
    return each, before, after


# How much an exported graph computes, node by node: enough to balance stages.

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
