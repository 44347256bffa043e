"""Families of products: matrices and chains of them, einsums, experts, convolutions, Fourier."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.differential.blocks import Argument, Block, Form, Sizes, normed, one_form
from benchmarks.differential.choices import Choices


def product(c: Choices, s: Sizes) -> Block:
    """Feed-forward layers and other chains of matrices."""
    up, down, square = s.up, s.down, s.square
    low = Argument((s.w, 8), ("embed", ""))
    raised = Argument((8, s.w), ("", "mlp"))
    bias = Argument((s.f,), ("mlp",))

    def gram(x: Any, w: Any) -> Any:
        y = x @ w
        return x + x @ (jnp.einsum("bnw,bnv->wv", x, y) / s.n)

    forms: dict[str, Form] = {
        "mlp": (lambda x, a, b: x + jax.nn.gelu(normed(x) @ a) @ b, (up, down), ()),
        "mlp with bias": (
            lambda x, a, v, b: x + jax.nn.relu(x @ a + v) @ b, (up, bias, down), ()
        ),
        "swiglu": (
            lambda x, a, g, b: x + (jax.nn.silu(x @ a) * (x @ g)) @ b, (up, up, down), ()
        ),
        "chain of three": (
            lambda x, a, b, d: x + ((x @ a) @ b) @ d, (square, square, square), ()
        ),
        "one matrix": (lambda x, a: jnp.tanh(x @ a), (square,), ()),
        "transposed": (lambda x, a: jnp.tanh(x @ a.T), (square,), ()),
        "tied": (lambda x, a: x + jax.nn.relu(x @ a) @ a.T, (up,), ()),
        "low rank": (lambda x, a, p, q: x @ a + (x @ p) @ q, (square, low, raised), ()),
        "weights first": (lambda x, a, b: x + jnp.tanh(x @ (a @ b)), (up, down), ()),
        "gram": (gram, (square,), ()),
    }  # fmt: skip
    return one_form(c, forms)


def einsum(c: Choices, s: Sizes) -> Block:
    """Attention in several forms, and einsums with several batch dimensions."""
    q = Argument((s.w, s.h, s.d), ("embed", "heads", ""))
    few = Argument((s.w, s.h // 4, s.d), ("embed", "heads", ""))
    out = Argument((s.h, s.d, s.w), ("heads", "", "embed"))
    each = Argument((s.h, s.d, s.d), ("heads", "", ""))
    mixed = Argument((s.n, s.n), ("", ""))

    def attention(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        y = normed(x)
        q, k, v = (jnp.einsum("bnw,whd->bnhd", y, w) for w in (wq, wk, wv))
        if k.shape[2] != s.h:
            k, v = (jnp.repeat(t, s.h // t.shape[2], 2) for t in (k, v))
        return x + jnp.einsum("bnhd,hdw->bnw", attend(q, k, v), wo)

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        shares = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1).astype(q.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", shares, v)

    def local(x: Any, wq: Any, wk: Any, wo: Any) -> Any:
        q, k = (jnp.einsum("bnw,whd->bnhd", x, w) for w in (wq, wk))
        q, k = (t.reshape(s.b, 4, s.n // 4, s.h, s.d) for t in (q, k))
        shares = jax.nn.softmax(jnp.einsum("bclhd,bcmhd->bchlm", q, k), -1)
        found = jnp.einsum("bchlm,bcmhd->bclhd", shares, k).reshape(s.b, s.n, s.h, s.d)
        return x + jnp.einsum("bnhd,hdw->bnw", found, wo)

    def linear(x: Any, wq: Any, wk: Any, wo: Any) -> Any:
        q, k = (jax.nn.relu(jnp.einsum("bnw,whd->bhnd", x, w)) for w in (wq, wk))
        state = jnp.einsum("bhnd,bhne->bhde", k, k)
        return x + jnp.einsum("bhnd,bhde,hew->bnw", q, state, wo)

    def by_head(x: Any, w: Any) -> Any:
        heads = x.reshape(s.b, s.n, s.h, s.d)
        return x + jnp.einsum("bnhd,hde->bnhe", heads, w).reshape(x.shape)

    forms: dict[str, Form] = {
        "attention": (attention, (q, q, q, out), ()),
        "grouped attention": (attention, (q, few, few, out), ()),
        "local attention": (local, (q, q, out), ()),
        "linear attention": (linear, (q, q, out), ()),
        "by head": (by_head, (each,), ()),
        "tokens mixed": (lambda x, m: x + jnp.einsum("bnw,nm->bmw", x, m), (mixed,), ()),
        "tokens with tokens": (
            lambda x: x + jax.nn.softmax(jnp.einsum("bnw,bmw->bnm", x, x), -1) @ x, (), ()
        ),
    }  # fmt: skip
    return one_form(c, forms)


def experts(c: Choices, s: Sizes) -> Block:
    """Routed experts by einsum: dense, one-hot, with a capacity, flat tokens or groups."""
    gate = Argument((s.w, s.e), ("embed", ""))
    up = Argument((s.e, s.w, s.f), ("expert", "embed", "mlp"))
    down = Argument((s.e, s.f, s.w), ("expert", "mlp", "embed"))
    top = c.one_of((1, 2))

    def routed(x: Any, g: Any) -> tuple[Any, Any]:
        """Shares of the experts, and which are chosen."""
        shares = jax.nn.softmax((x @ g).astype(jnp.float32), -1)
        kept, which = lax.top_k(shares, top)
        chosen = jax.nn.one_hot(which, s.e, dtype=jnp.float32)
        return jnp.einsum("...k,...ke->...e", kept, chosen).astype(x.dtype), chosen

    def slots(chosen: Any, size: int) -> Any:
        """(tokens, expert, slot) one-hot; tokens above the capacity are dropped."""
        taken = chosen.max(-2)
        place = (jnp.cumsum(taken, -2) - 1) * taken
        return jax.nn.one_hot(place.astype(jnp.int32), size) * taken[..., None]

    def dense(x: Any, g: Any, a: Any, b: Any) -> Any:
        hidden = jax.nn.gelu(jnp.einsum("bnw,ewf->bnef", x, a))
        return x + jnp.einsum("bnef,efw,bne->bnw", hidden, b, routed(x, g)[0])

    def dense_first(x: Any, g: Any, a: Any, b: Any) -> Any:
        hidden = jax.nn.gelu(jnp.einsum("bnw,ewf->ebnf", x, a))
        return x + jnp.einsum(
            "ebnw,bne->bnw", jnp.einsum("ebnf,efw->ebnw", hidden, b), routed(x, g)[0]
        )

    def capacity(x: Any, g: Any, a: Any, b: Any) -> Any:
        shares, chosen = routed(x, g)
        to = slots(chosen, 2 * top * s.n // s.e).astype(x.dtype)
        sent = jnp.einsum("bnec,bnw->ebcw", to, x)
        made = jnp.einsum("ebcf,efw->ebcw", jax.nn.gelu(jnp.einsum("ebcw,ewf->ebcf", sent, a)), b)
        return x + jnp.einsum("bnec,ebcw->bnw", to * shares[..., None], made)

    def flat(x: Any, g: Any, a: Any, b: Any) -> Any:
        tokens = x.reshape(-1, s.w)
        shares, chosen = routed(tokens, g)
        to = slots(chosen, top * s.b * s.n // s.e).astype(x.dtype)
        sent = jnp.einsum("tec,tw->ecw", to, tokens)
        made = jax.vmap(lambda y, p, q: jax.nn.gelu(y @ p) @ q)(sent, a, b)
        return x + jnp.einsum("tec,ecw->tw", to * shares[..., None], made).reshape(x.shape)

    def masked(x: Any, g: Any, a: Any, b: Any) -> Any:
        shares, chosen = routed(x, g)
        sent = jnp.einsum("bne,bnw->ebnw", chosen.max(-2).astype(x.dtype), x)
        made = jax.nn.relu(sent.reshape(s.e, -1, s.w) @ a) @ b
        return x + jnp.einsum("ebnw,bne->bnw", made.reshape(sent.shape), shares)

    weights = (gate, up, down)
    forms: dict[str, Form] = {
        "capacity": (capacity, weights, ()),
        "dense": (dense, weights, ()),
        "dense, experts first": (dense_first, weights, ()),
        "flat tokens": (flat, weights, ()),
        "one-hot mask": (masked, weights, ()),
    }
    return one_form(c, forms, f"top-{top}")


def convolution(c: Choices, s: Sizes) -> Block:
    """Along the sequence or over images made of it, with strides, by channel, and pooling."""
    size = c.one_of((3, 4))
    kernel = Argument((size, s.w, s.w), ("", "embed", "mlp"))
    channel = Argument((size, 1, s.w), ("", "", "mlp"))
    image = Argument((3, 3, s.w, s.w), ("", "", "embed", "mlp"))
    side = (s.b, s.n // 8, 8, s.w)

    def along(x: Any, w: Any, *, groups: int = 1, stride: int = 1) -> Any:
        return lax.conv_general_dilated(
            x, w, (stride,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=groups,
        )  # fmt: skip

    def over(x: Any, w: Any, stride: int = 1) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (stride,) * 2, "SAME", dimension_numbers=numbers)

    def pooled(x: Any, how: Any, start: float) -> Any:
        window = (1, 2, 1)
        return jnp.repeat(lax.reduce_window(x, start, how, window, window, "SAME"), 2, 1)

    forms: dict[str, Form] = {
        "along the sequence": (lambda x, w: x + jax.nn.relu(along(x, w)), (kernel,), ()),
        "by channel": (lambda x, w: x + along(x, w, groups=s.w), (channel,), ()),
        "causal, by channel": (
            lambda x, w: x + lax.conv_general_dilated(
                x, w, (1,), [(size - 1, 0)], dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=s.w,
            ), (channel,), (),
        ),
        "stride 2": (lambda x, w: x + jnp.repeat(along(x, w, stride=2), 2, 1), (kernel,), ()),
        "images": (
            lambda x, w: x + jax.nn.relu(over(x.reshape(side), w)).reshape(x.shape), (image,), ()
        ),
        "images, stride 2": (
            lambda x, w: x
            + over(x.reshape(side), w, 2).mean((1, 2))[:, None],
            (image,), (),
        ),
        "mean of windows": (lambda x: x + pooled(x, lax.add, 0.0), (), ()),
        "largest of windows": (lambda x: x + pooled(x, lax.max, -jnp.inf), (), ()),
    }  # fmt: skip
    return one_form(c, forms)


def fourier(c: Choices, s: Sizes) -> Block:
    """Fourier transforms along one dimension or two."""
    axis = c.one_of((1, 2, 0))

    def f32(x: Any) -> Any:
        return x.astype(jnp.float32)

    def filtered(x: Any) -> Any:
        found = jnp.fft.rfft(f32(x), axis=axis)
        return jnp.fft.irfft(found * 0.5, n=x.shape[axis], axis=axis).astype(x.dtype)

    forms: dict[str, Form] = {
        "fft": (lambda x: x + jnp.fft.fft(f32(x), axis=axis).real.astype(x.dtype), (), ()),
        "rfft, irfft": (filtered, (), ()),
        "fft2": (lambda x: x + jnp.fft.fft2(f32(x)).real.astype(x.dtype), (), ()),
    }
    return one_form(c, forms, f"along {axis}")


def reduction(c: Choices, s: Sizes) -> Block:
    """Norms, softmax, and other reductions over one dimension or several."""
    axes = c.one_of(((2,), (1,), (0,), (0, 1), (1, 2)))
    scale = Argument((s.w,), ("embed",))

    def norm(x: Any, g: Any) -> Any:
        x32 = x.astype(jnp.float32)
        mean = x32.mean(axes, keepdims=True)
        var = jnp.square(x32 - mean).mean(axes, keepdims=True)
        return ((x32 - mean) * lax.rsqrt(var + 1e-5)).astype(x.dtype) * g

    forms: dict[str, Form] = {
        "norm": (norm, (scale,), ()),
        "softmax": (lambda x: x + jax.nn.softmax(x, axes), (), ()),
        "logsumexp": (lambda x: x - jax.nn.logsumexp(x, axes, keepdims=True), (), ()),
        "max": (lambda x: x - jnp.max(x, axes, keepdims=True), (), ()),
        "var": (lambda x: x * jnp.var(x, axes, keepdims=True), (), ()),
        "mean": (lambda x: x - jnp.mean(x, axes, keepdims=True), (), ()),
        "any": (lambda x: x * jnp.any(x > 0, axes, keepdims=True).astype(x.dtype), (), ()),
    }
    return one_form(c, forms, f"over {','.join(map(str, axes))}")
