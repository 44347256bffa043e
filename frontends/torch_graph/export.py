"""A step as one flat graph of ATen operators, exported on meta tensors: nothing is computed."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flint.errors import FlintError
from flint.frontends.torch_graph.names import export_failure, place_of, without_root
from flint.frontends.torch_graph.repeats import equal_layers_once, expand
from flint.frontends.torch_private import frames_of_traces, own_buffers, own_parameters, pytree
from flint.steps.step import TorchStep

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class Input:
    """One tensor that the graph takes. `kind` is "parameter", "buffer", "constant" or "input"."""

    kind: str
    name: str
    trainable: bool = False


@dataclass(frozen=True)
class Exported:
    """A graph module whose placeholders are `inputs`, in order, and which returns `outputs`.

    Of a training step, the first output is the loss. `module` is the user's, on meta tensors.
    """

    graph_module: torch.fx.GraphModule
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    module: torch.nn.Module


def export_step(step: TorchStep) -> Exported:
    """Export the module and its loss.

    Raises FlintError FL223, FL227 (no scalar loss), FL228 (a tensor's value is read).
    """
    place = definition(step.module)
    module = on_meta(step.module)
    arguments = tuple(_meta_arguments(a) for a in (step.args, step.kwargs, step.loss_args))
    outputs: list[list[str]] = []
    wrapper = _Wrapper(module, step.loss, step.trains, place, outputs.append)
    printed = io.StringIO()  # a graph, if it fails: the error says what is wrong with it
    try:
        with contextlib.redirect_stderr(printed):
            program = _exported(wrapper, arguments)
    except FlintError:
        raise
    except (Exception, SystemExit) as error:
        raise export_failure(error, place) from error
    sys.stderr.write(printed.getvalue())
    _refuse_values(program.graph_module, place)
    described = _inputs(program, module, _argument_names(step, arguments))
    graph_module, inputs = _merged(program.graph_module, described)
    return Exported(graph_module, inputs, tuple(outputs[-1]), module)


def _exported(wrapper: torch.nn.Module, arguments: tuple[Any, ...]) -> ExportedProgram:
    """The exported program; equal layers are run once if that is possible.

    Tensors that the module makes without a device are on "meta", too, if they meet its weights.
    """
    with without_fast_paths(), frames_of_users(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The tensor attributes? .* assigned during export")
        try:
            return _exported_once(wrapper, arguments)
        except RuntimeError as error:
            if "DeviceMismatch" not in f"{error!r}":
                raise
            with torch.device("meta"):
                return _exported_once(wrapper, arguments)


def _exported_once(wrapper: torch.nn.Module, arguments: tuple[Any, ...]) -> ExportedProgram:
    try:
        with equal_layers_once(wrapper):
            program = torch.export.export(wrapper, arguments, strict=False)
        expand(program.graph_module)
    except FlintError:
        raise
    except Exception:  # noqa: BLE001 - the shortcut's or the module's: the next line tells
        program = torch.export.export(wrapper, arguments, strict=False)
    return program


def _refuse_values(graph_module: torch.fx.GraphModule, place: str | None) -> None:
    """Raise FlintError FL228 where a number that only data can say is computed with."""
    reading = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
    for node in graph_module.graph.nodes:
        if node.target in reading and node.users:
            raise FlintError(
                "FL228",
                "the value of a tensor is read (item(), int(), float()) and computed with",
                place=place_of(node) or place,
                help="keep it a tensor: y * x.sum() instead of y * x.sum().item()",
            )


def definition(module: object) -> str | None:
    """`file.py:line` where the module's forward is defined."""
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else None


@contextmanager
def without_fast_paths() -> Iterator[None]:
    """Keep modules from fused inference kernels that no other operator explains."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


#: Folders whose frames are no places of the user's program.
_OUTSIDE = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


@contextmanager
def frames_of_users() -> Iterator[None]:
    """Record all frames inside the exported forward, not only those of functions `forward`."""

    def inside(summary: traceback.StackSummary) -> traceback.StackSummary:
        own = [i for i, f in enumerate(summary) if f.filename == __file__ and f.name == "forward"]
        start = own[-1] if own else -1
        kept = [f for f in summary[start + 1 :] if not f.filename.startswith(_OUTSIDE)]
        return type(summary).from_list(kept)

    with frames_of_traces(inside):
        yield


class _Wrapper(torch.nn.Module):
    """The user's module and the loss as one module of tensors to tensors."""

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Callable[..., Any] | None,
        trains: bool,
        place: str | None,
        report: Callable[[list[str]], None],
    ) -> None:
        super().__init__()
        self.module = module
        self.train(module.training)
        self.loss = [loss]  # in a list: a loss that is a module would be registered
        self.trains = trains
        self.place = place
        self.report = report

    def forward(
        self, args: Sequence[object], kwargs: Mapping[str, object], loss_args: Sequence[object]
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        output = self.module(*args, **kwargs)
        if self.trains:
            loss = self.loss[0]
            found = loss(output, *loss_args) if loss is not None else _own_loss(output)
            self.report(["loss"])
            return _scalar(found, self.place)
        tensors = dict(tensors_in(output, "output"))
        self.report(list(tensors))
        return tuple(tensors.values())


def _own_loss(output: Any) -> object:
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    if getattr(output, "loss", None) is not None:
        return output.loss
    if isinstance(output, tuple | list) and output:
        return output[0]
    return output


def _scalar(loss: object, place: str | None) -> torch.Tensor:
    if isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.dtype.is_floating_point:
        return loss.reshape(())
    what = (
        f"a {str(loss.dtype).removeprefix('torch.')} tensor of shape {tuple(loss.shape)}"
        if isinstance(loss, torch.Tensor)
        else f"{type(loss).__name__}"
    )
    raise FlintError(
        "FL227",
        f"the step has no scalar loss to differentiate: it is {what}",
        place=place,
        help="give TorchStep(loss=function of the output), or labels that make the model return one",
    )


def tensors_in(value: object, name: str, seen: frozenset[int] = frozenset()) -> Iterator[Any]:
    """(name, tensor) of every tensor in a result: containers, dataclasses, caches."""
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if id(value) in seen:
        return
    seen = seen | {id(value)}
    if isinstance(value, Mapping):
        children = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, tuple | list):
        children = [(str(i), v) for i, v in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        children = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    elif hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module | type):
        children = list(vars(value).items())
    else:
        return
    for key, child in children:
        yield from tensors_in(child, f"{name}.{key}", seen)


# meta tensors ----------------------------------------------------------------------------------


def on_meta(module: object) -> torch.nn.Module:
    """The module with meta tensors: itself if it has no others, else a copy without the data."""
    if not isinstance(module, torch.nn.Module):
        raise FlintError(
            "FL223",
            f"a TorchStep needs a torch.nn.Module, got {type(module).__name__}",
            help="wrap the function in a module whose forward calls it",
        )
    real = [t for t in _own_tensors(module) if t.device.type != "meta"]
    if not real:
        return module
    memo: dict[int, Any] = {id(t): _meta(t) for t in real}
    return copy.deepcopy(module, memo)


def _own_tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    for part in module.modules():
        yield from (p for p in own_parameters(part).values() if p is not None)
        yield from (b for b in own_buffers(part).values() if b is not None)
        yield from (v for v in vars(part).values() if isinstance(v, torch.Tensor))


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
    ).requires_grad_(tensor.requires_grad)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty.detach(), requires_grad=tensor.requires_grad)
    return empty


def _meta_arguments(value: Mapping[str, object] | Sequence[object]) -> object:
    """The same structure with a meta tensor of its own for each tensor or ShapeDtypeStruct."""

    def convert(leaf: object) -> object:
        return _meta(leaf) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(convert, dict(value) if isinstance(value, Mapping) else tuple(value))


# inputs ----------------------------------------------------------------------------------------


def _argument_names(step: TorchStep, arguments: tuple[Any, ...]) -> list[str]:
    """Names of all leaves of (args, kwargs, loss_args), in order."""
    positional = _parameter_names(step.module.forward, len(step.args))
    after_output = _parameter_names(step.loss, len(step.loss_args) + 1)[1:]
    tops = [positional, None, after_output]
    names: list[str] = []
    for value, top in zip(arguments, tops, strict=True):
        for path, _ in pytree.tree_flatten_with_path(value)[0]:
            first, rest = path[0], pytree.keystr(path[1:])
            name = top[first.idx] if top is not None else first.key
            while name + rest in names:
                name += "_"
            names.append(name + rest)
    return names


def _parameter_names(function: Any, count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*names, *(f"arg{i}" for i in range(len(names), count))][:count]


def _inputs(
    program: ExportedProgram, module: torch.nn.Module, arguments: list[str]
) -> list[Input | None]:
    """What each placeholder is, None for one that is not a tensor. Tied tensors share a name."""
    from torch.export.graph_signature import InputKind, TensorArgument

    first = _first_names(module)
    leaves = iter(arguments)
    found: list[Input | None] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            name = next(leaves)
            is_tensor = isinstance(spec.arg, TensorArgument)
            found.append(Input("input", name) if is_tensor else None)
            continue
        name = first.get(without_root(spec.target), without_root(spec.target))
        kind = _KINDS.get(spec.kind.name, "constant")
        trainable = kind == "parameter" and module.get_parameter(name).requires_grad
        found.append(Input(kind, name, trainable))
    return found


_KINDS = {"PARAMETER": "parameter", "BUFFER": "buffer"}


def _first_names(module: torch.nn.Module) -> dict[str, str]:
    """For every name of a parameter or buffer, the first name of the same tensor."""
    known: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        names[name] = known.setdefault(id(tensor), name)
    return names


def _merged(
    graph_module: torch.fx.GraphModule, inputs: list[Input | None]
) -> tuple[torch.fx.GraphModule, tuple[Input, ...]]:
    """The graph with one placeholder for each tensor, and without what computes nothing."""
    graph = graph_module.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for node in reversed(list(graph.nodes)):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)
        elif node.target is torch.ops.aten.detach_.default:
            node.target = torch.ops.aten.detach.default  # writes no data, but looks as if it did
    kept: dict[str, Any] = {}
    found: list[Input] = []
    for node, described in zip(placeholders, inputs, strict=True):
        if described is None:
            node.replace_all_uses_with(None)
            graph.erase_node(node)
        elif described.name in kept and described.kind != "input":
            node.replace_all_uses_with(kept[described.name])
            graph.erase_node(node)
        else:
            kept[described.name] = node
            found.append(described)
    graph_module.recompile()
    return graph_module, tuple(found)
