"""Numbers that are followed through traced functions are those that JAX calculates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from flint.frontends.jax_world.values.follow import Follower
from flint.frontends.jax_world.values.known import Known, known_host_value

I = np.array([3, -2, 0, 7], np.int32)
F = np.array([[0.5, -1.25], [2.0, 3.5]], np.float32)
B = np.array([True, False])

#: Functions of I, F and B that programs on the host ask for, with all primitives that are followed.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "counter": lambda i, f, b: i + 1 - 2 * i,
    "division": lambda i, f, b: (
        i // 2,
        i % 3,
        jax.lax.div(i, jnp.int32(2)),
        jax.lax.rem(i, jnp.int32(3)),
    ),
    "powers": lambda i, f, b: (f**2, jnp.power(2.0, f), jnp.sqrt(jnp.abs(f)), jax.lax.rsqrt(f * f)),
    "schedule": lambda i, f, b: (
        1e-3 * jnp.minimum(1.0, i / 5) * 0.5 * (1 + jnp.cos(jnp.pi * i / 7))
    ),
    "exponential": lambda i, f, b: (jnp.exp(f), jnp.expm1(f), jnp.log1p(f * f), jnp.log(f * f)),
    "waves": lambda i, f, b: (jnp.sin(f), jnp.tan(f), jnp.tanh(f), jax.nn.sigmoid(f)),
    "rounding": lambda i, f, b: (jnp.floor(f), jnp.ceil(f), jnp.sign(f), f.astype(jnp.int32)),
    "choices": lambda i, f, b: (jnp.where(i > 0, i, -i), jnp.clip(f, -1, 1), jnp.maximum(i, 1)),
    "tests": lambda i, f, b: (
        i == 3,
        i != 3,
        i <= 0,
        i >= 0,
        i < 0,
        ~b,
        b & True,
        b | True,
        b ^ True,
    ),
    "bits": lambda i, f, b: (i & 3, i | 4, i ^ 1, ~i, i << 2, i >> 1),
    "logical": lambda i, f, b: [jax.lax.shift_right_logical(i, jnp.int32(n)) for n in (1, 31, 32)],
    "finite": lambda i, f, b: (jnp.isfinite(f / 0), jnp.isnan(f / f), jnp.isinf(f / 0)),
    "sums": lambda i, f, b: (i.sum(), f.sum(axis=1), i.prod(), f.max(), i.min(0), b.all(), b.any()),
    "sums of one number": lambda i, f, b: (
        jnp.full((4,), i[0]).sum(),
        jnp.full((2, 3), 2).prod(axis=1),
        jnp.full((4,), f[0, 1]).max(),
    ),
    "means": lambda i, f, b: (f.mean(), f.mean(axis=0)),
    "shapes": lambda i, f, b: (f.T, f.reshape(4), f[None], jnp.squeeze(f[:1]), i[::-1], i[1:3]),
    "pieces": lambda i, f, b: (
        i[2],
        i[-1],
        jnp.concatenate([i, i]),
        jnp.stack([i, i], 1),
        i[i[3] - 5],
    ),
    "made": lambda i, f, b: (jnp.arange(5), jnp.zeros((2, 3)), jnp.linspace(0, 1, 5), jnp.eye(2)),
    "types": lambda i, f, b: (
        i.astype(jnp.bfloat16) * 3,
        f.astype(jnp.float16),
        b.astype(jnp.int8),
    ),
    "branch": lambda i, f, b: jax.lax.cond(i[0] > 2, lambda: f + 1, lambda: f - 1),
    "gradient": lambda i, f, b: jax.grad(lambda f: jnp.sum(jnp.square(f)))(f),
}


def followed(function: Callable[..., Any], *given: Any) -> list[Known | None]:
    """What is known of the results of a function of host values."""
    traced = jax.make_jaxpr(function)(*given)
    return Follower(known_host_value).results(traced, [known_host_value(g) for g in given])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_are_those_of_jax(name: str) -> None:
    found = followed(FUNCTIONS[name], I, F, B)
    expected = jax.tree.leaves(FUNCTIONS[name](*map(jnp.asarray, (I, F, B))))
    assert len(found) == len(expected)
    for known, value in zip(found, expected, strict=True):
        assert known is not None, f"{name} is not followed"
        assert (known.data.dtype, known.data.shape) == (value.dtype, value.shape)
        assert not known.made_up
        np.testing.assert_allclose(
            known.data.astype(np.float64), np.asarray(value).astype(np.float64), rtol=2e-6
        )


def test_what_is_not_known_is_not_guessed() -> None:
    def function(step: Any, data: Any) -> Any:
        return step + 1, data + 1, jnp.where(data > 0, step, 0), step * data, data.sum()

    traced = jax.make_jaxpr(function)(I[0], F)
    one, *others = Follower(known_host_value).results(traced, [known_host_value(I[0]), None])
    assert one is not None
    assert int(one.data) == 4
    assert others == [None] * 4


def test_numbers_of_unknown_arrays_are_finite_and_said_to_be_made_up() -> None:
    def function(data: Any) -> Any:
        return jnp.isfinite(data).all(), jnp.isnan(data).any(), jnp.where(jnp.isnan(data), 0, data)

    traced = jax.make_jaxpr(function)(F)
    finite, nan, kept = Follower(known_host_value).results(traced, [None])
    assert finite is not None
    assert nan is not None
    assert (bool(finite.data), finite.made_up, bool(nan.data), nan.made_up) == (
        True,
        True,
        False,
        True,
    )
    assert kept is None


def test_uniform_arrays_are_followed_at_any_size_without_memory() -> None:
    def function() -> Any:
        zeros = jnp.zeros((1 << 20, 1 << 10))
        return zeros, (zeros + 1).astype(jnp.bfloat16).T, (zeros == 0).all(), zeros[5, 3]

    found = followed(function)
    assert all(known is not None and known.is_uniform for known in found)
    assert [float(known.element) for known in found if known is not None] == [0, 1, 1, 0]


def test_a_counter_in_a_loop_body_is_not_taken_for_its_result() -> None:
    """A scan's results are not those of one run of its body."""

    def function(step: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, s: s + 1, step)

    assert followed(function, I[0]) == [None]
