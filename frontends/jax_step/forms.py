"""Functions in the forms in which JAX's libraries hand them over, brought to one that JAX traces.

| handed over | traced as |
|---|---|
| `jax.jit(f)`, pjit, `nnx.jit(f)` | itself: arguments that are no arrays are its own to judge |
| `functools.partial` of one, a jitted method of an object | the jitted function, with the bound arguments first |
| `eqx.filter_jit(f)`, `jax.pmap(f)`, a callable pytree (an Equinox module), a partial that holds `jax.ShapeDtypeStruct`s | a function of the arrays in it and its arguments; everything else is static |
| any function of Flax NNX modules | the same; what it changes in them is a result, too |
| any other callable, or one with options beside it (`donate_argnums`) | `jax.jit` of it |
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flint.steps.step import Step


@dataclass(frozen=True)
class Handed:
    """A step in a form that can be traced.

    `is_jitted`: the function is jitted already and takes its own static arguments. `is_whole`: the
    function calls a jitted one, whose donated arguments are the step's.
    """

    step: Step
    is_jitted: bool = False
    is_whole: bool = False


def handed(step: Step) -> Handed:
    """The step with its function in a form that can be traced, see above."""
    if _adds_nothing(step):
        step = _unbound(step)
        if is_jitted(step.fn):
            return Handed(step, is_jitted=True)
    elif is_jitted(step.fn):
        return Handed(step)
    wrapped = getattr(step.fn, "__wrapped__", None)
    if hasattr(step.fn, "lower") and callable(wrapped) and _is_abstract(wrapped):
        step = replace(step, fn=wrapped)  # `eqx.filter_jit(model)` would hold its shapes static
    mutable = _is_mutable((step.args, dict(step.kwargs)))
    if hasattr(step.fn, "lower") or _holds_arrays(step.fn) or mutable:
        return Handed(_of_arrays(step), is_whole=True)
    return Handed(step)


def _adds_nothing(step: Step) -> bool:
    """Whether a jitted function can stay as it is: nothing is asked for that its own jit lacks."""
    given = (*_shifted(step.donate_argnums, 0), *_shifted(step.static_argnums, 0))
    return step.out_shardings is None and not given


def is_jitted(function: object) -> bool:
    """Whether `jax.jit`, or a library in its way, made a function: it traces and lowers itself."""
    return hasattr(function, "trace") and hasattr(function, "lower")


def is_pmapped(function: object) -> bool:
    """Whether `jax.pmap` made a function: a plain one that lowers itself and does not trace."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.isfunction(function) and hasattr(function, "lower") and not is_jitted(function)


def _unbound(step: Step) -> Step:
    """A step of the jitted function itself, where it is bound to arguments or to an object."""
    fn: Any = step.fn
    while True:
        if isinstance(fn, functools.partial) and is_jitted(_innermost(fn)):
            step = _with_first(step, fn.func, fn.args, fn.keywords)
        elif inspect.ismethod(fn) and is_jitted(fn.__func__):
            step = _with_first(step, fn.__func__, (fn.__self__,), {})
        else:
            return step
        fn = step.fn


def _innermost(fn: Any) -> Any:
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif inspect.ismethod(fn) and is_jitted(fn.__func__):
            fn = fn.__func__
        else:
            return fn


def _with_first(
    step: Step, fn: Callable[..., Any], first: Sequence[Any], keywords: Mapping[str, Any]
) -> Step:
    """The step with arguments before its own; what counts positions counts on from there."""
    count = len(first)
    own = step.in_shardings
    if count and own is not None:
        per_argument = isinstance(own, list) or (
            isinstance(own, tuple) and not hasattr(own, "index_map")
        )
        entries = list(own) if per_argument and not _is_spec(own) else [own] * len(step.args)
        own = [None] * count + entries
    return replace(
        step,
        fn=fn,
        args=(*first, *step.args),
        kwargs={**keywords, **step.kwargs},
        in_shardings=own,
        donate_argnums=_shifted(step.donate_argnums, count),
        static_argnums=_shifted(step.static_argnums, count),
    )


def _is_spec(value: object) -> bool:
    import jax

    return isinstance(value, jax.sharding.Sharding | jax.sharding.PartitionSpec)


def _shifted(positions: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Positions after `count` more arguments; negative ones count from the end and stay."""
    several = (positions,) if isinstance(positions, int) else positions
    return tuple(p + count if p >= 0 else p for p in several)


def _holds_arrays(function: object) -> bool:
    """Whether a callable is a pytree with arrays inside, or a partial that holds abstract ones."""
    import jax

    if isinstance(function, functools.partial):
        bound = jax.tree.leaves((function.args, function.keywords))
        return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in bound)
    if inspect.ismethod(function):
        return _holds_arrays(function.__self__)
    leaves = jax.tree.leaves(function)
    return not (len(leaves) == 1 and leaves[0] is function) and any(map(_is_array, leaves))


def _is_abstract(function: object) -> bool:
    """Whether a callable is a pytree with abstract arrays inside."""
    import jax

    return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(function))


def _is_mutable(arguments: object) -> bool:
    """Whether arguments hold modules of Flax NNX, which a step changes in place."""
    import jax

    def is_node(value: object) -> bool:
        return any(c.__module__.startswith("flax.nnx") for c in type(value).__mro__)

    return any(map(is_node, jax.tree.leaves(arguments, is_leaf=is_node)))


def _array_or_none(leaf: object) -> object:
    import jax

    return leaf if isinstance(leaf, jax.Array) else None


def _is_array(leaf: object) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


# functions of arrays --------------------------------------------------------------------------


def _of_arrays(step: Step) -> Step:
    """The step as a function of the arrays in its callable and its arguments alone."""
    import jax

    owner, call, names = _owner(step.fn)
    static = {p % len(step.args) for p in _shifted(step.static_argnums, 0)} if step.args else set()
    given = (owner, tuple(step.args), dict(step.kwargs))
    paths, tree = jax.tree_util.tree_flatten_with_path(given)
    leaves = [leaf for _, leaf in paths]
    moves = [_is_array(leaf) and not _is_in(path, static) for path, leaf in paths]
    arrays = jax.tree.unflatten(
        tree, [leaf if m else None for leaf, m in zip(leaves, moves, strict=True)]
    )

    def whole(*args: Any, **kwargs: Any) -> Any:
        first, rest = (args[0], args[1:]) if has_owner else (arrays[0], args)
        values = iter(jax.tree.leaves((first, tuple(rest), kwargs)))
        full = [next(values) if m else leaf for leaf, m in zip(leaves, moves, strict=True)]
        own, inner_args, inner_kwargs = jax.tree.unflatten(tree, full)
        found = call(own)(*inner_args, **inner_kwargs)
        after = jax.tree.leaves((own, inner_args, inner_kwargs))
        before = set(map(id, full))
        changed = [new for new in after if id(new) not in before]
        return jax.tree.map(_array_or_none, (found, changed) if changed else found)

    has_owner = bool(jax.tree.leaves(arrays[0]))
    whole.__name__ = str(getattr(names, "__name__", "step"))
    whole.__wrapped__ = names  # type: ignore[attr-defined]
    whole.__signature__ = _signature(names, has_owner)  # type: ignore[attr-defined]
    bare = replace(step, static_argnums=())
    return replace(
        _with_first(bare, whole, (arrays[0],) if has_owner else (), {}),
        args=(*((arrays[0],) if has_owner else ()), *arrays[1]),
        kwargs=arrays[2],
        name=step.name or getattr(names, "__name__", "step"),
    )


def _owner(function: Any) -> tuple[Any, Callable[[Any], Any], Any]:
    """What holds the arrays of a callable, how it is called, and what has its name."""
    if inspect.ismethod(function):
        return function.__self__, lambda own: getattr(own, function.__name__), function
    if isinstance(function, functools.partial):
        inner = function.func
        bound = (tuple(function.args), dict(function.keywords))
        return bound, lambda own: functools.partial(inner, *own[0], **own[1]), inner
    return function, lambda own: own, function


def _is_in(path: Sequence[Any], static: set[int]) -> bool:
    """Whether a leaf is in a positional argument that is static."""
    return len(path) > 1 and path[0].idx == 1 and path[1].idx in static


def _signature(function: Any, has_owner: bool) -> inspect.Signature:
    """Parameters named as those of the callable, which JAX names the arrays by."""
    kind = inspect.Parameter.POSITIONAL_ONLY
    try:
        own = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        own = [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
    if not has_owner:
        return inspect.Signature(own)
    name = "model" if "model" not in {p.name for p in own} else "self"
    return inspect.Signature([inspect.Parameter(name, kind), *own])
