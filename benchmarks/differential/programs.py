"""Random programs of one operation that looks up, writes, searches or accumulates along dimensions.

A seed gives a program: a family, sizes, a mesh of one or two axes, and shardings of the operands and
perhaps of the result. What the operation reads is computed, and so is what reads its results: an
operation that is a whole program is partitioned unlike one inside of a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

MESHES = ({"x": 8}, {"x": 2, "y": 4})
BATCHES, LENGTHS, WIDTHS = (16, 32), (32, 64), (64, 128)
Shape = tuple[int, ...]
Operation = Callable[..., Any]


@dataclass(frozen=True)
class Argument:
    """Shape and type of one operand, and whether values are computed from it."""

    shape: Shape
    dtype: Any = jnp.float32

    @property
    def is_data(self) -> bool:
        """Whether these are numbers, not positions."""
        return bool(jnp.issubdtype(self.dtype, jnp.floating))


@dataclass(frozen=True)
class Program:
    """One generated program: call `function` with `arguments` on `mesh`."""

    name: str
    sizes: dict[str, int]
    function: Operation
    arguments: tuple[Any, ...]
    out: Any


def program(seed: int, family: str | None = None) -> Program:
    """The program of a seed, of any family or of the one called so. Raises KeyError for another."""
    random = Random(seed)
    sizes = random.choice(MESHES)
    name = family or random.choice(sorted(FAMILIES))
    label, operation, arguments = FAMILIES[name](random)
    axes = (AxisType.Auto,) * len(sizes)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=axes)
    specs = _specs(random, arguments, sizes)
    shaped = tuple(
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, spec))
        for a, spec in zip(arguments, specs, strict=True)
    )
    surrounded = _inside(operation, arguments)
    out = _result_sharding(random, surrounded, shaped, mesh, sizes)
    shown = " ".join(str(tuple(s)) for s in specs)
    return Program(
        f"{name}: {label} {shown} -> {out and tuple(out.spec)}", sizes, surrounded, shaped, out
    )


def _inside(operation: Operation, arguments: tuple[Argument, ...]) -> Operation:
    """The operation between others, as in a model."""

    def function(*given: Any) -> Any:
        values = [jnp.tanh(v) if a.is_data else v for v, a in zip(given, arguments, strict=True)]
        return jax.tree.map(lambda r: r * 2, operation(*values))

    return function


def _specs(random: Random, arguments: tuple[Argument, ...], sizes: dict[str, int]) -> list[P]:
    """A sharding for each operand; every axis is used, as of others Flint assumes nothing."""
    while True:
        specs = [_spec(random, a, sizes) for a in arguments]
        if all(axis in str(specs) for axis in sizes):
            return specs


def _spec(random: Random, argument: Argument, sizes: dict[str, int]) -> P:
    """Every axis on a dimension that it divides, or on none; positions are usually whole."""
    dims: list[list[str]] = [[] for _ in argument.shape]
    left = list(argument.shape)
    for axis in random.sample(list(sizes), len(sizes)):
        fits = [d for d, size in enumerate(left) if size % sizes[axis] == 0]
        if fits and random.random() < (0.8 if argument.is_data else 0.3):
            chosen = random.choice(fits)
            dims[chosen].append(axis)
            left[chosen] //= sizes[axis]
    return P(*(tuple(d) if len(d) > 1 else d[0] if d else None for d in dims))


def _result_sharding(
    random: Random, function: Operation, shaped: tuple[Any, ...], mesh: Any, sizes: dict[str, int]
) -> Any:
    """None, or a sharding of the one result: that of the first operand if it is as large."""
    made = jax.eval_shape(function, *shaped)
    if not hasattr(made, "shape") or random.random() < 0.3:
        return None
    if made.shape == shaped[0].shape and random.random() < 0.7:
        return shaped[0].sharding
    return NamedSharding(mesh, _spec(random, Argument(made.shape), sizes))


# families: label, operation and operands ----------------------------------------------------------

Family = Callable[[Random], tuple[str, Operation, tuple[Argument, ...]]]


def _table(random: Random) -> tuple[int, int, int]:
    return random.choice(BATCHES), random.choice(LENGTHS), random.choice(WIDTHS)


def iota_lookup(random: Random) -> tuple[str, Operation, tuple[Argument, ...]]:
    """A row of each batch, by an iota, by vmap or by take_along_axis."""
    b, n, w = _table(random)
    forms: dict[str, Operation] = {
        "h[arange, i]": lambda h, i: h[jnp.arange(b), i],
        "h[i, arange]": lambda h, i: jnp.swapaxes(h, 0, 1)[i, jnp.arange(b)],
        "h[arange[:, None], i]": lambda h, i: h[jnp.arange(b)[:, None], i[:, None]],
        "vmap": lambda h, i: jax.vmap(lambda row, at: row[at])(h, i),
        "take_along_axis": lambda h, i: jnp.take_along_axis(h, i[:, None, None], 1)[:, 0],
        "in a loop": lambda h, i: lax.fori_loop(
            0, 3, lambda k, s: s + h[jnp.arange(b), jnp.minimum(i + k, n - 1)], jnp.zeros((b, w))
        ),
    }
    label = random.choice(sorted(forms))
    return label, forms[label], (Argument((b, n, w)), Argument((b,), jnp.int32))


def iota_write(random: Random) -> tuple[str, Operation, tuple[Argument, ...]]:
    """A row of each batch written or added to."""
    b, n, w = _table(random)
    forms: dict[str, Operation] = {
        "set": lambda h, i, u: h.at[jnp.arange(b), i].set(u),
        "add": lambda h, i, u: h.at[jnp.arange(b), i].add(u),
        "vmap set": lambda h, i, u: jax.vmap(lambda row, at, v: row.at[at].set(v))(h, i, u),
        "vmap dynamic_update_slice": lambda h, i, u: jax.vmap(
            lambda row, at, v: lax.dynamic_update_slice(row, v[None], (at, 0))
        )(h, i, u),
    }
    label = random.choice(sorted(forms))
    arguments = (Argument((b, n, w)), Argument((b,), jnp.int32), Argument((b, w)))
    return label, forms[label], arguments


def update(random: Random) -> tuple[str, Operation, tuple[Argument, ...]]:
    """A range of rows or columns written, at a place that is known or not."""
    b, n, _ = _table(random)
    size = random.choice((1, 2, 3, 8, n // 2))
    start = random.choice((0, 1, 5, n - size))
    end = start + size
    forms: dict[str, tuple[Operation, Shape]] = {
        f"at[{start}:{end}].set": (lambda x, u, i: x.at[start:end].set(u), (size, b)),
        f"at[{start}:{end}].add": (lambda x, u, i: x.at[start:end].add(u), (size, b)),
        f"dynamic_update_slice {size}": (
            lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)),
            (size, b),
        ),
        f"at[{start}].set": (lambda x, u, i: x.at[start].set(u), (b,)),
        "at[i].set": (lambda x, u, i: x.at[i].set(u), (b,)),
        f"at[:, {b // 2}].set": (lambda x, u, i: x.at[:, b // 2].set(u), (n,)),
        f"dynamic_slice {size}": (
            lambda x, u, i: lax.dynamic_slice(x, (i, 0), (size, b)) + u,
            (size, b),
        ),
        "x[i]": (lambda x, u, i: x[i] + u, (b,)),
    }
    label = random.choice(sorted(forms))
    operation, shape = forms[label]
    return label, operation, (Argument((n, b)), Argument(shape), Argument((), jnp.int32))


def search(random: Random) -> tuple[str, Operation, tuple[Argument, ...]]:
    """Sorted, or the largest few."""
    b, n, w = _table(random)
    shape = random.choice(((n * w,), (b, w), (b, n, w)))
    axis = random.randrange(len(shape))
    k = random.choice((1, 2, 8))

    def moved(x: Any) -> Any:
        return jnp.moveaxis(x, axis, -1)

    forms: dict[str, Operation] = {
        f"top_k {k}": lambda x: lax.top_k(moved(x), k),
        f"top_k {k} values": lambda x: lax.top_k(moved(x), k)[0],
        f"top_k {k} positions": lambda x: lax.top_k(moved(x), k)[1],
        f"sort {axis}": lambda x: jnp.sort(x, axis),
        f"argsort {axis}": lambda x: jnp.argsort(x, axis),
        f"argmax {axis}": lambda x: jnp.argmax(x, axis),
    }
    label = random.choice(sorted(forms))
    return f"{label} of {shape}, {axis}", forms[label], (Argument(shape),)


def cumulative(random: Random) -> tuple[str, Operation, tuple[Argument, ...]]:
    """Running sums, products, maxima."""
    b, n, w = _table(random)
    shape = random.choice(((n,), (b, w), (b, n, w)))
    axis = random.randrange(len(shape))
    forms: dict[str, Operation] = {
        "cumsum": lambda x: jnp.cumsum(x, axis),
        "cumsum from the end": lambda x: lax.cumsum(x, axis, reverse=True),
        "cummax": lambda x: lax.cummax(x, axis),
        "cumprod": lambda x: jnp.cumprod(x, axis),
        "cumlogsumexp": lambda x: lax.cumlogsumexp(x, axis),
    }
    label = random.choice(sorted(forms))
    return f"{label} {axis} of {shape}", forms[label], (Argument(shape),)


FAMILIES: dict[str, Family] = {
    f.__name__: f for f in (iota_lookup, iota_write, update, search, cumulative)
}
