"""What a PyTorch optimizer does to the parameters of a module, in JAX."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

from flint.errors import FlintError, nearest
from flint.frontends.torch_graph.interpreter import Interpreter, refuse_unknown
from flint.frontends.torch_graph.optimizer.trace import (
    StepGraph,
    refusal,
    refuse_coupled,
    trace_step,
)
from flint.frontends.torch_graph.shardings.placements import spec_axes
from flint.frontends.torch_ops.types import jax_dtype
from flint.io.user_places import user_place

if TYPE_CHECKING:
    from jax import Array


#: Added to the norm of the gradients before dividing by it, as PyTorch does.
_CLIP_EPSILON = 1e-6
#: Phase and scope of the clipping, as `names.name_stack` writes them.
CLIP_SCOPE = "@optimizer/clip_grad_norm"

Arrays = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Update:
    """The optimizer of a step: made by `optimizer_update`, applied while the step is traced.

    `state_specs` holds, for each parameter that is updated, its state by name as
    `jax.ShapeDtypeStruct`. Step counters that PyTorch keeps on the host are no state.
    """

    state_specs: Mapping[str, Mapping[str, Any]]
    steps: Mapping[str, Callable[..., Any]]
    clip_norm: float | None = None

    def apply(
        self,
        params: Arrays,
        grads: Arrays,
        state: Mapping[str, Arrays],
        grad_specs: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Parameters and state after the step. Parameters without a gradient stay as they are.

        `grad_specs` are PartitionSpecs of gradients, see `clip_gradients`.
        """
        import jax

        new_params = dict(params)
        new_state = {name: dict(of) for name, of in state.items()}
        found = {name: gradient for name, gradient in grads.items() if gradient is not None}
        if self.clip_norm is not None and found:
            with jax.named_scope(CLIP_SCOPE):
                found = clip_gradients(found, self.clip_norm, grad_specs)
        for name in (n for n in self.steps if n in found):
            keys = list(self.state_specs[name])
            old = [state[name][key] for key in keys]
            new_params[name], *new = self.steps[name](params[name], found[name], *old)
            new_state[name] = dict(zip(keys, new, strict=True))
        return new_params, new_state


def optimizer_update(
    optimizer: object, parameters: Mapping[str, torch.Tensor], clip_norm: float | None = None
) -> Update:
    """Trace what `optimizer` does to `parameters` (name to the module's own parameter).

    `optimizer` is the name of a class of torch.optim ("adamw", "sgd": its defaults), an
    optimizer over parameters of the module, a function from a list of parameters to one, or a
    sequence of them, such as Muon for matrices and AdamW for the rest. Its class, options and
    groups count; nothing is executed and learning rates are constants. With `clip_norm`, the
    global norm of the gradients is clipped first, as `torch.nn.utils.clip_grad_norm_` does.

    >>> update = optimizer_update("adamw", dict(model.named_parameters()), clip_norm=1.0)
    >>> update.state_specs["head.weight"]
    {'exp_avg': ShapeDtypeStruct(...), 'exp_avg_sq': ShapeDtypeStruct(...)}
    >>> params, state = update.apply(params, grads, state)  # under jax.jit

    Raises FlintError: FL225 (a step that cannot be traced), FL220 (unknown operators in it).
    """
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    tracer = _Tracer()
    specs: dict[str, Mapping[str, Any]] = {}
    steps: dict[str, Callable[..., Any]] = {}
    for name, (owner, group, own) in _owners(optimizer, trained).items():
        graph, step = tracer.step(owner, group, own)
        specs[name] = _state_specs(graph, tuple(own.shape))
        steps[name] = step
    refuse_unknown(node for graph in tracer.graphs for node in graph.nodes)
    ordered = [name for name in trained if name in steps]
    return Update({n: specs[n] for n in ordered}, {n: steps[n] for n in ordered}, clip_norm)


def clip_gradients(
    gradients: Arrays, max_norm: float, specs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Gradients scaled so that the norm of all of them together is at most `max_norm`.

    With their PartitionSpecs and a mesh in context, every device adds up the squares that it
    holds, and one all-reduce per set of mesh axes follows, as in PyTorch; partitioned without,
    every gradient would have its own.
    """
    return scaled_gradients(gradients, squared_norm(gradients, specs), max_norm)


def squared_norm(gradients: Arrays, specs: Mapping[str, Any] | None = None) -> Array:
    """The sum of the squares of all gradients, in float32; `specs` as for `clip_gradients`."""
    import jax
    import jax.numpy as jnp

    mesh = jax.sharding.get_abstract_mesh()
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in gradients:
        over = spec_axes(specs[name]) if specs and not mesh.empty else set()
        alike.setdefault(tuple(a for a in mesh.axis_names if a in over), []).append(name)
    total = jnp.zeros((), jnp.float32)
    for axes, names in alike.items():
        sums = _sum_over(axes, [specs[n] for n in names]) if specs and axes else _sum_of_squares
        total += sums(*(gradients[n] for n in names))
    return total


def scaled_gradients(gradients: Arrays, total: Array, max_norm: float) -> dict[str, Any]:
    """Gradients whose squares sum up to `total`, scaled to a norm of at most `max_norm`."""
    import jax.numpy as jnp

    scale = jnp.minimum(max_norm / (jnp.sqrt(total) + _CLIP_EPSILON), 1.0)
    return {name: g * scale.astype(g.dtype) for name, g in gradients.items()}


def _sum_over(axes: tuple[str, ...], specs: Sequence[Any]) -> Callable[..., Any]:
    """The sum of squares of arrays that are sharded over `axes` as `specs` say."""
    import jax

    def local(*shards: Array) -> Array:
        with jax.named_scope(CLIP_SCOPE):
            return jax.lax.psum(_sum_of_squares(*shards), axes)

    summed: Callable[..., Any] = jax.shard_map(
        local, in_specs=tuple(specs), out_specs=jax.sharding.PartitionSpec()
    )
    return summed


def _sum_of_squares(*arrays: Array) -> Array:
    import jax.numpy as jnp

    def square(array: Array) -> Array:
        wide = jnp.abs(array) if jnp.iscomplexobj(array) else array
        wide = wide.astype(jnp.promote_types(wide.dtype, jnp.float32))
        return jnp.sum(wide * wide)

    return reduce(operator.add, map(square, arrays))


# who updates what -----------------------------------------------------------------------------

#: The optimizer of a parameter, its group, and the parameter as the optimizer holds it.
_Owner = tuple[torch.optim.Optimizer, Mapping[str, Any], torch.Tensor]


def _owners(optimizer: object, trained: Mapping[str, torch.Tensor]) -> dict[str, _Owner]:
    """For each parameter that some optimizer holds: which, and in which group."""
    made, held = _made(optimizer, trained)
    names = {id(p): name for name, p in held.items()}
    owners: dict[str, _Owner] = {}
    for one in made:
        for group in one.param_groups:
            for parameter in group["params"]:
                name = names.get(id(parameter))
                if name is not None:
                    owners[name] = (one, group, parameter)
    if trained and not owners:
        raise refusal(
            " and ".join(type(o).__name__ for o in made) or "nothing",
            "it holds no parameter of the module that requires a gradient",
        )
    return owners


def _made(
    optimizer: object, trained: Mapping[str, torch.Tensor]
) -> tuple[list[torch.optim.Optimizer], Mapping[str, torch.Tensor]]:
    """The optimizers that the user means, and the parameters that they hold by name."""
    if _is_made(optimizer):
        return _listed(optimizer), trained
    stand_ins = {
        name: torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="meta"))
        for name, p in trained.items()
    }
    make = _named_class(optimizer) if isinstance(optimizer, str) else optimizer
    if not callable(make):
        raise FlintError(
            "FL225",
            f"{type(optimizer).__name__} is not an optimizer",
            help='give "adamw", "sgd", a torch.optim.Optimizer, or a function of parameters',
        )
    name = getattr(make, "__name__", type(make).__name__)
    try:
        made = make(list(stand_ins.values()))
    except FlintError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"making it raised {type(error).__name__}: {error}"
        raise refusal(name, reason, user_place(error)) from error
    if not _is_made(made):
        raise refusal(name, f"it returned {type(made).__name__}, not a torch.optim.Optimizer")
    return _listed(made), stand_ins


def _is_made(value: object) -> bool:
    found = _listed(value)
    return bool(found) and all(isinstance(o, torch.optim.Optimizer) for o in found)


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _named_class(name: str) -> type[torch.optim.Optimizer]:
    known = {
        key.lower(): value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
    }
    known.pop("optimizer", None)
    if name.lower() not in known:
        raise FlintError(
            "FL225",
            f"there is no optimizer '{name}'{nearest(name, list(known))}",
            help=f"choose one of {', '.join(sorted(known))}, or make it yourself",
        )
    return known[name.lower()]


# graphs as functions --------------------------------------------------------------------------

_Traced = tuple[StepGraph, Callable[..., Any]]


class _Tracer:
    """Traces each kind of update once: per group, shape and type, or fewer where shapes agree."""

    def __init__(self) -> None:
        self.graphs: list[StepGraph] = []
        self._checked: set[int] = set()
        self._by_shape: dict[Any, _Traced] = {}
        self._first: dict[Any, StepGraph] = {}
        self._of_any_shape: dict[Any, _Traced] = {}

    def step(
        self, owner: torch.optim.Optimizer, group: Mapping[str, Any], parameter: torch.Tensor
    ) -> _Traced:
        """The graph of an update and a jitted function that computes it.

        Once the elementwise updates of two shapes are found to be the same, they serve all shapes
        with as many dimensions.
        """
        state = owner.state.get(parameter, {})
        if id(group) not in self._checked:
            self._checked.add(id(group))
            refuse_coupled(owner, group, parameter, state)
        kind = (id(group), parameter.dtype, parameter.ndim)
        key = (*kind, tuple(parameter.shape))
        known = self._by_shape.get(key) or self._of_any_shape.get(kind)
        if known is not None:
            return known
        graph = trace_step(owner, group, parameter, state)
        found = self._by_shape[key] = (graph, _function(graph, type(owner).__name__))
        self.graphs.append(graph)
        first = self._first.setdefault(kind, graph)
        if first is not graph and graph.is_pointwise and graph.text() == first.text():
            graph.forget_shapes()
            self._of_any_shape[kind] = found
        return found


def _function(graph: StepGraph, name: str) -> Callable[..., Any]:
    """The graph as a jitted function: parameter, gradient, state to parameter, state."""
    import jax
    import jax.numpy as jnp

    def step(*arrays: Array) -> tuple[Any, ...]:
        values: dict[Any, Any] = dict(zip(graph.inputs, arrays, strict=True))
        values |= {n: jnp.asarray(c.numpy()) for n, c in graph.constants.items()}
        Interpreter().run(graph.nodes, values, "optimizer")
        return tuple(values[o] for o in graph.outputs)

    step.__name__ = step.__qualname__ = name.lower()
    jitted: Callable[..., Any] = jax.jit(step)
    return jitted


def _state_specs(graph: StepGraph, shape: tuple[int, ...]) -> dict[str, Any]:
    import jax

    own = tuple(graph.parameter_shape)
    return {
        s.name: jax.ShapeDtypeStruct(shape if s.shape == own else s.shape, jax_dtype(s.dtype))
        for s in graph.state
    }
