"""Families of moves and of control flow: transforms, loops, conditionals, shard_map, pipelines."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.differential.blocks import NUMBER, Argument, Block, Form, Sizes, normed, one_form
from benchmarks.differential.choices import Choices


def transform(c: Choices, s: Sizes) -> Block:
    """Reshapes, transposes, slices, pads, concatenations, reversals."""
    axis = c.one_of((1, 2, 0))
    size = (s.b, s.n, s.w)[axis]
    by = c.one_of((1, size // 2, 3))
    square = Argument((4 * s.w, s.w), ("", "embed"))

    def part(x: Any, start: int, end: int, step: int = 1) -> Any:
        return lax.slice_in_dim(x, start, end, step, axis)

    def rotary(x: Any) -> Any:
        heads = x.reshape(s.b, s.n, s.h, s.d)
        one, two = jnp.split(heads, 2, -1)
        angle = (jnp.arange(s.n)[:, None] * jnp.arange(s.d // 2)).astype(x.dtype)[:, None]
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        turned = jnp.concatenate([one * cos - two * sin, one * sin + two * cos], -1)
        return turned.reshape(x.shape)

    def patches(x: Any, w: Any) -> Any:
        return jnp.repeat(x.reshape(s.b, s.n // 4, 4 * s.w) @ w, 4, 1)

    def heads_first(x: Any) -> Any:
        heads = x.reshape(s.b, s.n, s.h, s.d).transpose(0, 2, 1, 3)
        scaled = jax.nn.softmax(heads, -1) * 2
        return scaled.transpose(0, 2, 1, 3).reshape(x.shape)

    def halves(x: Any) -> Any:
        gated = part(x, 0, size // 2) * jax.nn.sigmoid(part(x, size // 2, size))
        return x + jnp.concatenate([gated, gated], axis)

    def shifted(x: Any) -> Any:
        pads = [(1, 0, 0) if d == axis else (0, 0, 0) for d in range(3)]
        return x + lax.pad(part(x, 0, size - 1), jnp.zeros((), x.dtype), pads)

    def pad_and_cut(x: Any) -> Any:
        wide = jnp.pad(x, [(by, by) if d == axis else (0, 0) for d in range(3)])
        return x + lax.slice_in_dim(jnp.tanh(wide), 2 * by, 2 * by + size, axis=axis)

    def turned(x: Any) -> Any:
        return x * 2 + jnp.swapaxes(jnp.tanh(jnp.swapaxes(x, 1, 2)).reshape(s.b, s.w, s.n), 1, 2)

    forms: dict[str, Form] = {
        "heads first": (heads_first, (), ()),
        "batch and sequence merged": (
            lambda x: x + jax.nn.softmax(x.reshape(-1, s.w), -1).reshape(x.shape), (), ()
        ),
        "sequence first": (turned, (), ()),
        "roll": (lambda x: x + jnp.roll(x, by, axis), (), ()),
        "reverse": (lambda x: x + jnp.flip(x, axis), (), ()),
        "shifted": (shifted, (), ()),
        "pad and cut": (pad_and_cut, (), ()),
        "halves": (halves, (), ()),
        "every second": (lambda x: x + jnp.repeat(part(x, 0, size, 2), 2, axis), (), ()),
        "rotary": (rotary, (), ()),
        "patches": (patches, (square,), ()),
        "concatenated with itself": (
            lambda x: x + part(jnp.tanh(jnp.concatenate([x, x * 2], axis)), by, by + size), (), ()
        ),
    }  # fmt: skip
    return one_form(c, forms, f"along {axis} by {by}")


def loop(c: Choices, s: Sizes) -> Block:
    """Recurrences along the sequence, counted loops, microbatches."""
    trips = c.one_of((2, 3, 5))
    square = s.square

    def recurrent(x: Any, a: Any, b: Any) -> Any:
        def step(h: Any, token: Any) -> tuple[Any, Any]:
            h = jnp.tanh(h @ a + token @ b)
            return h, h

        found = lax.scan(step, jnp.zeros_like(x[:, 0]), jnp.swapaxes(x, 0, 1))[1]
        return x + jnp.swapaxes(found, 0, 1)

    def gated(x: Any) -> Any:
        def step(h: Any, token: Any) -> tuple[Any, Any]:
            h = h * jax.nn.sigmoid(token) + token
            return h, h

        found = lax.scan(step, x[:, 0], jnp.swapaxes(x, 0, 1))[1]
        return jnp.swapaxes(found, 0, 1)

    def repeated(x: Any, a: Any) -> Any:
        return lax.fori_loop(0, trips, lambda _, y: jnp.tanh(y @ a), x)

    def counted(x: Any) -> Any:
        def more(state: Any) -> Any:
            return (state[0] + 1, state[1] * 0.5 + jnp.roll(state[1], 1, 1))

        return lax.while_loop(lambda state: state[0] < trips, more, (0, x))[1]

    def microbatches(x: Any, a: Any, b: Any) -> Any:
        parts = x.reshape(4, s.b // 4, s.n, s.w)
        return lax.map(lambda y: y + jax.nn.gelu(y @ a) @ b, parts).reshape(x.shape)

    def pieces(x: Any) -> Any:
        def add(i: Any, total: Any) -> Any:
            return total + lax.dynamic_slice_in_dim(x, i * (s.n // 4), s.n // 4, 1)

        return x + jnp.tile(lax.fori_loop(0, 4, add, jnp.zeros_like(x[:, : s.n // 4])), (1, 4, 1))

    forms: dict[str, Form] = {
        "matrices in a fori_loop": (repeated, (square,), ()),
        "recurrent": (recurrent, (square, square), ()),
        "gated recurrence": (gated, (), ()),
        "while": (counted, (), ()),
        "microbatches": (microbatches, (s.up, s.down), ()),
        "pieces of the sequence": (pieces, (), ()),
    }
    return one_form(c, forms, f"{trips} trips")


def conditional(c: Choices, s: Sizes) -> Block:
    """Branches that a number chooses."""

    def dense(x: Any, a: Any, i: Any) -> Any:
        return lax.cond(i > 0, lambda y: y + y @ a, lambda y: y, x)

    def rolled(x: Any, i: Any) -> Any:
        return x + lax.cond(i > 0, lambda y: jnp.flip(y, 1), jnp.tanh, x)

    def several(x: Any, a: Any, i: Any) -> Any:
        def summed(y: Any) -> Any:
            return y - y.mean(1, keepdims=True)

        return lax.switch(i, (jnp.tanh, lambda y: y @ a, summed), x)

    def every(x: Any, i: Any) -> Any:
        return jax.vmap(lambda y, j: lax.cond(j > 0, jnp.tanh, jnp.flip, y))(x, i)

    square = s.square
    forms: dict[str, Form] = {
        "cond, a product": (dense, (square,), (NUMBER,)),
        "cond, a reversal": (rolled, (), (NUMBER,)),
        "switch": (several, (square,), (NUMBER,)),
        "cond by vmap": (every, (), (s.rows,)),
    }
    return one_form(c, forms)


def manual(c: Choices, s: Sizes) -> Block:
    """shard_map over all axes of the mesh or over one."""
    names = s.mesh.axis_names
    axis = c.one_of(names)
    whole = c.chance(0.5)
    size = s.mesh.shape[axis]

    def mapped(function: Any, *specs: P, out: P | None = None) -> Any:
        over = set(names) if whole else {axis}
        return jax.shard_map(
            function, mesh=s.mesh, in_specs=specs, out_specs=out or specs[0], axis_names=over,
            check_vma=False,
        )  # fmt: skip

    def ring(x: Any) -> Any:
        def steps(y: Any) -> Any:
            total = y
            for _ in range(size - 1):
                y = lax.ppermute(y, axis, [(i, (i + 1) % size) for i in range(size)])
                total = total + jnp.tanh(y)
            return total

        return mapped(steps, P(None, axis))(x)

    def exchanged(x: Any) -> Any:
        def there_and_back(y: Any) -> Any:
            y = lax.all_to_all(y, axis, 2, 1, tiled=True)
            y = jax.nn.softmax(y, 1)
            return lax.all_to_all(y, axis, 1, 2, tiled=True)

        return mapped(there_and_back, P(None, axis))(x)

    def gathered(x: Any, a: Any) -> Any:
        def layer(y: Any, part: Any) -> Any:
            return y + jnp.tanh(y @ lax.all_gather(part, axis, tiled=True))

        return mapped(layer, P(axis), P(axis))(x, a)

    def tensor(x: Any, a: Any, b: Any) -> Any:
        def layer(y: Any, up: Any, down: Any) -> Any:
            return y + lax.psum(jax.nn.gelu(y @ up) @ down, axis)

        return mapped(layer, P(), P(None, axis), P(axis), out=P())(x, a, b)

    def sequence(x: Any, a: Any, b: Any) -> Any:
        def layer(y: Any, up: Any, down: Any) -> Any:
            tokens = lax.all_gather(normed(y), axis, axis=1, tiled=True)
            made = jax.nn.gelu(tokens @ up) @ down
            return y + lax.psum_scatter(made, axis, scatter_dimension=1, tiled=True)

        return mapped(layer, P(None, axis), P(None, axis), P(axis))(x, a, b)

    def mean(x: Any) -> Any:
        return mapped(lambda y: y - lax.pmean(y.mean(0, keepdims=True), axis), P(axis))(x)

    forms: dict[str, Form] = {
        "tensor parallel": (tensor, (s.up, s.down), ()),
        "sequence parallel": (sequence, (s.up, s.down), ()),
        "weights gathered": (gathered, (s.square,), ()),
        "ring": (ring, (), ()),
        "all_to_all": (exchanged, (), ()),
        "mean over devices": (mean, (), ()),
    }
    return one_form(c, forms, f"{'whole' if whole else 'partial'} over {axis}")


def pipeline(c: Choices, s: Sizes) -> Block:
    """Stages side by side by vmap; activations move one stage on at each turn."""
    axis = c.one_of(s.mesh.axis_names)
    stages = s.mesh.shape[axis]
    pieces = c.one_of((4, 8))
    how = c.one_of(("roll", "concatenate"))
    pinned = c.chance(0.7)
    weight = Argument((stages, s.w, s.w), (axis, "embed", "mlp"))

    def moved(state: Any, new: Any) -> Any:
        if how == "roll":
            return jnp.roll(state, 1, 0).at[0].set(new)
        return jnp.concatenate([new[None], state[:-1]], 0)

    def apply(x: Any, a: Any) -> Any:
        batches = x.reshape(pieces, s.b // pieces, s.n, s.w)

        def turn(state: Any, new: Any) -> tuple[Any, Any]:
            state = moved(state, new)
            state = jax.vmap(lambda y, w: jnp.tanh(y @ w))(state, a)
            if pinned:
                state = lax.with_sharding_constraint(state, NamedSharding(s.mesh, P(axis)))
            return state, state[-1]

        rest = jnp.concatenate([batches, jnp.zeros_like(batches[:1]).repeat(stages - 1, 0)], 0)
        state = jnp.zeros((stages, *batches.shape[1:]), x.dtype)
        return lax.scan(turn, state, rest)[1][stages - 1 :].reshape(x.shape)

    label = f"{how}{', pinned' if pinned else ''}"
    return Block(label, apply, (weight,), detail=f"over {axis}")
