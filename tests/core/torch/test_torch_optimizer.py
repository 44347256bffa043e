"""What optimizers become: state, shared updates, clipping, and which cannot be traced."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from flint.errors import FlintError
from flint.frontends.torch_graph.optimizer.update import Update, clip_gradients, optimizer_update
from flint.frontends.torch_ops.table import load_table
from tests.auto_mesh import auto_mesh

optim = torch.optim


@pytest.fixture(scope="module", autouse=True)
def table() -> None:
    load_table()


def parameters(dtype: Any = torch.bfloat16, **shapes: tuple[int, ...]) -> dict[str, Any]:
    shapes = shapes or {"w": (8, 4), "v": (4,)}
    return {
        name: torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"))
        for name, shape in shapes.items()
    }


def state_of(update: Update, name: str = "w") -> dict[str, tuple[tuple[int, ...], str]]:
    return {k: (s.shape, s.dtype.name) for k, s in update.state_specs[name].items()}


def lowered(update: Update, held: dict[str, Any]) -> str:
    arrays = {n: jax.ShapeDtypeStruct(tuple(p.shape), jnp.bfloat16) for n, p in held.items()}
    found: str = jax.jit(update.apply).lower(arrays, arrays, dict(update.state_specs)).as_text()
    return found


def refused(optimizer: Any, *words: str, held: dict[str, Any] | None = None) -> FlintError:
    with pytest.raises(FlintError) as caught:
        optimizer_update(optimizer, held or parameters())
    assert caught.value.code == "FL225"
    for word in words:
        assert word in str(caught.value)
    return caught.value


class Own(optim.Optimizer):
    """Base of users' optimizers: one hyperparameter, updates left to `update`."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            self.update(group["params"], group["lr"])

    def update(self, held: list[Any], rate: float) -> None:
        raise NotImplementedError


# what is kept ---------------------------------------------------------------------------------


def test_adamw_keeps_two_moments_in_the_type_of_the_parameter() -> None:
    update = optimizer_update("adamw", parameters())
    assert state_of(update) == {
        "exp_avg": ((8, 4), "bfloat16"),
        "exp_avg_sq": ((8, 4), "bfloat16"),
    }
    assert state_of(update, "v")["exp_avg"] == ((4,), "bfloat16")


def test_sgd_keeps_nothing_and_momentum_one_buffer() -> None:
    assert state_of(optimizer_update("sgd", parameters())) == {}
    momentum = partial(optim.SGD, lr=0.1, momentum=0.9)
    assert list(state_of(optimizer_update(momentum, parameters()))) == ["momentum_buffer"]


def test_adafactor_keeps_rows_and_columns() -> None:
    update = optimizer_update(optim.Adafactor, parameters())
    assert state_of(update) == {
        "row_var": ((8, 1), "bfloat16"),
        "col_var": ((1, 4), "bfloat16"),
    }
    assert state_of(update, "v") == {"variance": ((4,), "bfloat16")}


def test_state_of_its_own_type_and_nested() -> None:
    class Nested(Own):
        def update(self, held: list[Any], rate: float) -> None:
            for p in held:
                state = self.state[p]
                if not state:
                    state["master"] = {"copy": p.float()}
                state["master"]["copy"].sub_(p.grad.float(), alpha=rate)
                p.copy_(state["master"]["copy"])

    update = optimizer_update(Nested, parameters())
    assert state_of(update) == {"master.copy": ((8, 4), "float32")}


def test_optimizers_that_hold_some_parameters_leave_the_rest() -> None:
    held = parameters()
    held["v"].requires_grad_(False)
    update = optimizer_update("adamw", held)
    assert list(update.state_specs) == ["w"]
    arrays = {n: jnp.ones(tuple(p.shape), jnp.bfloat16) for n, p in held.items()}
    state = {"w": {k: jnp.zeros(s.shape, s.dtype) for k, s in update.state_specs["w"].items()}}
    new, new_state = update.apply(arrays, {}, state)
    assert new["v"] is arrays["v"] and new["w"] is arrays["w"]
    assert new_state == state


def test_groups_have_their_options() -> None:
    held = parameters()
    optimizer = optim.SGD([{"params": [held["w"]], "momentum": 0.9}, {"params": [held["v"]]}], 0.1)
    update = optimizer_update(optimizer, held)
    assert (list(state_of(update)), list(state_of(update, "v"))) == (["momentum_buffer"], [])


def test_a_scheduled_optimizer_is_traced_and_left_as_it_was() -> None:
    held = parameters()
    optimizer = optim.AdamW(held.values(), fused=None)
    optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)
    wrapped = optimizer.step
    before = [dict(g) for g in optimizer.param_groups]
    update = optimizer_update(optimizer, held)
    assert list(state_of(update)) == ["exp_avg", "exp_avg_sq"]
    assert optimizer.step == wrapped
    assert not optimizer.state
    assert [dict(g) for g in optimizer.param_groups] == before
    assert all(p.grad is None for p in held.values())


def test_matrices_by_one_optimizer_and_the_rest_by_another() -> None:
    def both(held: list[Any]) -> list[Any]:
        return [
            optim.Muon([p for p in held if p.ndim == 2]),
            optim.AdamW([p for p in held if p.ndim != 2]),
        ]

    update = optimizer_update(both, parameters())
    assert list(state_of(update)) == ["momentum_buffer"]
    assert list(state_of(update, "v")) == ["exp_avg", "exp_avg_sq"]


# cost -----------------------------------------------------------------------------------------


def test_elementwise_updates_are_traced_twice_and_serve_every_shape() -> None:
    held = parameters(a=(4, 2), b=(8, 2), c=(16, 2), d=(32, 2), e=(4, 2))
    steps = optimizer_update("adamw", held).steps
    assert steps["b"] is steps["c"] is steps["d"]
    assert steps["a"] is steps["e"]
    assert len(set(map(id, steps.values()))) == 2


def test_updates_that_depend_on_shapes_are_traced_for_each() -> None:
    class Scaled(Own):
        def update(self, held: list[Any], rate: float) -> None:
            for p in held:
                p.sub_(p.grad, alpha=rate / p.numel())

    held = parameters(a=(4, 2), b=(8, 2), c=(16, 2), d=(4, 2))
    steps = optimizer_update(Scaled, held).steps
    assert len({id(steps[n]) for n in "abc"}) == 3
    assert steps["a"] is steps["d"]


def test_the_program_is_the_same_every_time() -> None:
    held = parameters(a=(4, 2), b=(8, 2), c=(3,))
    texts = {lowered(optimizer_update("adamw", held), held) for _ in range(2)}
    assert len(texts) == 1


# clipping -------------------------------------------------------------------------------------


def test_clipping_needs_one_all_reduce_per_set_of_axes() -> None:
    mesh = auto_mesh((2, 4), ("data", "model"))
    specs = {
        "a": P("data"),
        "b": P("data", "model"),
        "c": P(("model", "data")),
        "d": P(),
        "e": P("data"),
    }
    arrays = {
        n: jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, s))
        for n, s in specs.items()
    }
    with jax.sharding.use_abstract_mesh(mesh):
        clip = jax.jit(lambda g: clip_gradients(g, 1.0, specs))
        text = clip.trace(arrays).lower(lowering_platforms=("cpu",)).as_text()
    assert text.count("all_reduce") == 2


def test_clipping_keeps_types() -> None:
    grads = {"a": jnp.full((2,), 3.0, jnp.bfloat16), "b": jnp.full((1,), 4.0, jnp.float32)}
    found = clip_gradients(grads, 1.0)
    assert {n: g.dtype.name for n, g in found.items()} == {"a": "bfloat16", "b": "float32"}
    assert float(jnp.abs(found["b"][0] - 4 / 34**0.5)) < 1e-5


# what cannot be traced ------------------------------------------------------------------------


def test_updates_that_read_each_other() -> None:
    class Coupled(Own):
        def update(self, held: list[Any], rate: float) -> None:
            norm = sum(p.grad.square().sum() for p in held).sqrt()
            for p in held:
                p.sub_(p.grad / norm, alpha=rate)

    refused(Coupled, "the step of Coupled cannot be traced: the update of one parameter reads")


def test_updates_of_lists_do_not_read_each_other() -> None:
    class Lists(Own):
        def update(self, held: list[Any], rate: float) -> None:
            torch._foreach_add_(held, [p.grad for p in held], alpha=-rate)

    held = parameters()
    assert "stablehlo.multiply" in lowered(optimizer_update(Lists, held), held)


def test_steps_that_read_values_name_the_line() -> None:
    class Reading(Own):
        def update(self, held: list[Any], rate: float) -> None:
            for p in held:
                if p.grad.norm().item() > 1:
                    p.sub_(p.grad, alpha=rate)

    error = refused(Reading, "it reads the value of a tensor")
    assert error.place is not None
    assert error.place.startswith("test_torch_optimizer.py:")
    assert "if p.grad.norm().item() > 1" in error.place


def test_steps_that_raise_name_the_line() -> None:
    class Broken(Own):
        def update(self, held: list[Any], rate: float) -> None:
            raise KeyError("beta")

    error = refused(Broken, "KeyError: 'beta'")
    assert error.place is not None and 'raise KeyError("beta")' in error.place


def test_steps_that_change_nothing() -> None:
    class Idle(Own):
        def update(self, held: list[Any], rate: float) -> None:
            return

    refused(Idle, "changes no parameter")


def test_steps_that_call_the_loss() -> None:
    refused(optim.LBFGS, "a closure")


def test_names_and_things_that_are_no_optimizers() -> None:
    refused("adamww", "did you mean 'adamw'?")
    refused(3, "int is not an optimizer")
    refused(lambda held: 7, "it returned int")
    refused(optim.Muon, "making it raised ValueError")
    other = optim.SGD(parameters().values(), lr=0.1)
    refused(other, "SGD cannot be traced: it holds no parameter of the module")


def test_operators_that_are_not_known_name_the_optimizer() -> None:
    class Airy(Own):
        def update(self, held: list[Any], rate: float) -> None:
            for p in held:
                p.sub_(torch.special.airy_ai(p.grad), alpha=rate)

    with pytest.raises(FlintError, match=r"aten::special_airy_ai in airy") as caught:
        optimizer_update(Airy, parameters(torch.float32))
    assert caught.value.code == "FL220"
