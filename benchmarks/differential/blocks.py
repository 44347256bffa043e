"""What random programs are made of: blocks that take activations (batch, seq, hidden) and give such."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh

from benchmarks.differential.choices import Choices

I32 = jnp.int32
#: Names of dimensions, "" for one that is never divided.
Names = tuple[str, ...]


@dataclass(frozen=True)
class Argument:
    """Shape of an operand, names of its dimensions, and its type; None: that of the program."""

    shape: tuple[int, ...]
    names: Names
    dtype: Any = None


@dataclass(frozen=True)
class Sizes:
    """Sizes of a program: batch, sequence, hidden, feed-forward, heads, vocabulary, experts."""

    b: int
    n: int
    w: int
    f: int
    h: int
    v: int
    e: int
    dtype: Any
    mesh: AbstractMesh

    @property
    def d(self) -> int:
        """Of one head."""
        return self.w // self.h

    @property
    def x(self) -> Argument:
        """The activations."""
        return Argument((self.b, self.n, self.w), ("batch", "seq", "hidden"))

    @property
    def tokens(self) -> Argument:
        """A number for each token."""
        return Argument((self.b, self.n), ("batch", "seq"), I32)

    @property
    def rows(self) -> Argument:
        """A number for each sequence."""
        return Argument((self.b,), ("batch",), I32)

    @property
    def up(self) -> Argument:
        """A matrix from hidden to feed-forward."""
        return Argument((self.w, self.f), ("embed", "mlp"))

    @property
    def down(self) -> Argument:
        """A matrix from feed-forward to hidden."""
        return Argument((self.f, self.w), ("mlp", "embed"))

    @property
    def square(self) -> Argument:
        """A matrix from hidden to hidden."""
        return Argument((self.w, self.w), ("embed", "mlp"))


NUMBER = Argument((), (), I32)


@dataclass(frozen=True)
class Block:
    """`apply(x, *weights, *inputs)` gives activations of the shape of `x`; inputs have no gradient.

    `label` is its form, `detail` which numbers it has besides.
    """

    label: str
    apply: Callable[..., Any]
    weights: tuple[Argument, ...] = ()
    inputs: tuple[Argument, ...] = ()
    detail: str = ""


Family = Callable[[Choices, Sizes], Block]
#: A form of a family: what it does, its weights and its inputs.
Form = tuple[Callable[..., Any], tuple[Argument, ...], tuple[Argument, ...]]


def one_form(choices: Choices, forms: dict[str, Form], detail: str = "") -> Block:
    """One of a family's forms."""
    label = choices.one_of(list(forms))
    return Block(label, *forms[label], detail)


def normed(x: Any) -> Any:
    """Over the last dimension, in float32."""
    x32 = x.astype(jnp.float32)
    return (x32 * lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def per_row(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of each sequence of a batch."""
    return jax.vmap(function)
