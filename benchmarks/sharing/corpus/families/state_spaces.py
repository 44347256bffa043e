"""Models with a state of sums that decay along the length."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.family import WIDTH_STYLES, Family
from benchmarks.sharing.corpus.language import layered_model
from benchmarks.sharing.corpus.parts import (
    Arrays,
    ffn,
    ffn_weights,
    rms_norm,
)
from benchmarks.sharing.corpus.run import Model, Run, Weight
from benchmarks.sharing.corpus.sizes import (
    LENGTHS,
    VOCABS,
    WIDTHS,
    Options,
)


def draw_state_space(rng: Random) -> Options:
    """Kinds of recurrences, how they are computed, filters before them."""
    return {
        "dim": rng.choice((*WIDTHS, 2560, 4096)),
        "layers": rng.choice((4, 8, 12, 24, 32, 48, 64)),
        "vocab": rng.choice(VOCABS),
        "length": rng.choice(LENGTHS[2:14]),
        "expand": rng.choice((1, 2, 2)),
        "state": rng.choice((8, 16, 16, 64, 128)),
        "head_dim": rng.choice((32, 64, 64, 128)),
        "form": rng.choice(("selective", "selective", "chunks", "chunks", "diagonal", "gated")),
        "scan": rng.choice(("associative", "steps")),
        "filter": rng.choice((0, 4, 4)),
        "inner": rng.random() < 0.3,
    }


def _state_space_weights(o: Options) -> dict[str, Weight]:
    dim, inner, state = o["dim"], o["dim"] * o["expand"], o["state"]
    heads = inner // o["head_dim"]
    layer = {
        "scale": Weight((dim,)),
        "in": Weight((dim, inner), ("embed", "ffn")),
        "gated": Weight((dim, inner), ("embed", "ffn")),
        "out": Weight((inner, dim), ("ffn", "embed")),
    }
    layer |= {"filter": Weight((o["filter"], 1, inner), ("", "", "ffn"))} if o["filter"] else {}
    if o["form"] == "selective":
        rank = max(dim // 16, 1)
        layer |= {
            "b_c": Weight((inner, 2 * state), ("ffn", "")),
            "rank": Weight((inner, rank), ("ffn", "")),
            "step": Weight((rank, inner), ("", "ffn")),
            "decay": Weight((inner, state), ("ffn", "")),
        }
    elif o["form"] == "chunks":
        layer |= {
            "b_c": Weight((dim, 2 * state), ("embed", "")),
            "step": Weight((dim, heads), ("embed", "heads")),
            "decay": Weight((heads,), ("heads",)),
        }
    elif o["form"] == "diagonal":
        layer |= {name: Weight((inner, state), ("ffn", "")) for name in ("decay", "b", "c")}
    else:
        layer |= {name: Weight((inner,), ("ffn",)) for name in ("decay", "a_bias", "i_bias")}
        layer |= {name: Weight((inner, inner), ("ffn", "")) for name in ("a", "i")}
    if o["inner"]:
        layer |= {"mid_scale": Weight((dim,)), **ffn_weights(dim, 4 * dim, gated=True)}
    return layer


def _recurrence(o: Options, decay: Any, value: Any) -> Any:
    """h_t = decay_t h_(t-1) + value_t along dimension 1."""
    if o["scan"] == "associative":

        def join(left: Any, right: Any) -> Any:
            return left[0] * right[0], right[0] * left[1] + right[1]

        return jax.lax.associative_scan(join, (decay, value), axis=1)[1]

    def step(h: Any, of: Any) -> Any:
        h = of[0] * h + of[1]
        return h, h

    decay, value = (jnp.moveaxis(a, 1, 0) for a in (decay, value))
    return jnp.moveaxis(jax.lax.scan(step, jnp.zeros_like(value[0]), (decay, value))[1], 0, 1)


def _selective(o: Options, x: Any, p: Arrays) -> Any:
    """Decay and inputs that hang on the token (arXiv 2312.00752, algorithm 2), state by state in steps."""
    b, c = jnp.split((x @ p["b_c"]).astype(jnp.float32), 2, axis=-1)
    step = jax.nn.softplus((x @ p["rank"] @ p["step"]).astype(jnp.float32))
    rate = -jnp.exp(p["decay"].astype(jnp.float32))

    def one(h: Any, of: Any) -> Any:
        x, step, b, c = of
        h = jnp.exp(step[..., None] * rate) * h + (step * x)[..., None] * b[:, None]
        return h, jnp.einsum("bdn,bn->bd", h, c)

    start = jnp.zeros((x.shape[0], x.shape[2], o["state"]), jnp.float32)
    of = tuple(jnp.moveaxis(a, 1, 0) for a in (x.astype(jnp.float32), step, b, c))
    return jnp.moveaxis(jax.lax.scan(one, start, of)[1], 0, 1).astype(x.dtype)


def _in_chunks(o: Options, x: Any, normed: Any, p: Arrays) -> Any:
    """Products within chunks and a state between them (arXiv 2405.21060, listing 1)."""
    batch, length, _ = x.shape
    size = min(o["length"], 128)
    heads = p["decay"].shape[0]
    b, c = jnp.split(normed @ p["b_c"], 2, axis=-1)
    step = jax.nn.softplus((normed @ p["step"]).astype(jnp.float32))
    rate = -jnp.exp(p["decay"].astype(jnp.float32)) * step
    v = x.reshape(batch, length, heads, -1) * step[..., None].astype(x.dtype)
    v, b, c, rate = (a.reshape(batch, length // size, size, *a.shape[2:]) for a in (v, b, c, rate))
    total = jnp.cumsum(rate, axis=2)
    gap = total[:, :, :, None] - total[:, :, None]
    seen = jnp.tril(jnp.ones((size, size), bool))[:, :, None]
    weights = jnp.where(seen, jnp.exp(jnp.where(seen, gap, 0.0)), 0.0).astype(x.dtype)
    near = jnp.einsum("bzln,bzsn,bzlsh,bzshp->bzlhp", c, b, weights, v)
    rest = jnp.exp(total[:, :, -1:] - total).astype(x.dtype)
    states = jnp.einsum("bzsn,bzsh,bzshp->bzhnp", b, rest, v)
    last = jnp.exp(total[:, :, -1])

    def join(h: Any, of: Any) -> Any:
        decay, new = of
        return decay[..., None, None] * h + new.astype(jnp.float32), h

    start = jnp.zeros((batch, *states.shape[2:]), jnp.float32)
    _, before = jax.lax.scan(join, start, (jnp.moveaxis(last, 1, 0), jnp.moveaxis(states, 1, 0)))
    before = jnp.moveaxis(before, 0, 1).astype(x.dtype)
    far = jnp.einsum("bzln,bzlh,bzhnp->bzlhp", c, jnp.exp(total).astype(x.dtype), before)
    return (near + far).reshape(batch, length, -1)


def _diagonal(x: Any, p: Arrays) -> Any:
    """A long filter of sums of decays, applied by Fourier transforms (arXiv 2206.11893)."""
    length = x.shape[1]
    rate = jnp.exp(-jnp.exp(p["decay"].astype(jnp.float32)))
    power = rate[..., None] ** jnp.arange(length, dtype=jnp.float32)
    kernel = jnp.einsum("dn,dnl->ld", (p["b"] * p["c"]).astype(jnp.float32), power)
    spectrum = jnp.fft.rfft(x.astype(jnp.float32), n=2 * length, axis=1)
    product = spectrum * jnp.fft.rfft(kernel, n=2 * length, axis=0)
    return jnp.fft.irfft(product, n=2 * length, axis=1)[:, :length].astype(x.dtype)


def _gated(o: Options, x: Any, p: Arrays) -> Any:
    """A real-gated linear recurrence (arXiv 2402.19427, section 2.4)."""
    gate = jax.nn.sigmoid((x @ p["a"] + p["a_bias"]).astype(jnp.float32))
    share = jax.nn.sigmoid((x @ p["i"] + p["i_bias"]).astype(jnp.float32))
    decay = jnp.exp(-8.0 * gate * jax.nn.softplus(p["decay"].astype(jnp.float32)))
    value = jnp.sqrt(1 - jnp.square(decay) + 1e-6) * (share * x.astype(jnp.float32))
    return _recurrence(o, decay, value).astype(x.dtype)


def build_state_space(o: Options, run: Run) -> Model:
    """Mamba's kinds, one and two, S4D's and Griffin's."""

    def mixed(y: Any, normed: Any, p: Arrays) -> Any:
        if o["form"] == "selective":
            return _selective(o, y, p)
        if o["form"] == "chunks":
            return _in_chunks(o, y, normed, p)
        return _diagonal(y, p) if o["form"] == "diagonal" else _gated(o, y, p)

    def block(x: Any, p: Arrays) -> Any:
        normed = rms_norm(x, p["scale"])
        y = run.pin(normed @ p["in"], "batch", "", "ffn")
        if o["filter"]:
            y = jax.lax.conv_general_dilated(
                y, p["filter"], (1,), [(o["filter"] - 1, 0)], dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=y.shape[-1],
            )  # fmt: skip
        y = run.pin(mixed(jax.nn.silu(y), normed, p), "batch", "", "ffn")
        x = x + run.pin((y * jax.nn.silu(normed @ p["gated"])) @ p["out"], "batch")
        return x + ffn(run, rms_norm(x, p["mid_scale"]), p, "gelu") if o["inner"] else x

    return layered_model(o, run, _state_space_weights(o), block)


FAMILIES = (Family("state space", draw_state_space, build_state_space, WIDTH_STYLES, 0.2),)
