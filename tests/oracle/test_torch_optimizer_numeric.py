"""Optimizers in JAX against PyTorch's own: parameters and state after each of three steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from flint.frontends.torch_graph.optimizer.update import clip_gradients, optimizer_update
from flint.frontends.torch_ops.table import load_table
from tests.long import long_but

SHAPES = {"w": (6, 8), "v": (8,)}
MATRICES = {"w": (6, 8), "tall": (12, 4)}
THREE = {**MATRICES, "v": (8,)}
optim = torch.optim


class Lion(optim.Optimizer):
    """A user's own optimizer: in-place operations on `.data`, a counter in Python."""

    def __init__(self, params: Any, lr: float = 1e-2, beta: float = 0.9, decay: float = 0.1):
        super().__init__(params, {"lr": lr, "beta": beta, "decay": decay})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["count"], state["average"] = 0, torch.zeros_like(p.data)
                state["count"] += 1
                mixed = state["average"] * group["beta"] + p.grad.data * (1 - group["beta"])
                p.data.mul_(1 - group["lr"] * group["decay"])
                p.data.add_(mixed.sign_(), alpha=-group["lr"] / state["count"])
                state["average"].mul_(0.99).add_(p.grad.data, alpha=0.01)


CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "sgd": (optim.SGD, {"lr": 0.1}, SHAPES),
    "sgd_momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, SHAPES),
    "sgd_nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, SHAPES),
    "adam": (optim.Adam, {"lr": 0.01, "foreach": True}, SHAPES),
    "adamw": (optim.AdamW, {"lr": 0.01}, SHAPES),
    "adamw_amsgrad": (optim.AdamW, {"lr": 0.01, "amsgrad": True, "maximize": True}, SHAPES),
    "adamw_tensor_rate": (optim.AdamW, {"lr": torch.tensor(0.01)}, SHAPES),
    "rmsprop": (optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}, SHAPES),
    "adagrad": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}, SHAPES),
    "adadelta": (optim.Adadelta, {"lr": 0.5}, SHAPES),
    "adamax": (optim.Adamax, {"lr": 0.01}, SHAPES),
    "nadam": (optim.NAdam, {"lr": 0.01}, SHAPES),
    "radam": (optim.RAdam, {"lr": 0.01}, SHAPES),
    "rprop": (optim.Rprop, {"lr": 0.01}, SHAPES),
    "adafactor": (optim.Adafactor, {"lr": 0.1, "weight_decay": 0.01}, SHAPES),
    "muon": (optim.Muon, {"lr": 0.02}, MATRICES),
    "lion": (Lion, {}, SHAPES),
}
#: Muon computes in bfloat16, where JAX and PyTorch round differently in matrix products.
TOLERANCE = {"muon": 2e-2}


def parameters(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {n: torch.nn.Parameter(torch.randn(s, generator=generator)) for n, s in shapes.items()}


def gradients(shapes: dict[str, tuple[int, ...]], step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(100 + step)
    return {n: torch.randn(s, generator=generator) for n, s in shapes.items()}


def step_of(optimizer: Any, held: dict[str, Any], grads: dict[str, Any]) -> None:
    for name, parameter in held.items():
        parameter.grad = grads[name].clone()
    optimizer.step()


def state_of(optimizer: Any, held: dict[str, Any], keys: Any) -> dict[str, dict[str, Any]]:
    return {n: {k: optimizer.state[held[n]][k].numpy().copy() for k in keys[n]} for n in held}


def values(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: t.detach().numpy().copy() for name, t in tensors.items()}


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Operators one by one: each is compiled once for all optimizers, and not every update."""
    load_table()
    with jax.disable_jit():
        yield


@pytest.mark.parametrize("case", long_but(("adamw", "sgd_momentum", "muon"), CASES))
def test_steps_equal_pytorchs(case: str) -> None:
    make, options, shapes = CASES[case]
    held = parameters(shapes)
    optimizer = make(held.values(), **options)
    step_of(optimizer, held, gradients(shapes, 0))
    limit = TOLERANCE.get(case, 2e-6)
    for number in (1, 2, 3):
        grads = gradients(shapes, number)
        update = optimizer_update(optimizer, held)  # counters are constants of this step
        kept = state_of(optimizer, held, update.state_specs)
        new, state = update.apply(values(held), values(grads), kept)
        step_of(optimizer, held, grads)
        expected = state_of(optimizer, held, update.state_specs)
        for name, value in values(held).items():
            np.testing.assert_allclose(new[name], value, rtol=limit, atol=limit)
            for key, kept_value in expected[name].items():
                np.testing.assert_allclose(state[name][key], kept_value, rtol=limit, atol=limit)


def test_a_traced_first_step_is_pytorchs_second() -> None:
    held = parameters(SHAPES)
    fresh = optim.AdamW(held.values(), lr=0.01)
    update = optimizer_update(fresh, held)
    step_of(fresh, held, gradients(SHAPES, 0))
    before, kept = values(held), state_of(fresh, held, update.state_specs)
    new, _ = update.apply(before, values(gradients(SHAPES, 1)), kept)
    step_of(fresh, held, gradients(SHAPES, 1))
    for name, value in values(held).items():
        np.testing.assert_allclose(new[name], value, rtol=2e-6, atol=2e-6)


@pytest.mark.long
def test_groups_and_several_optimizers_keep_their_options() -> None:
    held = parameters(THREE)
    groups = [
        {"params": [held["w"]], "weight_decay": 0.5},
        {"params": [held["v"]], "lr": 0.5, "weight_decay": 0.0},
    ]
    both = [optim.AdamW(groups, lr=0.01), optim.SGD([held["tall"]], lr=0.1, momentum=0.9)]
    for one in both:
        assert optimizer_update(one, held).state_specs.keys() < held.keys()
    for number in (0, 1):
        grads = gradients(THREE, number)
        update = optimizer_update(both, held)
        before = values(held)
        for name, parameter in held.items():
            parameter.grad = grads[name].clone()
        states = {n: s for one in both for n, p in held.items() if (s := one.state.get(p))}
        kept = {n: {k: states[n][k].numpy().copy() for k in update.state_specs[n]} for n in states}
        for one in both:
            one.step()
    new, _ = update.apply(before, values(grads), kept)
    for name, value in values(held).items():
        np.testing.assert_allclose(new[name], value, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_equals_pytorchs(max_norm: float) -> None:
    held, grads = parameters(SHAPES), gradients(SHAPES, 0)
    for name, parameter in held.items():
        parameter.grad = grads[name].clone()
    torch.nn.utils.clip_grad_norm_(held.values(), max_norm)
    found = clip_gradients(values(grads), max_norm)
    for name, parameter in held.items():
        np.testing.assert_allclose(found[name], parameter.grad.numpy(), rtol=1e-6)
