"""What a model asks for while it is traced: where dimensions lie on the mesh, which precision, what is recomputed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.sharing.corpus.plan import Plan, Role

#: Names of dimensions, and the roles of axes that they are sharded over. "embed" is of weights only:
#: that of activations is whole. "residual" is the length between blocks, "rows" that of tables.
ROLES: dict[str, tuple[Role, ...]] = {
    "batch": ("data", "shard", "expert"),
    "groups": ("data", "shard"),
    "embed": ("shard",),
    "heads": ("tensor",),
    "ffn": ("tensor",),
    "vocab": ("tensor",),
    "rows": ("tensor",),
    "experts": ("expert",),
    "length": ("sequence",),
    "residual": ("sequence",),
}


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter: its shape and what its dimensions are (names of `ROLES`, others are whole)."""

    shape: tuple[int, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Input:
    """An argument that is no parameter. A leading "batch" is multiplied by the positions that share the batch."""

    shape: tuple[int, ...]
    names: tuple[str, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Model:
    """`forward(params, *inputs)`, and `loss(params, *inputs, *targets)` for training.

    Inputs are `Input`s; of models that only serve also dictionaries of them.
    """

    forward: Callable[..., Any]
    loss: Callable[..., Any]
    weights: Any
    inputs: tuple[Any, ...]
    targets: tuple[Input, ...] = ()


#: What the backward pass keeps. What a constraint lays out is not kept but laid out again.
POLICIES: dict[str, Callable[..., Any]] = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class Run:
    """A plan on a mesh, as models see it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        sizes, names = zip(*((axis.size, axis.name) for axis in plan.axes), strict=True)
        self.mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))

    def axes(self, name: str) -> tuple[str, ...]:
        """Names of the axes that a dimension is sharded over."""
        roles = ROLES.get(name, ())
        if name == "residual" and "sp" in self.plan.style.split("+"):
            roles = (*roles, "tensor")
        return tuple(axis.name for axis in self.plan.axes if axis.role in roles)

    def positions(self, name: str) -> int:
        """How many parts a dimension of that name has."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes(name))

    def spec(self, shape: Sequence[int], names: Sequence[str]) -> P:
        """Axes of each dimension, as far as they divide it and none is taken twice."""
        taken: set[str] = set()
        found: list[tuple[str, ...] | None] = []
        for size, name in zip(shape, names, strict=False):
            axes = tuple(axis for axis in self.axes(name) if axis not in taken)
            while axes and size % math.prod(self.mesh.shape[axis] for axis in axes):
                axes = axes[:-1]
            taken.update(axes)
            found.append(axes or None)
        return P(*found)

    def pin(self, x: Any, *names: str) -> Any:
        """Lay an array out by the names of its dimensions; those that are left out are whole."""
        sharding = NamedSharding(self.mesh, self.spec(x.shape, names))
        return jax.lax.with_sharding_constraint(x, sharding)

    def gathered(self, weight: Any, *names: str) -> Any:
        """A weight without the axes that it is only kept over."""
        kept = tuple("" if name == "embed" else name for name in names)
        return self.pin(weight, *kept)

    def abstract(self, weight: Weight | Input, dtype: Any) -> jax.ShapeDtypeStruct:
        """The array of a weight or input, with its sharding."""
        spec = self.spec(weight.shape, weight.names)
        return jax.ShapeDtypeStruct(weight.shape, dtype, sharding=NamedSharding(self.mesh, spec))

    def recomputed(self, block: Callable[..., Any]) -> Callable[..., Any]:
        """The block, or one whose parts the backward pass computes again."""
        if self.plan.remat == "none":
            return block
        again: Callable[..., Any] = jax.checkpoint(block, policy=POLICIES[self.plan.remat])
        return again

    def layers(self, block: Callable[..., Any], x: Any, weights: Any) -> Any:
        """`x = block(x, w)` for each layer's weights: stacked ones in a loop, a list written out."""
        one = self.recomputed(block)
        if isinstance(weights, list):
            return functools.reduce(one, weights, x)
        return jax.lax.scan(lambda y, w: (one(y, w), None), x, weights)[0]

    def stack(self, count: int, one: Any) -> Any:
        """The weights of `count` layers: stacked for a loop; at most four may be written out."""
        if not self.plan.scan and count <= 4:
            return [one] * count
        return jax.tree.map(
            lambda w: Weight((count, *w.shape), ("", *w.names)),
            one,
            is_leaf=lambda w: isinstance(w, Weight),
        )

    @property
    def dtype(self) -> Any:
        """Of activations and of the weights that are multiplied."""
        return jnp.float32 if self.plan.precision == "f32" else jnp.bfloat16
