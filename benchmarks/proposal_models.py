"""Training steps of model families without a sharding, for `benchmarks.proposals`.

Sizes are of the order of published models, cut to few layers where layers are scanned anyway. Each function
gives a step and its abstract arguments; all take a global batch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

BF16, F32 = jnp.bfloat16, jnp.float32


def shape(*sizes, dtype=BF16):
    """An abstract array."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def norm(x, scale):
    """RMS norm over the last dimension."""
    x32 = x.astype(F32)
    mean = jnp.mean(jnp.square(x32), -1, keepdims=True)
    return (x32 * jax.lax.rsqrt(mean + 1e-5)).astype(x.dtype) * scale


def attention(x, y, p, *, causal):
    """Attention of `x` to `y`; queries share heads of keys where there are fewer."""
    q = jnp.einsum("bsd,dhk->bshk", x, p["q"])
    k, v = jnp.einsum("btd,dhk->bthk", y, p["k"]), jnp.einsum("btd,dhk->bthk", y, p["v"])
    b, s, h, d = q.shape
    q = q.reshape(b, s, k.shape[2], -1, d)
    scores = jnp.einsum("bsngk,btnk->bngst", q, k).astype(F32) * d**-0.5
    if causal:
        scores = jnp.where(jnp.arange(s)[:, None] >= jnp.arange(k.shape[1]), scores, -1e30)
    weights = jax.nn.softmax(scores, -1).astype(x.dtype)
    out = jnp.einsum("bngst,btnk->bsngk", weights, v).reshape(b, s, h, d)
    return jnp.einsum("bshk,hkd->bsd", out, p["o"])


def mlp(x, p):
    """SwiGLU."""
    return (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]


def experts(x, p):
    """Top-1 experts of fixed capacity, tokens dispatched by products (GShard)."""
    s = x.shape[1]
    count = p["router"].shape[1]
    capacity = 2 * s // count
    gates = jax.nn.softmax((x @ p["router"]).astype(F32), -1)
    chosen = jax.nn.one_hot(jnp.argmax(gates, -1), count)
    place = jnp.cumsum(chosen, 1) * chosen - 1
    dispatch = jax.nn.one_hot(place.astype(jnp.int32), capacity, dtype=x.dtype)
    combine = dispatch * (gates * chosen)[..., None].astype(x.dtype)
    inner = jnp.einsum("bsec,bsd->ebcd", dispatch, x)
    inner = jax.nn.silu(jnp.einsum("ebcd,edf->ebcf", inner, p["up"]))
    return jnp.einsum("bsec,ebcd->bsd", combine, jnp.einsum("ebcf,efd->ebcd", inner, p["down"]))


def attention_shapes(n, d, heads, kv):
    """Weights of attention, stacked."""
    k = d // heads
    return {
        "q": shape(n, d, heads, k),
        "k": shape(n, d, kv, k),
        "v": shape(n, d, kv, k),
        "o": shape(n, heads, k, d),
    }


def mlp_shapes(n, d, f):
    """Weights of an MLP, stacked."""
    return {"gate": shape(n, d, f), "up": shape(n, d, f), "down": shape(n, f, d)}


def training(loss):
    """A step of Adam of a loss of parameters and a batch."""

    def train_step(params, state, *batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)

        def update(p, g, m, v):
            g = g.astype(F32)
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * jnp.square(g)
            return (p - 3e-4 * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype), m, v

        new = jax.tree.map(update, params, grads, state["m"], state["v"])
        params, m, v = jax.tree.transpose(jax.tree.structure(params), None, new)
        return params, {"m": m, "v": v}, value

    return train_step


def arguments(params, *batch):
    """Parameters, state in float32, batch."""
    state = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, F32), params)
    return (params, {"m": state, "v": state}, *batch)


def cross_entropy(logits, targets):
    """Mean cross entropy; the logits stay as they are split."""
    logits = logits.astype(F32)
    picked = jnp.arange(logits.shape[-1]) == targets[..., None]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.sum(jnp.where(picked, logits, 0), -1))


def block(x, p, *, causal, inside):
    """Attention and what is `inside` the second half, each beside the residual."""
    y = norm(x, p["n1"])
    x = x + attention(y, y, p["attention"], causal=causal)
    return x + inside(norm(x, p["n2"]), p["inside"])


def stack(x, layers, **how):
    """Layers by a scan, computed again in the backward pass."""
    one = jax.checkpoint(lambda x, p: block(x, p, **how))
    return jax.lax.scan(lambda x, p: (one(x, p), None), x, layers)[0]


def layers_of(n, d, heads, kv, inside):
    """Stacked weights of blocks."""
    return {
        "n1": shape(n, d),
        "n2": shape(n, d),
        "attention": attention_shapes(n, d, heads, kv),
        "inside": inside,
    }


def decoder(
    batch,
    *,
    n=32,
    d=4096,
    heads=32,
    kv=8,
    f=14_336,
    vocab=128_256,
    seq=4096,
    inside=mlp,
    weights=None,
):
    """A dense decoder, or one of experts."""

    def loss(p, tokens, targets):
        x = stack(p["embed"][tokens], p["layers"], causal=True, inside=inside)
        return cross_entropy(norm(x, p["norm"]) @ p["head"], targets)

    layers = layers_of(n, d, heads, kv, weights or mlp_shapes(n, d, f))
    params = {"embed": shape(vocab, d), "layers": layers, "norm": shape(d), "head": shape(d, vocab)}
    tokens = shape(batch, seq, dtype=jnp.int32)
    return training(loss), arguments(params, tokens, tokens)


def moe(batch):
    """A decoder of 16 experts in each layer."""
    n, d, f, count = 16, 2048, 8192, 16
    weights = {
        "router": shape(n, d, count),
        "up": shape(n, count, d, f),
        "down": shape(n, count, f, d),
    }
    return decoder(
        batch, n=n, d=d, heads=16, kv=16, vocab=32_000, seq=2048, inside=experts, weights=weights
    )


def vit(batch):
    """ViT-H/14 on 224 x 224 pictures, as patches."""
    n, d, f = 32, 1280, 5120

    def loss(p, patches, labels):
        x = stack(patches @ p["patch"], p["layers"], causal=False, inside=mlp)
        return cross_entropy(jnp.mean(norm(x, p["norm"]), 1) @ p["head"], labels)

    params = {"patch": shape(588, d), "layers": layers_of(n, d, 16, 16, mlp_shapes(n, d, f)), "norm": shape(d),
              "head": shape(d, 1000)}  # fmt: skip
    return training(loss), arguments(params, shape(batch, 256, 588), shape(batch, dtype=jnp.int32))


def seq2seq(batch):
    """An encoder and a decoder that attends to it, of T5's 3B."""
    n, d, f, vocab, seq = 24, 2048, 5120, 32_128, 512

    def decode(x, p, encoded):
        y = norm(x, p["n1"])
        x = x + attention(y, y, p["attention"], causal=True)
        x = x + attention(norm(x, p["n3"]), encoded, p["cross"], causal=False)
        return x + mlp(norm(x, p["n2"]), p["inside"])

    def loss(p, source, tokens, targets):
        encoded = stack(p["embed"][source], p["encoder"], causal=False, inside=mlp)
        one = jax.checkpoint(decode)
        x = jax.lax.scan(lambda x, w: (one(x, w, encoded), None), p["embed"][tokens], p["decoder"])[
            0
        ]
        return cross_entropy(norm(x, p["norm"]) @ p["head"], targets)

    encoder = layers_of(n, d, 32, 32, mlp_shapes(n, d, f))
    more = {"n3": shape(n, d), "cross": attention_shapes(n, d, 32, 32)}
    params = {"embed": shape(vocab, d), "encoder": encoder, "decoder": {**encoder, **more}, "norm": shape(d),
              "head": shape(d, vocab)}  # fmt: skip
    tokens = shape(batch, seq, dtype=jnp.int32)
    return training(loss), arguments(params, tokens, tokens, tokens)


def state_space(batch):
    """Gated linear recurrences over the sequence, with a scan of halves."""
    n, d, e, vocab, seq = 32, 2560, 5120, 50_280, 2048

    def layer(x, p):
        y = norm(x, p["n"])
        value, gate = y @ p["in"], jax.nn.silu(y @ p["gate"])
        decay = jax.nn.sigmoid((y @ p["decay"]).astype(F32))
        join = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])
        state = jax.lax.associative_scan(join, (decay, value.astype(F32)), axis=1)[1]
        return x + (state.astype(x.dtype) * gate) @ p["out"]

    def loss(p, tokens, targets):
        one = jax.checkpoint(layer)
        x = jax.lax.scan(lambda x, w: (one(x, w), None), p["embed"][tokens], p["layers"])[0]
        return cross_entropy(norm(x, p["norm"]) @ p["head"], targets)

    layers = {"n": shape(n, d), "in": shape(n, d, e), "gate": shape(n, d, e), "decay": shape(n, d, e),
              "out": shape(n, e, d)}  # fmt: skip
    params = {"embed": shape(vocab, d), "layers": layers, "norm": shape(d), "head": shape(d, vocab)}
    tokens = shape(batch, seq, dtype=jnp.int32)
    return training(loss), arguments(params, tokens, tokens)


def dlrm(batch):
    """Recommendation: 64 stacked tables of a million rows, products between features, an MLP."""
    tables, rows, d = 64, 1_048_576, 128

    def loss(p, dense, indices, clicks):
        features = jax.vmap(lambda table, i: table[i], (0, 1), 1)(p["tables"], indices)
        x = jax.nn.relu(dense @ p["bottom"])
        every = jnp.concatenate([x[:, None], features], 1)
        pairs = jnp.einsum("bid,bjd->bij", every, every).reshape(batch, -1)
        x = jax.nn.relu(jnp.concatenate([x, pairs], 1) @ p["top1"])
        y = (jax.nn.relu(x @ p["top2"]) @ p["last"])[:, 0].astype(F32)
        return jnp.mean(jax.nn.softplus(y) - clicks * y)

    params = {"tables": shape(tables, rows, d), "bottom": shape(512, d), "top1": shape(d + 65 * 65, 4096),
              "top2": shape(4096, 4096), "last": shape(4096, 1)}  # fmt: skip
    batch_of = (shape(batch, 512), shape(batch, tables, dtype=jnp.int32), shape(batch, dtype=F32))
    return training(loss), arguments(params, *batch_of)


def convolutions(batch):
    """A residual network of 3 x 3 convolutions in four widths."""
    widths, repeats = (256, 512, 1024, 2048), 4

    def convolve(x, w, stride=1):
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def loss(p, pictures, labels):
        x = convolve(pictures, p["stem"], 4)
        for stage in p["stages"]:
            x = convolve(x, stage["down"], 2)
            one = jax.checkpoint(
                lambda x, w: x + convolve(jax.nn.relu(convolve(x, w["a"])), w["b"])
            )
            x = jax.lax.scan(lambda x, w, one=one: (one(x, w), None), x, stage["layers"])[0]
        return cross_entropy(jnp.mean(x, (1, 2)) @ p["head"], labels)

    stages = [{"down": shape(3, 3, max(w // 2, 256), w),
               "layers": {"a": shape(repeats, 3, 3, w, w), "b": shape(repeats, 3, 3, w, w)}}
              for w in widths]  # fmt: skip
    params = {"stem": shape(7, 7, 3, 256), "stages": stages, "head": shape(2048, 1000)}
    return training(loss), arguments(
        params, shape(batch, 224, 224, 3), shape(batch, dtype=jnp.int32)
    )


def graphs(batch):
    """Message passing on batches of graphs with 512 nodes and 8,192 edges each."""
    n, d, nodes, edges = 8, 1024, 512, 8192

    def loss(p, x, sources, targets, labels):
        def layer(x, w):
            sent = jax.nn.relu(jnp.take_along_axis(x, sources[..., None], 1) @ w["message"])
            got = jax.vmap(lambda s, t: jax.ops.segment_sum(s, t, nodes))(sent, targets)
            return x + jax.nn.relu(got @ w["update"]), None

        x = jax.lax.scan(layer, x @ p["embed"], p["layers"])[0]
        return cross_entropy(x @ p["head"], labels)

    layers = {"message": shape(n, d, 4 * d), "update": shape(n, 4 * d, d)}
    params = {"embed": shape(128, d), "layers": layers, "head": shape(d, 64)}
    ends = shape(batch, edges, dtype=jnp.int32)
    return training(loss), arguments(
        params, shape(batch, nodes, 128), ends, ends, shape(batch, nodes, dtype=jnp.int32)
    )


def diffusion(batch):
    """DiT-XL/2: blocks whose norms hang on the time of the noise."""
    n, d, f = 28, 1152, 4608

    def layer(x, p, time):
        scale, gate = (
            jnp.einsum("bd,dk->bk", time, p[name])[:, None] for name in ("scale", "gated")
        )
        y = norm(x, p["n1"]) * (1 + scale)
        x = x + gate * attention(y, y, p["attention"], causal=False)
        return x + gate * mlp(norm(x, p["n2"]), p["inside"])

    def loss(p, latents, time, noise):
        one = jax.checkpoint(layer)
        x = jax.lax.scan(lambda x, w: (one(x, w, time), None), latents @ p["in"], p["layers"])[0]
        return jnp.mean(jnp.square(norm(x, p["norm"]) @ p["out"] - noise).astype(F32))

    layers = {
        **layers_of(n, d, 16, 16, mlp_shapes(n, d, f)),
        "scale": shape(n, d, d),
        "gated": shape(n, d, d),
    }
    params = {"in": shape(16, d), "layers": layers, "norm": shape(d), "out": shape(d, 16)}
    latents = shape(batch, 256, 16)
    return training(loss), arguments(params, latents, shape(batch, d), latents)
