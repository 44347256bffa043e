"""The step around a model: gradients of one batch or of several, clipping, an optimizer."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

import flint
from benchmarks.sharing.corpus.run import Model, Run, Weight

#: A leaf's update: from gradient, parameter, state and step to the new parameter and state.
Update = Callable[[Any, Any, tuple[Any, ...], Any], tuple[Any, tuple[Any, ...]]]


def step_of(model: Model, run: Run, name: str) -> flint.Step:
    """The step of a model as the plan has it: training, or the forward pass."""
    if not run.plan.training:
        return flint.Step(
            model.forward, (_params(model, run), *_inputs(model.inputs, run)), name=name
        )
    state = tuple(jax.tree.map(of, model.weights, is_leaf=_is_weight) for of in _states(run))
    held = jax.tree.map(lambda w: run.abstract(w, jnp.float32), state, is_leaf=_is_weight)
    count = run.abstract(Weight(()), jnp.int32)
    inputs = _inputs((*model.inputs, *model.targets), run)
    step = functools.partial(_train_step, model, run)
    args = (_params(model, run), held, count, *inputs)
    return flint.Step(step, args, donate_argnums=(0, 1), name=name)


def _is_weight(leaf: Any) -> bool:
    return isinstance(leaf, Weight)


def _params(model: Model, run: Run) -> Any:
    dtype = jnp.bfloat16 if run.plan.precision == "bf16" else jnp.float32
    return jax.tree.map(lambda w: run.abstract(w, dtype), model.weights, is_leaf=_is_weight)


def _inputs(inputs: tuple[Any, ...], run: Run) -> list[Any]:
    """Inputs of the whole mesh; with microbatches these are their first dimension.

    A dictionary is one input of several arrays, for a step that does not train.
    """
    found: list[Any] = []
    for one in inputs:
        if isinstance(one, dict):
            found.append(dict(zip(one, _inputs(tuple(one.values()), run), strict=True)))
            continue
        whole = run.positions("batch") if one.names[:1] == ("batch",) else 1
        shape = (one.shape[0] * whole, *one.shape[1:]) if one.shape else ()
        if run.plan.micro > 1:
            one = replace(one, shape=(run.plan.micro, *shape), names=("", *one.names))
        else:
            one = replace(one, shape=shape)
        dtype = run.dtype if one.dtype == "float32" else one.dtype
        found.append(run.abstract(one, dtype))
    return found


def _train_step(model: Model, run: Run, params: Any, state: Any, count: Any, *inputs: Any) -> Any:
    """New parameters, optimizer's state, step and the loss."""
    loss, gradients = _gradients(model, run, params, inputs)
    if run.plan.clip:
        gradients = _clipped(gradients)
    count = count + 1
    update = functools.partial(_UPDATES[run.plan.optimizer], count=count.astype(jnp.float32))
    leaves, tree = jax.tree.flatten(params)
    flat = [jax.tree.leaves(one) for one in state]
    new = [
        update(g.astype(jnp.float32), p, tuple(held))
        for g, p, *held in zip(jax.tree.leaves(gradients), leaves, *flat, strict=True)
    ]
    params = tree.unflatten([p for p, _ in new])
    state = tuple(
        jax.tree.unflatten(jax.tree.structure(one), [held[i] for _, held in new])
        for i, one in enumerate(state)
    )
    return params, state, count, loss


def _gradients(model: Model, run: Run, params: Any, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    """Mean loss and gradients, of all microbatches one after the other."""

    def loss(params: Any, *inputs: Any) -> Any:
        if run.plan.precision == "mixed":
            params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        return model.loss(params, *inputs)

    of_one = jax.value_and_grad(loss)
    if run.plan.micro == 1:
        return of_one(params, *inputs)  # type: ignore[no-any-return]
    zero = (
        jnp.zeros((), jnp.float32),
        jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params),
    )

    def add(total: Any, batch: Any) -> Any:
        return jax.tree.map(
            lambda t, n: t + n.astype(jnp.float32), total, of_one(params, *batch)
        ), None

    total, _ = jax.lax.scan(add, zero, inputs)
    return jax.tree.map(lambda t: t / run.plan.micro, total)  # type: ignore[no-any-return]


def _clipped(gradients: Any, norm: float = 1.0) -> Any:
    """Gradients whose norm, of all together, is `norm` at most."""
    squares = [jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(gradients)]
    total = jnp.sqrt(functools.reduce(operator.add, squares))
    return jax.tree.map(lambda g: (g * jnp.minimum(1.0, norm / total)).astype(g.dtype), gradients)


def _states(run: Run) -> tuple[Callable[[Weight], Weight], ...]:
    """Of each array that the optimizer holds, what it is beside a weight."""
    whole: Callable[[Weight], Weight] = lambda w: w
    return {
        "adamw": (whole, whole),
        "adam": (whole, whole),
        "momentum": (whole,),
        "lion": (whole,),
        "adafactor": (_rows, _columns),
        "sgd": (),
    }[run.plan.optimizer]


def _rows(w: Weight) -> Weight:
    return Weight(w.shape[:-1], w.names[: len(w.shape) - 1]) if len(w.shape) > 1 else w


def _columns(w: Weight) -> Weight:
    """All but the second last dimension; a vector has no columns, and keeps nothing of use."""
    if len(w.shape) < 2:
        return Weight(())
    names = (*w.names, *[""] * (len(w.shape) - len(w.names)))
    return Weight((*w.shape[:-2], w.shape[-1]), (*names[:-2], names[-1]))


def _adam(g: Any, p: Any, held: Any, count: Any, decay: float = 0.0, rate: float = 3e-4) -> Any:
    """arXiv 1412.6980, algorithm 1; with `decay` 1711.05101, algorithm 2."""
    m, v = 0.9 * held[0] + 0.1 * g, 0.95 * held[1] + 0.05 * jnp.square(g)
    update = (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.95**count)) + 1e-8)
    if decay:
        update = update + decay * p.astype(jnp.float32)
    return (p.astype(jnp.float32) - rate * update).astype(p.dtype), (m, v)


def _momentum(g: Any, p: Any, held: Any, count: Any, rate: float = 0.1) -> Any:
    m = 0.9 * held[0] + g
    return (p.astype(jnp.float32) - rate * m).astype(p.dtype), (m,)


def _lion(g: Any, p: Any, held: Any, count: Any, rate: float = 1e-4) -> Any:
    """arXiv 2302.06675, program 1."""
    update = jnp.sign(0.9 * held[0] + 0.1 * g) + 0.1 * p.astype(jnp.float32)
    return (p.astype(jnp.float32) - rate * update).astype(p.dtype), (0.99 * held[0] + 0.01 * g,)


def _sgd(g: Any, p: Any, held: Any, count: Any, rate: float = 0.01) -> Any:
    return (p.astype(jnp.float32) - rate * g).astype(p.dtype), ()


def _adafactor(g: Any, p: Any, held: Any, count: Any, rate: float = 0.01) -> Any:
    """arXiv 1804.04235, algorithm 4 without relative step sizes: second moments of rows and columns."""
    decay = 1.0 - count**-0.8
    squares = jnp.square(g) + 1e-30
    if g.ndim < 2:
        row = decay * held[0] + (1 - decay) * squares
        update, new = g * jax.lax.rsqrt(row), (row, held[1])
    else:
        row = decay * held[0] + (1 - decay) * squares.mean(-1)
        column = decay * held[1] + (1 - decay) * squares.mean(-2)
        scale = row / row.mean(-1, keepdims=True)
        update = g * jax.lax.rsqrt(scale)[..., None] * jax.lax.rsqrt(column)[..., None, :]
        new = (row, column)
    update = update / jnp.maximum(1.0, jnp.sqrt(jnp.mean(jnp.square(update))))
    return (p.astype(jnp.float32) - rate * update).astype(p.dtype), new


_UPDATES: dict[str, Callable[..., Any]] = {
    "adamw": functools.partial(_adam, decay=0.1),
    "adam": _adam,
    "momentum": _momentum,
    "lion": _lion,
    "adafactor": _adafactor,
    "sgd": _sgd,
}
