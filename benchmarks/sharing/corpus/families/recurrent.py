"""Models with a state that goes along the length: state spaces, linear attention, gated cells."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.family import WIDTH_STYLES, Family
from benchmarks.sharing.corpus.parts import (
    Arrays,
    attend,
    cross_entropy,
    embedded,
    ffn,
    ffn_weights,
    layer_norm,
    rms_norm,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import LENGTHS, VOCABS, WIDTHS, Options, drawn_transformer


def _language_model(o: Options, run: Run, layer: Any, block: Any) -> Model:
    dim = o["dim"]
    weights = {
        "embed": Weight((o["vocab"], dim), ("vocab", "embed")),
        "layers": run.stack(o["layers"], layer),
        "out_scale": Weight((dim,)),
        "head": Weight((dim, o["vocab"]), ("embed", "vocab")),
    }

    def forward(params: Any, tokens: Any) -> Any:
        x = run.layers(block, embedded(run, params["embed"], tokens), params["layers"])
        logits = rms_norm(x, params["out_scale"]) @ params["head"]
        return run.pin(logits, "batch", "length", "vocab")

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        return cross_entropy(run, forward(params, tokens), targets)

    words = Input((run.plan.batch, o["length"]), ("batch", "length"), "int32")
    return Model(forward, loss, weights, (words,), (words,))


def draw_state_space(rng: Random) -> Options:
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
        "gate": Weight((dim, inner), ("embed", "ffn")),
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
        x = x + run.pin((y * jax.nn.silu(normed @ p["gate"])) @ p["out"], "batch")
        return x + ffn(run, rms_norm(x, p["mid_scale"]), p, "gelu") if o["inner"] else x

    return _language_model(o, run, _state_space_weights(o), block)


def draw_linear(rng: Random) -> Options:
    return {
        **drawn_transformer(rng, 8192),
        "vocab": rng.choice(VOCABS),
        "length": rng.choice(LENGTHS[2:14]),
        "form": rng.choice(("steps", "steps", "chunks", "features", "vectors", "delta")),
        "shift": rng.random() < 0.6,
        "low_rank": rng.choice((0, 32, 64)),
        "squared": rng.random() < 0.5,
        "gated": rng.random() < 0.6,
    }


def _linear_weights(o: Options) -> dict[str, Weight]:
    dim, heads, size = o["dim"], o["heads"], o["head_dim"]
    layer = {name: Weight((dim, heads, size), ("embed", "heads", "")) for name in "rkv"}
    layer |= {
        "o": Weight((heads, size, dim), ("heads", "", "embed")),
        "in_scale": Weight((dim,)),
        "mid_scale": Weight((dim,)),
        "head_scale": Weight((heads, size), ("heads", "")),
        "decay": Weight((heads, size), ("heads", "")),
        **ffn_weights(dim, o["ffn"]),
    }
    if o["shift"]:
        layer |= {"mix_" + name: Weight((dim,)) for name in ("r", "k", "v", "f")}
    if o["low_rank"]:
        layer |= {
            "w1": Weight((dim, o["low_rank"])),
            "w2": Weight((o["low_rank"], heads, size), ("", "heads", "")),
        }
    if o["form"] == "delta":
        layer["rate"] = Weight((dim, heads), ("embed", "heads"))
    return layer | ({"g": Weight((dim, heads, size), ("embed", "heads", ""))} if o["gated"] else {})


def _along(o: Options, r: Any, k: Any, v: Any, decay: Any, rate: Any) -> Any:
    """A state of products of keys and values, token after token (arXiv 2404.05892, section 4.1)."""

    def step(state: Any, of: Any) -> Any:
        r, k, v, decay, rate = of
        if o["form"] == "delta":
            known = jnp.einsum("bhk,bhkv->bhv", k, state)
            state = state + jnp.einsum("bhk,bhv->bhkv", k, rate[..., None] * (v - known))
        else:
            state = decay[..., None] * state + jnp.einsum("bhk,bhv->bhkv", k, v)
        return state, jnp.einsum("bhk,bhkv->bhv", r, state)

    batch, _, heads, size = r.shape
    start = jnp.zeros((batch, heads, size, size), jnp.float32)
    of = tuple(jnp.moveaxis(a.astype(jnp.float32), 1, 0) for a in (r, k, v, decay, rate))
    return jnp.moveaxis(jax.lax.scan(step, start, of)[1], 0, 1).astype(v.dtype)


def _retained(r: Any, k: Any, v: Any, decay: Any, size: int = 128) -> Any:
    """The same in chunks with one decay for each head (arXiv 2307.08621, section 2.2)."""
    batch, length, heads, dim = r.shape
    size = min(size, length)
    r, k, v = (a.reshape(batch, -1, size, heads, dim).transpose(1, 0, 3, 2, 4) for a in (r, k, v))
    place = jnp.arange(size, dtype=jnp.float32)
    away = place[:, None] - place
    mask = jnp.where(away >= 0, decay[:, None, None] ** jnp.maximum(away, 0.0), 0.0)

    def step(state: Any, of: Any) -> Any:
        r, k, v = of
        near = jnp.einsum("bhsd,bhtd->bhst", r, k) * mask.astype(r.dtype)
        out = jnp.einsum("bhst,bhtd->bhsd", near, v).astype(jnp.float32)
        ahead = decay[:, None] ** (place + 1)
        out = out + jnp.einsum("bhsd,bhde->bhse", r.astype(jnp.float32), state) * ahead[..., None]
        left = decay[:, None] ** (size - 1 - place)
        new = jnp.einsum("bhtd,bhte->bhde", k * left[..., None].astype(k.dtype), v)
        return (decay**size)[:, None, None] * state + new.astype(jnp.float32), out

    start = jnp.zeros((batch, heads, dim, dim), jnp.float32)
    _, out = jax.lax.scan(step, start, (r, k, v))
    return out.transpose(1, 0, 3, 2, 4).reshape(batch, length, heads, dim).astype(v.dtype)


def _by_features(r: Any, k: Any, v: Any) -> Any:
    """Attention without softmax of everything, by sums over the whole length (arXiv 2006.16236)."""
    r, k = jax.nn.elu(r.astype(jnp.float32)) + 1, jax.nn.elu(k.astype(jnp.float32)) + 1
    state = jnp.einsum("bshk,bshv->bhkv", k, v.astype(jnp.float32))
    total = jnp.einsum("bshk,bhk->bsh", r, k.sum(1))
    return (jnp.einsum("bshk,bhkv->bshv", r, state) / total[..., None]).astype(v.dtype)


def _by_vectors(r: Any, k: Any, v: Any, decay: Any) -> Any:
    """A weighted mean of values, channel by channel, by an associative scan (arXiv 2305.13048, section 3.1)."""

    def join(left: Any, right: Any) -> Any:
        top = jnp.maximum(left[0] + right[3], right[0])
        old, new = jnp.exp(left[0] + right[3] - top), jnp.exp(right[0] - top)
        return (
            top,
            old * left[1] + new * right[1],
            old * left[2] + new * right[2],
            left[3] + right[3],
        )

    k = k.astype(jnp.float32)
    gap = jnp.broadcast_to(jnp.log(decay), k.shape)
    of = (k, v.astype(jnp.float32), jnp.ones_like(k), gap)
    _, total, count, _ = jax.lax.associative_scan(join, of, axis=1)
    return (jax.nn.sigmoid(r) * (total / count).astype(r.dtype)).astype(v.dtype)


def build_linear(o: Options, run: Run) -> Model:
    """RWKV's, RetNet's, DeltaNet's and linear transformers' kinds."""

    def heads(x: Any, p: Arrays, name: str, before: Any) -> Any:
        if o["shift"]:
            x = x + (before - x) * p["mix_" + name]
        return run.pin(jnp.einsum("bsd,dhk->bshk", x, p[name]), "batch", "", "heads", "")

    def mixed(y: Any, p: Arrays) -> Any:
        before = jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1] if o["shift"] else y
        r, k, v = (heads(y, p, name, before) for name in "rkv")
        decay = p["decay"].astype(jnp.float32)
        if o["low_rank"]:
            decay = decay + jnp.einsum("bsr,rhk->bshk", jnp.tanh(y @ p["w1"]), p["w2"]).astype(
                jnp.float32
            )
        decay = jnp.exp(-jnp.exp(decay))
        if o["form"] == "features":
            return _by_features(r, k, v)
        if o["form"] == "chunks":
            return _retained(r, k, v, jnp.exp(-jnp.exp(p["decay"].astype(jnp.float32).mean(-1))))
        if o["form"] == "vectors":
            return _by_vectors(r, k, v, decay)
        rate = jax.nn.sigmoid(y @ p["rate"]) if "rate" in p else jnp.ones(r.shape[:3], r.dtype)
        k = (
            k / (jnp.linalg.norm(k.astype(jnp.float32), axis=-1, keepdims=True) + 1e-6)
            if "rate" in p
            else k
        )
        return _along(o, r, k, v, jnp.broadcast_to(decay, r.shape), rate)

    def block(x: Any, p: Arrays) -> Any:
        y = layer_norm(x, p["in_scale"])
        out = run.pin(mixed(y, p), "batch", "", "heads", "")
        out = layer_norm(out, p["head_scale"])
        if o["gated"]:
            out = out * jax.nn.silu(jnp.einsum("bsd,dhk->bshk", y, p["g"]))
        x = x + run.pin(jnp.einsum("bshk,hkd->bsd", out, p["o"]), "batch")
        y = layer_norm(x, p["mid_scale"])
        if o["shift"]:
            y = y + (jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1] - y) * p["mix_f"]
        return x + ffn(run, y, p, "relu2" if o["squared"] else "gelu")

    return _language_model(o, run, _linear_weights(o), block)


def draw_cells(rng: Random) -> Options:
    return {
        "dim": rng.choice(WIDTHS[:14]),
        "layers": rng.choice((1, 2, 2, 3, 4)),
        "vocab": rng.choice(VOCABS),
        "length": rng.choice((128, 256, 384, 512, 1024)),
        "out_length": rng.choice((128, 256, 384, 512)),
        "cell": rng.choice(("lstm", "lstm", "gru", "plain", "light")),
        "task": rng.choice(("sequence", "sequence", "next", "class")),
        "both_ways": rng.random() < 0.4,
        "attends": rng.random() < 0.6,
        "norm": rng.random() < 0.3,
    }


_GATES = {"lstm": 4, "gru": 3, "plain": 1, "light": 3}


def _cell_weights(o: Options, inward: int) -> dict[str, Weight]:
    dim, gates = o["dim"], _GATES[o["cell"]]
    found = {
        "w": Weight((inward, gates, dim), ("embed", "", "ffn")),
        "b": Weight((gates, dim), ("", "ffn")),
    }
    if o["cell"] != "light":
        found["u"] = Weight((dim, gates, dim), ("embed", "", "ffn"))
    return found | ({"scale": Weight((dim,))} if o["norm"] else {})


def _cell(o: Options, p: Arrays, state: Any, x: Any) -> Any:
    """One step of a cell; x (b, gates, d) is the part of the gates that inputs make."""
    h, c = state
    gates = x if o["cell"] == "light" else x + jnp.einsum("bd,dge->bge", h, p["u"])
    if o["cell"] == "lstm":
        i, f, g, out = (gates[:, n] for n in range(4))
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(out) * jnp.tanh(c), c
    if o["cell"] == "gru":
        z, r = jax.nn.sigmoid(gates[:, 0]), jax.nn.sigmoid(gates[:, 1])
        new = jnp.tanh(x[:, 2] + r * (gates[:, 2] - x[:, 2]))
        return (1 - z) * new + z * h, c
    if o["cell"] == "light":
        f, r = jax.nn.sigmoid(gates[:, 1]), jax.nn.sigmoid(gates[:, 2])
        c = f * c + (1 - f) * gates[:, 0]
        return r * jnp.tanh(c), c
    return jnp.tanh(gates[:, 0]), c


def _rolled(o: Options, run: Run, x: Any, p: Arrays, *, reverse: bool = False) -> Any:
    """All outputs (b, s, d) of a cell along x, and its last state."""
    inward = jnp.einsum("bsd,dge->bsge", x, p["w"]) + p["b"]
    start = jnp.zeros((x.shape[0], o["dim"]), x.dtype)

    def step(state: Any, of: Any) -> Any:
        h, c = _cell(o, p, state, of)
        h = run.pin(h.astype(x.dtype), "batch")
        return (h, c.astype(x.dtype)), h

    state, out = jax.lax.scan(step, (start, start), jnp.moveaxis(inward, 1, 0), reverse=reverse)
    out = jnp.moveaxis(out, 0, 1)
    return (layer_norm(out, p["scale"]) if o["norm"] else out), state


def _cells_weights(o: Options) -> Any:
    dim, outward = o["dim"], o["vocab"] if o["task"] != "class" else 1000
    ways = 2 if o["both_ways"] and o["task"] != "next" else 1
    found: dict[str, Any] = {
        "embed": Weight((o["vocab"], dim), ("vocab", "embed")),
        "encoder": [[_cell_weights(o, dim) for _ in range(ways)] for _ in range(o["layers"])],
        "head": Weight((dim, outward), ("embed", "vocab")),
    }
    if o["task"] == "sequence":
        found["decoder"] = [_cell_weights(o, dim) for _ in range(o["layers"])]
        found |= {"join": Weight((2 * dim, dim), ("embed", "ffn"))} if o["attends"] else {}
    return found


def build_cells(o: Options, run: Run) -> Model:
    """LSTMs, GRUs and simple ones: translation with attention, next words, classes of texts."""

    def encoded(params: Any, tokens: Any) -> Any:
        x = run.pin(params["embed"][tokens], "batch")
        for ways in params["encoder"]:
            outs = [_rolled(o, run, x, p, reverse=bool(i))[0] for i, p in enumerate(ways)]
            x = sum(outs[1:], outs[0]) + x
        return x

    def decoded(params: Any, memory: Any, tokens: Any) -> Any:
        x = run.pin(params["embed"][tokens], "batch") + memory[:, -1:]
        for p in params["decoder"]:
            x = _rolled(o, run, x, p)[0] + x
        if o["attends"]:
            q, k = x[:, :, None], memory[:, :, None]
            x = jnp.tanh(jnp.concatenate([x, attend(q, k, k)[:, :, 0]], axis=-1) @ params["join"])
        return x

    def forward(params: Any, tokens: Any, before: Any) -> Any:
        x = encoded(params, tokens)
        if o["task"] == "sequence":
            x = decoded(params, x, before)
        x = x.mean(1, keepdims=True) if o["task"] == "class" else x
        return run.pin(x @ params["head"], "batch", "", "vocab")

    def loss(params: Any, tokens: Any, before: Any, targets: Any) -> Any:
        return cross_entropy(run, forward(params, tokens, before), targets)

    batch = run.plan.batch * 4
    count = {"sequence": o["out_length"], "next": o["length"], "class": 1}[o["task"]]
    tokens = Input((batch, o["length"]), ("batch", ""), "int32")
    targets = Input((batch, count), ("batch", ""), "int32")
    return Model(forward, loss, _cells_weights(o), (tokens, targets), (targets,))


FAMILIES = (
    Family("state space", draw_state_space, build_state_space, WIDTH_STYLES, 0.2),
    Family("linear attention", draw_linear, build_linear, WIDTH_STYLES, 0.2),
    Family("gated cells", draw_cells, build_cells, WIDTH_STYLES, 0.2),
)
