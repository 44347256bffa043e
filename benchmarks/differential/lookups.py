"""Families that look up, write, search or accumulate along dimensions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.differential.blocks import NUMBER, Argument, Block, Form, Sizes, one_form, per_row
from benchmarks.differential.choices import Choices


def lookup(c: Choices, s: Sizes) -> Block:
    """Rows of tables and of activations, by tokens, by an iota, by vmap."""

    def at() -> Any:
        return jnp.arange(s.b)

    table = Argument((s.v, s.w), ("vocab", "embed"))
    square = Argument((s.n, s.n, s.w), ("", "", "embed"))
    few = Argument((s.b, s.n, 8), ("batch", "seq", ""), jnp.int32)
    forms: dict[str, Form] = {
        "table[tokens]": (lambda x, t, i: x + t[i], (table,), (s.tokens,)),
        "take(table, tokens)": (lambda x, t, i: x + jnp.take(t, i, 0), (table,), (s.tokens,)),
        "one_hot @ table": (
            lambda x, t, i: x + jax.nn.one_hot(i, s.v, dtype=x.dtype) @ t, (table,), (s.tokens,)
        ),
        "h[arange, i]": (lambda x, i: x + x[at(), i][:, None], (), (s.rows,)),
        "h[arange[:, None], tokens]": (lambda x, i: x + x[at()[:, None], i], (), (s.tokens,)),
        "swapped[i, arange]": (
            lambda x, i: x + jnp.swapaxes(x, 0, 1)[i, at()][:, None], (), (s.rows,)
        ),
        "take_along_axis 1": (
            lambda x, i: x + jnp.take_along_axis(x, i[..., None], 1), (), (s.tokens,)
        ),
        "take_along_axis 2": (
            lambda x, i: x + jnp.take_along_axis(x, i, 2).mean(-1, keepdims=True), (), (few,)
        ),
        "vmap row[i]": (lambda x, i: x + per_row(lambda r, k: r[k])(x, i)[:, None], (), (s.rows,)),
        "vmap row[tokens]": (lambda x, i: x + per_row(lambda r, k: r[k])(x, i), (), (s.tokens,)),
        "vmap dynamic_slice": (
            lambda x, i: x
            + per_row(lambda r, k: lax.dynamic_slice_in_dim(r, k, 1, 0))(x, i),
            (), (s.rows,),
        ),
        "table[arange]": (
            lambda x, t: x + t[jnp.arange(s.n)], (Argument((s.v, s.w), ("", "embed")),), ()
        ),
        "table[i, j]": (lambda x, t, i, j: x + t[i, j], (square,), (s.tokens, s.tokens)),
        "h[:, i]": (lambda x, i: x + x[:, i], (), (Argument((s.n,), ("",), jnp.int32),)),
        "in a loop": (
            lambda x, i: x + lax.fori_loop(
                0, 3, lambda k, a: a + x[at(), jnp.minimum(i + k, s.n - 1)], jnp.zeros_like(x[:, 0])
            )[:, None], (), (s.rows,),
        ),
    }  # fmt: skip
    return one_form(c, forms)


def write(c: Choices, s: Sizes) -> Block:
    """Rows of activations written or added to, sums over segments, histograms."""

    def at() -> Any:
        return jnp.arange(s.b)

    many = Argument((s.b, 8), ("batch", ""), jnp.int32)
    some = Argument((8,), ("",), jnp.int32)

    def put(x: Any, i: Any) -> Any:
        return per_row(lambda r, k, u: lax.dynamic_update_slice(r, u[None], (k, 0)))(x, i, x[:, 0])

    def segments(x: Any, i: Any) -> Any:
        flat = jax.ops.segment_sum(x.reshape(-1, s.w), i.reshape(-1), s.v)
        return x + flat[i]

    def counts(x: Any, i: Any) -> Any:
        found = jnp.zeros((s.v,), jnp.float32).at[i].add(1.0)
        return x * found[i][..., None].astype(x.dtype)

    forms: dict[str, Form] = {
        "h.at[arange, i].set": (lambda x, i: x.at[at(), i].set(x[:, 0]), (), (s.rows,)),
        "h.at[arange, i].add": (lambda x, i: x.at[at(), i].add(x[:, 0]), (), (s.rows,)),
        "h.at[arange[:, None], i].add": (
            lambda x, i: x.at[at()[:, None], i].add(x[:, :8]), (), (many,)
        ),
        "vmap set": (
            lambda x, i: per_row(lambda r, k, u: r.at[k].set(u))(x, i, x[:, 0]), (), (s.rows,)
        ),
        "vmap max": (
            lambda x, i: per_row(lambda r, k, u: r.at[k].max(u))(x, i, x[:, :8]), (), (many,)
        ),
        "vmap dynamic_update_slice": (put, (), (s.rows,)),
        "h.at[:, i].set": (lambda x, i: x.at[:, i].set(x[:, :8]), (), (some,)),
        "h.at[:, i].add": (lambda x, i: x.at[:, i].add(x[:, :8]), (), (some,)),
        "h.at[..., i].add": (lambda x, i: x.at[..., i].add(x[..., :8]), (), (some,)),
        "segment_sum": (segments, (), (s.tokens,)),
        "histogram": (counts, (), (s.tokens,)),
    }  # fmt: skip
    return one_form(c, forms)


def update(c: Choices, s: Sizes) -> Block:
    """A range written or read, at a place that is known or not."""
    axis = c.one_of((1, 0, 2))
    whole = (s.b, s.n, s.w)[axis]
    size = c.one_of((1, 2, 3, 8, whole // 2))
    start = c.one_of((0, 1, 5, whole - size))
    here = (slice(None),) * axis + (slice(start, start + size),)
    first = (slice(None),) * axis

    def part(x: Any) -> Any:
        return jnp.tanh(lax.slice_in_dim(x, 0, size, axis=axis))

    def put(x: Any, i: Any) -> Any:
        return lax.dynamic_update_slice_in_dim(x, part(x), i, axis)

    def one(x: Any) -> Any:
        return jnp.tanh(lax.index_in_dim(x, 0, axis, keepdims=False))

    forms: dict[str, Form] = {
        "set": (lambda x: x.at[here].set(part(x)), (), ()),
        "add": (lambda x: x.at[here].add(part(x)), (), ()),
        "multiply": (lambda x: x.at[here].multiply(0.5), (), ()),
        "dynamic_update_slice": (put, (), (NUMBER,)),
        "at[i].set": (lambda x, i: x.at[(*first, i)].set(one(x)), (), (NUMBER,)),
        "at[i].add": (lambda x, i: x.at[(*first, i)].add(one(x)), (), (NUMBER,)),
        "dynamic_slice": (
            lambda x, i: x + lax.dynamic_slice_in_dim(x, i, size, axis).mean(axis, keepdims=True),
            (), (NUMBER,),
        ),
        "h[i]": (lambda x, i: x + jnp.expand_dims(x[(*first, i)], axis), (), (NUMBER,)),
    }  # fmt: skip
    return one_form(c, forms, f"{start}:{start + size} of dimension {axis}")


def cache(c: Choices, s: Sizes) -> Block:
    """A step of decoding: keys and values written into a cache, one query attends."""
    kept = Argument((s.b, s.n, s.h, s.d), ("batch", "cache", "heads", ""), s.dtype)
    q = Argument((s.w, s.h, s.d), ("embed", "heads", ""))
    out = Argument((s.h, s.d, s.w), ("heads", "", "embed"))
    each = c.chance(0.4)
    where = c.one_of(("dynamic_update_slice", "at.set", "where"))

    def put(kept: Any, new: Any, i: Any) -> Any:
        if where == "where":
            at = jnp.arange(s.n)[None] == (i[:, None] if each else i)
            return jnp.where(at[..., None, None], new, kept)
        if not each:
            if where == "at.set":
                return kept.at[:, i].set(new[:, 0])
            return lax.dynamic_update_slice(kept, new, (0, i, 0, 0))
        if where == "at.set":
            return kept.at[jnp.arange(s.b), i].set(new[:, 0])
        return per_row(lambda r, u, k: lax.dynamic_update_slice(r, u, (k, 0, 0)))(kept, new, i)

    def apply(x: Any, wq: Any, wk: Any, wo: Any, keys: Any, values: Any, i: Any) -> Any:
        token = x[:, :1]
        keys = put(keys, jnp.einsum("bnw,whd->bnhd", token, wk), i)
        values = put(values, jnp.einsum("bnw,whd->bnhd", token, wk), i)
        scores = jnp.einsum("bqhd,bkhd->bhqk", jnp.einsum("bnw,whd->bnhd", token, wq), keys)
        shares = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(x.dtype)
        found = jnp.einsum("bhqk,bkhd->bqhd", shares, values)
        return x + jnp.einsum("bnhd,hdw->bnw", found, wo)

    label = f"{where} {'at a place a sequence' if each else 'at one place'}"
    return Block(label, apply, (q, q, out), (kept, kept, s.rows if each else NUMBER))


def search(c: Choices, s: Sizes) -> Block:
    """Sorted, the largest few, the largest."""
    axis = c.one_of((2, 1, 0))
    k = c.one_of((1, 2, 8))

    def top(x: Any) -> Any:
        values, places = lax.top_k(jnp.moveaxis(x, axis, -1), k)
        shares = (values * places.astype(x.dtype)).mean(-1, keepdims=True)
        return x * jnp.moveaxis(shares, -1, axis)

    def values(x: Any) -> Any:
        found = lax.top_k(jnp.moveaxis(x, axis, -1), k)[0]
        return jnp.where(x < jnp.moveaxis(found[..., -1:], -1, axis), 0, x)

    def by_key(x: Any) -> Any:
        order = jnp.argsort(x.mean(-1), 1)
        return jnp.take_along_axis(x, order[..., None], 1)

    forms: dict[str, Form] = {
        "top_k": (top, (), ()),
        "top_k, values": (values, (), ()),
        "sort": (lambda x: x + jnp.sort(x, axis), (), ()),
        "argsort": (lambda x: x * jnp.argsort(x, axis).astype(x.dtype), (), ()),
        "argmax": (
            lambda x: x * jnp.expand_dims(jnp.argmax(x, axis), axis).astype(x.dtype), (), ()
        ),
        "tokens by key": (by_key, (), ()),
    }  # fmt: skip
    return one_form(c, forms, f"{k} along {axis}")


def cumulative(c: Choices, s: Sizes) -> Block:
    """Running sums, products, maxima, and recurrences as associative scans."""
    axis = c.one_of((1, 2, 0))

    def recurrence(x: Any) -> Any:
        def joined(one: Any, two: Any) -> Any:
            return one[0] * two[0], two[0] * one[1] + two[1]

        return lax.associative_scan(joined, (jax.nn.sigmoid(x), x), axis=axis)[1]

    forms: dict[str, Form] = {
        "cumsum": (lambda x: jnp.cumsum(x, axis), (), ()),
        "cumsum from the end": (lambda x: lax.cumsum(x, axis, reverse=True), (), ()),
        "cummax": (lambda x: lax.cummax(x, axis), (), ()),
        "cumprod": (lambda x: jnp.cumprod(x, axis), (), ()),
        "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, axis), (), ()),
        "associative_scan": (recurrence, (), ()),
    }
    return one_form(c, forms, f"along {axis}")
