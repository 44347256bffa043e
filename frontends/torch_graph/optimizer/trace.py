"""One step of a PyTorch optimizer for one parameter, as a graph of ATen operators.

The step is traced on meta tensors. Where the optimizer has no state yet, a first step makes it
and the second is traced. What it keeps on the host (step counters, and bias corrections that
follow from them) is computed as PyTorch does, and is a constant of the traced step.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from flint.errors import FlintError
from flint.frontends.torch_graph.decompositions import decompositions
from flint.frontends.torch_private import OpOverload, pytree, schema_of
from flint.io.user_places import user_place

#: Options that choose an implementation of the same arithmetic: the plain one is traced. With
#: `capturable`, step counters would be tensors on the device.
_PLAIN_OPTIONS = {"foreach": False, "fused": False, "capturable": False}
_SAME_VALUE = frozenset(
    {"aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift_fresh_copy"}
)


@dataclass(frozen=True)
class StateTensor:
    """A tensor that the optimizer keeps for a parameter on the device."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class StepGraph:
    """`inputs` (parameter, gradient, state) to `outputs` (parameter, state) through `nodes`."""

    inputs: tuple[Any, ...]
    nodes: tuple[Any, ...]
    outputs: tuple[Any, ...]
    constants: Mapping[Any, torch.Tensor]
    state: tuple[StateTensor, ...]
    parameter_shape: tuple[int, ...]

    @property
    def is_pointwise(self) -> bool:
        """Whether every operator works element by element."""
        return all(torch.Tag.pointwise in getattr(n.target, "tags", ()) for n in self.nodes)

    def text(self) -> str:
        """Operators and their arguments: equal for graphs that compute the same of any shape."""
        number = {node: f"%{i}" for i, node in enumerate((*self.inputs, *self.nodes))}
        named = torch.fx.node.map_arg
        lines = [f"{n.target} {named((n.args, n.kwargs), number.get)}" for n in self.nodes]
        return "\n".join([*lines, *(number[o] for o in self.outputs)])

    def forget_shapes(self) -> None:
        """Let the graph stand for tensors of any shape: its nodes say nothing of theirs."""
        for node in self.nodes:
            node.meta.pop("val", None)


def trace_step(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    parameter: torch.Tensor,
    state: Mapping[str, Any],
) -> StepGraph:
    """The next step of `optimizer` for a parameter like `parameter`, alone in its `group`.

    `state` is what the optimizer holds for it already. Raises FlintError FL225.
    """
    with _Refusing(optimizer):
        module, kept = _traced(optimizer, group, parameter, state, count=1)
    nodes = list(module.graph.nodes)
    output = nodes[-1].args[0]
    outputs = tuple(_origin(o) for o in output)
    live = _needed(outputs, lambda node: node.all_input_nodes)
    found = StepGraph(
        inputs=tuple(n for n in nodes if n.op == "placeholder"),
        nodes=tuple(n for n in nodes if n in live and n.op == "call_function"),
        outputs=outputs,
        constants={n: getattr(module, n.target) for n in nodes if n in live and n.op == "get_attr"},
        state=kept,
        parameter_shape=tuple(parameter.shape),
    )
    for node in found.nodes:
        node.args = torch.fx.node.map_arg(node.args, _origin)
        node.kwargs = torch.fx.node.map_arg(node.kwargs, _origin)
        # Scopes and messages name the optimizer as they name modules.
        node.meta["nn_module_stack"] = {"": (type(optimizer).__name__.lower(), None)}
    if found.outputs[0] is found.inputs[0]:
        raise refusal(optimizer, "its step changes no parameter that it is given")
    return found


def refuse_coupled(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    parameter: torch.Tensor,
    state: Mapping[str, Any],
) -> None:
    """Raise FlintError FL225 if the update of one parameter reads the gradient of another."""
    with _Refusing(optimizer):
        module, _ = _traced(optimizer, group, parameter, state, count=2)
    nodes = list(module.graph.nodes)
    places = [n for n in nodes if n.op == "placeholder"]
    half = len(places) // 2
    others = set(places[half:])
    outputs = nodes[-1].args[0]
    for output in outputs[: len(outputs) // 2]:
        if others & _needed([_origin(output)], _read_alone):
            raise refusal(optimizer, "the update of one parameter reads others")


def refusal(
    optimizer: torch.optim.Optimizer | str, reason: str, place: str | None = None
) -> FlintError:
    """FL225: the step of an optimizer cannot be traced, and why."""
    name = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
    return FlintError(
        "FL225",
        f"the step of {name} cannot be traced: {reason}",
        place=place,
        help="an optimizer can be traced if it updates each parameter from its own gradient "
        'and state and reads no values, as "adamw" and "sgd" do',
    )


class _Refusing:
    """Turn whatever a step raises while it is traced into FL225."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, FlintError):
            raise refusal(self.optimizer, _reason(error), user_place(error)) from error


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    first = text[0] if text else "no message"
    if "closure" in first:
        return "it calls the loss by itself (a closure)"
    if "item()" in first or "meta tensor" in first.lower() or "_local_scalar_dense" in first:
        return f"it reads the value of a tensor ({first})"
    return f"{type(error).__name__}: {first}"


# tracing --------------------------------------------------------------------------------------


def _traced(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    parameter: torch.Tensor,
    state: Mapping[str, Any],
    count: int,
) -> tuple[Any, tuple[StateTensor, ...]]:
    leaves, tree = _state_to_start_from(optimizer, group, parameter, state, count)
    kept = tuple(
        StateTensor(_path(path), tuple(x.shape), x.dtype) for path, x in leaves if _on_device(x)
    )

    def step(*tensors: torch.Tensor) -> list[torch.Tensor]:
        each = 2 + len(kept)
        rows = [tensors[i * each : (i + 1) * each] for i in range(count)]
        parameters = [row[0].detach() for row in rows]
        states = [_filled(leaves, tree, row[2:]) for row in rows]
        optimizer_now = _alone(optimizer, group, parameters, states)
        _step(optimizer_now, [row[1] for row in rows])
        return [t for p in parameters for t in (p, *_tensors(optimizer_now.state[p], kept))]

    examples = [
        example
        for _ in range(count)
        for example in (
            *(_like(parameter).detach() for _ in range(2)),
            *(torch.empty(s.shape, dtype=s.dtype, device="meta") for s in kept),
        )
    ]
    pure = torch.func.functionalize(step, remove="mutations")
    return make_fx(pure, decompositions(of_step=True))(*examples), kept


def _state_to_start_from(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    parameter: torch.Tensor,
    state: Mapping[str, Any],
    count: int,
) -> tuple[list[Any], Any]:
    """Leaves and tree of what is kept per parameter: `state`, or what a first step makes of it."""
    first = [_like(parameter) for _ in range(count)]
    made = _alone(optimizer, group, first, [_fresh(state) for _ in first])
    _step(made, [torch.empty_like(p) for p in first])
    before, before_tree = pytree.tree_flatten_with_path(_fresh(state))
    after, after_tree = pytree.tree_flatten_with_path(dict(made.state[first[0]]))
    return (before, before_tree) if before_tree == after_tree else (after, after_tree)


def _like(parameter: torch.Tensor) -> torch.Tensor:
    made = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
    return made.requires_grad_(parameter.is_floating_point())


def _alone(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    parameters: Sequence[torch.Tensor],
    states: Sequence[Any],
) -> torch.optim.Optimizer:
    """The user's optimizer with nothing but `parameters` in one group.

    It is copied and not constructed again: nobody knows what its constructor takes. A step that
    a learning rate schedule wrapped is the class's again.
    """
    made: Any = object.__new__(type(optimizer))
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)
    options = pytree.tree_map(_as_number, {k: v for k, v in group.items() if k != "params"})
    options |= {k: v for k, v in _PLAIN_OPTIONS.items() if k in group}
    made.param_groups = [{**options, "params": list(parameters)}]
    made.state = defaultdict(dict)
    for parameter, state in zip(parameters, states, strict=True):
        if state:
            made.state[parameter] = state
    return made


def _as_number(option: Any) -> object:
    """Learning rates and the like may be tensors on the host; their values are constants."""
    host = isinstance(option, torch.Tensor) and not option.is_meta and not option.ndim
    return option.item() if host else option


def _step(optimizer: torch.optim.Optimizer, gradients: Sequence[torch.Tensor]) -> None:
    group = optimizer.param_groups[0]
    rule = rule_for(optimizer)
    for parameter, gradient in zip(group["params"], gradients, strict=True):
        if rule is None:
            parameter.grad = gradient
        else:
            with torch.no_grad():
                rule(parameter, gradient, optimizer.state[parameter], group)
    if rule is None:
        optimizer.step()


def _fresh(state: Mapping[str, Any]) -> dict[str, Any]:
    """State that the optimizer was given or made at construction: counters stay on the host."""

    def convert(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        if value.ndim:
            return torch.empty_like(value, device="meta")
        return torch.zeros_like(value, device="cpu") if value.is_meta else value.detach().clone()

    fresh: dict[str, Any] = pytree.tree_map(convert, dict(state))
    return fresh


def _filled(leaves: Sequence[Any], tree: Any, tensors: Iterable[torch.Tensor]) -> dict[str, Any]:
    """A state whose tensors on the device are `tensors`; what is on the host is copied.

    Copies are made from numbers: of such tensors tracing knows the value, of clones it does not.
    """
    given = iter(tensors)

    def fill(value: object) -> object:
        if _on_device(value):
            return next(given)
        if isinstance(value, torch.Tensor):
            return torch.tensor(value.tolist(), dtype=value.dtype)
        return value

    filled: dict[str, Any] = pytree.tree_unflatten([fill(x) for _, x in leaves], tree)
    return filled


def _tensors(state: Mapping[str, Any], kept: Sequence[StateTensor]) -> list[torch.Tensor]:
    found = {_path(p): x for p, x in pytree.tree_flatten_with_path(dict(state))[0]}
    return [found[s.name] for s in kept]


def _on_device(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


def _path(path: Sequence[Any]) -> str:
    return ".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)


# graphs ---------------------------------------------------------------------------------------


def _origin(node: torch.fx.Node) -> torch.fx.Node:
    """What a node that passes its operand on unchanged stands for."""
    while node.op == "call_function" and _schema_name(node.target) in _SAME_VALUE:
        node = node.args[0]
    return node


def _schema_name(target: object) -> str:
    return str(schema_of(target).name) if isinstance(target, OpOverload) else ""


def _needed(outputs: Iterable[Any], reads: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """Nodes that `outputs` are computed from, themselves included; `reads` of one are the next."""
    found: set[Any] = set()
    todo = list(outputs)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [_origin(n) for n in reads(node)]
    return found


def _read_alone(node: torch.fx.Node) -> Iterable[Any]:
    """What a node reads; of the lists that a `foreach` operator maps, the entries for this one."""
    if node.target is operator.getitem:
        mapped, index = node.args
        if _schema_name(mapped.target).startswith("aten::_foreach_"):
            lists = [a for a in (*mapped.args, *mapped.kwargs.values()) if isinstance(a, list)]
            others = set(mapped.all_input_nodes).difference(*lists)  # numbers as tensors
            entries = [a[index] for a in lists if isinstance(a[index], torch.fx.Node)]
            return [*entries, *others]
    found: Iterable[Any] = node.all_input_nodes
    return found


# Steps of PyTorch's optimizers that read values on the host, written without reading them.

#: A step for one parameter: parameter, gradient, state and the options of the group. It changes
#: the parameter and the state in place.
Rule = Callable[[torch.Tensor, torch.Tensor, Any, Mapping[str, Any]], None]


def rule_for(optimizer: torch.optim.Optimizer) -> Rule | None:
    """The rule that does what the step of `optimizer` does, or None: then its own step is traced.

    A class derived from PyTorch's counts while it keeps the step.
    """
    for known, rule in _RULES.items():
        if isinstance(optimizer, known) and type(optimizer).step is known.step:
            return rule
    return None


def _adafactor(
    parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: Mapping[str, Any]
) -> None:
    """Adafactor (Shazeer and Stern, 2018), algorithms 4 and 5, as torch.optim has it.

    PyTorch reads the norms of the parameter and of the update to the host; here they stay tensors.
    """
    if group["maximize"]:
        gradient = -gradient
    state.setdefault("step", torch.tensor(0.0))
    state["step"] += 1
    step = float(state["step"].item())
    small, least_scale = group["eps"]
    small = torch.finfo(parameter.dtype).eps if small is None else small
    rate = min(float(group["lr"]), step**-0.5)
    scale = _root_mean_square(parameter).clamp(min=least_scale) * rate
    if group["weight_decay"]:
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
    variance = _adafactor_variance(gradient, state, step ** group["beta2_decay"], small)
    update = gradient * variance.clamp(min=small * small).rsqrt()
    excess = (_root_mean_square(update) / group["d"]).clamp(min=1.0)
    parameter.sub_((update.float() * (scale / excess)).to(parameter.dtype))


def _adafactor_variance(
    gradient: torch.Tensor, state: dict[str, Any], weight: float, small: float
) -> torch.Tensor:
    """The running second moment: of matrices by rows and columns, of vectors by elements."""
    if gradient.dim() < 2:
        state.setdefault("variance", torch.zeros_like(gradient))
        state["variance"].lerp_(gradient * gradient, weight)
        return state["variance"].clone()
    for name, dimension in (("row_var", -1), ("col_var", -2)):
        mean = torch.norm(gradient, dim=dimension, keepdim=True).square()
        mean = mean / gradient.size(dimension)
        state.setdefault(name, torch.zeros_like(mean))
        state[name].lerp_(mean, weight)
    rows = state["row_var"]
    return (rows @ state["col_var"]) / rows.mean(dim=-2, keepdim=True).clamp(min=small)


def _root_mean_square(tensor: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = tensor.norm(2).float() / tensor.numel() ** 0.5
    return norm


_RULES: dict[type[torch.optim.Optimizer], Rule] = {torch.optim.Adafactor: _adafactor}
