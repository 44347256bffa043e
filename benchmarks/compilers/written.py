"""Models as other people write them: little or nothing pinned inside, optimizers, usual layouts.

Each is a training step, or what its name says, of small sizes on a mesh of its own. Weights and
batch are sharded as in the code bases that the names are of; activations are constrained only
where those constrain them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from tests.zoo import Build, Example, shaped

BF16 = jnp.bfloat16
Mesh = AbstractMesh
DIM, HEADS, FFN, VOCAB, LAYERS = 128, 8, 512, 1024, 2
HEAD = DIM // HEADS


# parts --------------------------------------------------------------------------------------------


def layer_norm(x: Any, p: Any) -> Any:
    """Over the last dimension, in float32."""
    x32 = x.astype(jnp.float32)
    mean = x32.mean(-1, keepdims=True)
    var = jnp.square(x32 - mean).mean(-1, keepdims=True)
    return ((x32 - mean) * lax.rsqrt(var + 1e-5)).astype(x.dtype) * p["scale"] + p["bias"]


def attend(q: Any, k: Any, v: Any, *, causal: bool = True) -> Any:
    """(batch, seq, heads, head): softmax in float32, grouped keys repeated."""
    if k.shape[2] != q.shape[2]:
        k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / math.sqrt(q.shape[-1])
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(q.dtype), v)


def cross_entropy(logits: Any, targets: Any) -> Any:
    """As optax has it: the logit of the target is taken, not multiplied out."""
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


def adam(params: Any, grads: Any, moments: Any) -> Any:
    """AdamW in float32 after clipping by the global norm."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(grads)))

    def new(p: Any, g: Any, m: Any, v: Any) -> Any:
        g = g.astype(jnp.float32) * jnp.minimum(1.0, 1.0 / norm)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return (p - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p)).astype(p.dtype), m, v

    made = jax.tree.map(new, params, grads, *moments)
    return tuple(jax.tree.map(lambda _, t, i=i: t[i], params, made) for i in range(3))


def training(loss: Callable[..., Any], params: Any, *batch: Any) -> tuple[Any, tuple[Any, ...]]:
    """A step with Adam whose moments are sharded as the parameters."""

    def step(params: Any, m: Any, v: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return *adam(params, grads, (m, v)), value

    moment = jax.tree.map(
        lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32, sharding=p.sharding), params
    )
    return step, (params, moment, moment, *batch)


# GPT-2, in four layouts ---------------------------------------------------------------------------


def gpt2(
    mesh: Mesh, batch: Any, fsdp: Any = None, tp: Any = None, *, table: Any = None,
    tied: bool = True, kv_heads: int = HEADS, seq: Any = None, scan: bool = True,
) -> Any:  # fmt: skip
    """A GPT-2 with learned positions; `seq` shards the sequence between blocks."""

    def weight(shape: tuple[int, ...], *spec: Any) -> Any:
        return shaped(mesh, (LAYERS, *shape), None, *spec, dtype=BF16)

    def norm_of(stack: bool = True) -> Any:
        make = weight if stack else lambda s: shaped(mesh, s, dtype=BF16)
        return {"scale": make((DIM,)), "bias": make((DIM,))}

    params = {
        "wte": shaped(mesh, (VOCAB, DIM), *(table or (tp, fsdp)), dtype=BF16),
        "wpe": shaped(mesh, (64, DIM), None, fsdp, dtype=BF16),
        "h": {
            "ln1": norm_of(), "ln2": norm_of(),
            "q": weight((DIM, HEADS, HEAD), fsdp, tp),
            "kv": weight((2, DIM, kv_heads, HEAD), None, fsdp, tp),
            "o": weight((HEADS, HEAD, DIM), tp, None, fsdp),
            "up": weight((DIM, FFN), fsdp, tp), "up_bias": weight((FFN,), tp),
            "down": weight((FFN, DIM), tp, fsdp),
        },
        "ln": norm_of(stack=False),
    }  # fmt: skip
    if not tied:
        params["head"] = shaped(mesh, (DIM, VOCAB), fsdp, tp, dtype=BF16)

    def between(x: Any) -> Any:
        return lax.with_sharding_constraint(x, P(batch, seq)) if seq else x

    def block(x: Any, p: Any) -> Any:
        y = layer_norm(x, p["ln1"])
        q = jnp.einsum("bsd,dhk->bshk", y, p["q"])
        k, v = (jnp.einsum("bsd,dhk->bshk", y, p["kv"][i]) for i in (0, 1))
        x = between(x + jnp.einsum("bshk,hkd->bsd", attend(q, k, v), p["o"]))
        y = jax.nn.gelu(layer_norm(x, p["ln2"]) @ p["up"] + p["up_bias"])
        return between(x + y @ p["down"])

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        x = between(params["wte"][tokens] + params["wpe"][: tokens.shape[1]])
        if scan:
            x, _ = lax.scan(lambda x, p: (jax.checkpoint(block)(x, p), None), x, params["h"])
        else:
            for i in range(LAYERS):
                x = block(x, jax.tree.map(lambda w, i=i: w[i], params["h"]))
        x = layer_norm(x, params["ln"])
        return cross_entropy(x @ (params["wte"].T if tied else params["head"]), targets)

    tokens = shaped(mesh, (32, 64), batch, dtype=jnp.int32)
    return training(loss, params, tokens, tokens)


# other models ---------------------------------------------------------------------------------------


def moe(mesh: Mesh, *, pinned: bool, fsdp: bool = False) -> Any:
    """Top-2 routing with capacity as in Mesh TensorFlow and Flaxformer: einsum in and out."""
    experts, capacity, axis = 8, 16, "expert"

    def loss(p: Any, x: Any) -> Any:
        gates = jax.nn.softmax((x @ p["router"]).astype(jnp.float32), -1)
        weight, chosen = lax.top_k(gates, 2)
        hot = jax.nn.one_hot(chosen, experts)  # (group, token, 2, expert)
        place = jnp.cumsum(hot.reshape(hot.shape[0], -1, experts), 1).reshape(hot.shape) - 1
        slots = jax.nn.one_hot((place * hot).sum(-1).astype(jnp.int32), capacity)
        mask = jnp.einsum("gske,gskc->gsec", hot, slots).astype(BF16)
        combine = jnp.einsum("gsk,gske,gskc->gsec", weight, hot, slots).astype(BF16)
        sent = jnp.einsum("gsec,gsd->egcd", mask, x)
        if pinned:
            sent = lax.with_sharding_constraint(sent, P(axis, "data"))
        h = jax.nn.gelu(jnp.einsum("egcd,edf->egcf", sent, p["in"]))
        out = jnp.einsum("egcf,efd->egcd", h, p["out"])
        if pinned:
            out = lax.with_sharding_constraint(out, P(axis, "data"))
        y = jnp.einsum("gsec,egcd->gsd", combine, out)
        return jnp.square((x + y).astype(jnp.float32)).mean()

    inner = "data" if fsdp else None
    params = {
        "router": shaped(mesh, (DIM, experts), dtype=BF16),
        "in": shaped(mesh, (experts, DIM, FFN), axis, inner, dtype=BF16),
        "out": shaped(mesh, (experts, FFN, DIM), axis, None, inner, dtype=BF16),
    }
    return training(loss, params, shaped(mesh, (16, 32, DIM), ("data", axis), dtype=BF16))


def vit(mesh: Mesh, tp: Any = None) -> Any:
    """Patches by a strided convolution, a class token, pooling."""

    def loss(p: Any, images: Any, labels: Any) -> Any:
        x = lax.conv_general_dilated(
            images, p["patch"], (8, 8), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = x.reshape(x.shape[0], -1, DIM)
        x = jnp.concatenate([jnp.tile(p["class"], (x.shape[0], 1, 1)), x], 1) + p["positions"]
        for w in p["blocks"]:
            y = layer_norm(x, w["ln"])
            q, k, v = jnp.split((y @ w["qkv"]).reshape(*y.shape[:2], HEADS, -1), 3, -1)
            x = x + attend(q, k, v, causal=False).reshape(x.shape) @ w["o"]
            x = x + jax.nn.gelu(layer_norm(x, w["ln"]) @ w["up"], approximate=False) @ w["down"]
        return cross_entropy(x[:, 0] @ p["head"], labels)

    def block() -> Any:
        return {
            "ln": {"scale": shaped(mesh, (DIM,)), "bias": shaped(mesh, (DIM,))},
            "qkv": shaped(mesh, (DIM, 3 * DIM), None, tp),
            "o": shaped(mesh, (DIM, DIM), tp),
            "up": shaped(mesh, (DIM, FFN), None, tp),
            "down": shaped(mesh, (FFN, DIM), tp),
        }

    params = {
        "patch": shaped(mesh, (8, 8, 3, DIM)),
        "class": shaped(mesh, (1, 1, DIM)),
        "positions": shaped(mesh, (1, 65, DIM)),
        "blocks": [block() for _ in range(LAYERS)],
        "head": shaped(mesh, (DIM, 100)),
    }
    images = shaped(mesh, (32, 64, 64, 3), "data")
    return training(loss, params, images, shaped(mesh, (32,), "data", dtype=jnp.int32))


def unet(mesh: Mesh, *spec: Any) -> Any:
    """Two levels down and up with skips, group norm, a time embedding, noise from a key."""

    def conv(x: Any, k: Any, stride: int = 1) -> Any:
        names = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, k, (stride, stride), "SAME", dimension_numbers=names)

    def norm(x: Any) -> Any:
        y = x.reshape(*x.shape[:3], 4, -1)
        mean, var = y.mean((1, 2, 4), keepdims=True), y.var((1, 2, 4), keepdims=True)
        return ((y - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape)

    def loss(p: Any, x: Any, t: Any, key: Any) -> Any:
        noise = jax.random.normal(jax.random.wrap_key_data(key), x.shape)
        y = x + noise * t[:, None, None, None]
        time = jax.nn.silu(t[:, None] * p["time"])
        h1 = jax.nn.silu(norm(conv(y, p["in"]))) + time[:, None, None]
        h2 = jax.nn.silu(norm(conv(h1, p["down"], 2)))
        h2 = h2 + conv(jax.nn.silu(norm(h2)), p["mid"])
        up = jax.image.resize(h2, (*h1.shape[:3], h2.shape[3]), "nearest")
        out = conv(jnp.concatenate([conv(up, p["up"]), h1], -1), p["out"])
        return jnp.square(out - noise).mean()

    kernels = {"in": (3, 16), "down": (16, 32), "mid": (32, 32), "up": (32, 16), "out": (32, 3)}
    params = {n: shaped(mesh, (3, 3, *io)) for n, io in kernels.items()}
    params["time"] = shaped(mesh, (1, 16))
    x = shaped(mesh, (16, 32, 32, 3), *spec)
    key = shaped(mesh, (2,), dtype=jnp.uint32)
    return training(loss, params, x, shaped(mesh, (16,), "data"), key)


def ssm(mesh: Mesh, *, scan: str) -> Any:
    """A gated diagonal state space layer (Mamba's form), channels over `model`."""

    def loss(p: Any, x: Any) -> Any:
        u, gate = jnp.split(x @ p["in"], 2, -1)
        step = jax.nn.softplus(u * p["step"])
        decay, drive = jnp.exp(-step[..., None] * p["a"]), step[..., None] * u[..., None] * p["b"]
        if scan == "associative":

            def join(a: Any, b: Any) -> Any:
                return a[0] * b[0], a[1] * b[0] + b[1]

            _, h = lax.associative_scan(join, (decay, drive), axis=1)
        else:

            def turn(h: Any, t: Any) -> Any:
                h = h * t[0] + t[1]
                return h, h

            over = tuple(jnp.moveaxis(a, 1, 0) for a in (decay, drive))
            h = jnp.moveaxis(lax.scan(turn, jnp.zeros_like(over[0][0]), over)[1], 0, 1)
        y = (h * p["c"]).sum(-1) * jax.nn.silu(gate)
        return jnp.square(x + y @ p["out"]).mean()

    params = {
        "in": shaped(mesh, (DIM, 512), None, "model"),
        "step": shaped(mesh, (256,), "model"),
        "a": shaped(mesh, (256, 8), "model"), "b": shaped(mesh, (256, 8), "model"),
        "c": shaped(mesh, (256, 8), "model"),
        "out": shaped(mesh, (256, DIM), "model"),
    }  # fmt: skip
    return training(loss, params, shaped(mesh, (16, 32, DIM), "data"))


def lstm(mesh: Mesh) -> Any:
    """An LSTM over time: gates over `model`, batch over `data`."""

    def loss(p: Any, x: Any) -> Any:
        def turn(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(x @ p["wx"] + h @ p["wh"] + p["bias"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((x.shape[0], 256))
        _, hs = lax.scan(turn, (zero, zero), jnp.moveaxis(x, 1, 0))
        return jnp.square(hs).mean()

    params = {
        "wx": shaped(mesh, (DIM, 1024), None, "model"),
        "wh": shaped(mesh, (256, 1024), None, "model"),
        "bias": shaped(mesh, (1024,), "model"),
    }
    return training(loss, params, shaped(mesh, (32, 16, DIM), "data"))


def pipeline(mesh: Mesh) -> Any:
    """Microbatches through stages over `pipe`, in shard_map with a permute for each turn."""
    stages = mesh.shape["pipe"]

    def body(w: Any, x: Any) -> Any:
        here = lax.axis_index("pipe")
        ring = [(i, (i + 1) % stages) for i in range(stages)]

        def turn(carry: Any, t: Any) -> Any:
            held, out = carry
            held = jnp.where(here == 0, x[jnp.minimum(t, x.shape[0] - 1)], held)
            made = jax.nn.gelu(held @ w[0])
            at = jnp.maximum(t - stages + 1, 0)
            out = lax.dynamic_update_index_in_dim(out, made, at, 0)
            return (lax.ppermute(made, "pipe", ring), out), None

        start = jnp.zeros_like(x[0]), jnp.zeros_like(x)
        (_, out), _ = lax.scan(turn, start, jnp.arange(x.shape[0] + stages - 1))
        return lax.psum(jnp.where(here == stages - 1, out, 0), "pipe")

    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=(P("pipe"), P(None, "data")), out_specs=P(None, "data"),
        check_vma=False,
    )  # fmt: skip
    weights = shaped(mesh, (stages, DIM, DIM), "pipe")
    batch = shaped(mesh, (8, 32, DIM), None, "data")
    return training(lambda w, x: jnp.square(mapped(w, x)).mean(), weights, batch)


def ulysses(mesh: Mesh) -> Any:
    """Attention over a sharded sequence: heads are exchanged for sequence and back."""

    def body(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (lax.all_to_all(x, "seq", 2, 1, tiled=True) for x in (q, k, v))
        return lax.all_to_all(attend(q, k, v), "seq", 1, 2, tiled=True)

    spec = P("data", "seq")
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    q = shaped(mesh, (4, 64, HEADS, HEAD), "data", "seq", dtype=BF16)
    return jax.grad(lambda *a: mapped(*a).astype(jnp.float32).sum(), argnums=(0, 1, 2)), (q, q, q)


def context(mesh: Mesh) -> Any:
    """Attention whose queries stay sharded over the sequence; keys and values are gathered."""

    def loss(p: Any, x: Any) -> Any:
        q, k, v = (jnp.einsum("bsd,dhk->bshk", x, p[n]) for n in ("q", "k", "v"))
        k, v = (lax.with_sharding_constraint(t, P("data")) for t in (k, v))
        y = jnp.einsum("bshk,hkd->bsd", attend(q, k, v), p["o"])
        return jnp.square((x + y).astype(jnp.float32)).mean()

    heads = shaped(mesh, (DIM, HEADS, HEAD), dtype=BF16)
    params = {"q": heads, "k": heads, "v": heads, "o": shaped(mesh, (HEADS, HEAD, DIM), dtype=BF16)}
    return training(loss, params, shaped(mesh, (8, 64, DIM), "data", "seq", dtype=BF16))


def decode(mesh: Mesh, *, kv_heads: int = HEADS) -> Any:
    """Tokens from a cache that is sharded over batch and heads, one written at a time."""

    def one(carry: Any, _: Any, p: Any) -> Any:
        cache, x, at = carry
        q = jnp.einsum("bd,dhk->bhk", x, p["q"])
        new = jnp.einsum("bd,cdhk->cbhk", x, p["kv"])
        cache = lax.dynamic_update_slice(cache, new[:, :, None], (0, 0, at, 0, 0))
        k, v = cache[0], cache[1]
        y = attend(q[:, None], k, v, causal=False)[:, 0]
        x = x + jnp.einsum("bhk,hkd->bd", y, p["o"])
        x = x + jax.nn.gelu(x @ p["up"]) @ p["down"]
        token = jnp.argmax(x @ p["wte"].T, -1)
        return (cache, p["wte"][token], at + 1), token

    def step(p: Any, cache: Any, token: Any, at: Any) -> Any:
        return lax.scan(lambda c, t: one(c, t, p), (cache, p["wte"][token], at), None, length=4)

    kv = "model" if kv_heads % mesh.shape["model"] == 0 else None
    params = {
        "wte": shaped(mesh, (VOCAB, DIM), "model", dtype=BF16),
        "q": shaped(mesh, (DIM, HEADS, HEAD), None, "model", dtype=BF16),
        "kv": shaped(mesh, (2, DIM, kv_heads, HEAD), None, None, kv, dtype=BF16),
        "o": shaped(mesh, (HEADS, HEAD, DIM), "model", dtype=BF16),
        "up": shaped(mesh, (DIM, FFN), None, "model", dtype=BF16),
        "down": shaped(mesh, (FFN, DIM), "model", dtype=BF16),
    }
    cache = shaped(mesh, (2, 16, 64, kv_heads, HEAD), None, "data", None, kv, dtype=BF16)
    tokens = shaped(mesh, (16,), "data", dtype=jnp.int32)
    return step, (params, cache, tokens, shaped(mesh, (), dtype=jnp.int32))


def dlrm(mesh: Mesh) -> Any:
    """Tables over the rows of `model`, bags of ids over `data`, pairwise interactions."""

    def loss(p: Any, dense: Any, ids: Any, label: Any) -> Any:
        looked = jax.vmap(lambda t, i: t[i].sum(1), (0, 1), 1)(p["tables"], ids)
        x = jnp.concatenate([jax.nn.relu(dense @ p["bottom"])[:, None], looked], 1)
        pairs = jnp.einsum("bid,bjd->bij", x, x).reshape(x.shape[0], -1)
        logit = (pairs @ p["top"])[:, 0]
        return jnp.mean(jnp.logaddexp(0.0, logit) - label * logit)

    params = {
        "tables": shaped(mesh, (8, 4096, 32), "model"),
        "bottom": shaped(mesh, (13, 32)),
        "top": shaped(mesh, (81, 1)),
    }
    ids = shaped(mesh, (256, 8, 4), "data", dtype=jnp.int32)
    return training(
        loss, params, shaped(mesh, (256, 13), "data"), ids, shaped(mesh, (256,), "data")
    )


def clip(mesh: Mesh) -> Any:
    """Contrastive loss over the whole batch: every image against every text."""

    def loss(p: Any, image: Any, text: Any) -> Any:
        a, b = (x @ p[n] for x, n in ((image, "image"), (text, "text")))
        a, b = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
        logits = a @ b.T * jnp.exp(p["scale"])
        target = jnp.arange(logits.shape[0])
        return cross_entropy(logits, target) + cross_entropy(logits.T, target)

    params = {
        "image": shaped(mesh, (256, DIM)), "text": shaped(mesh, (192, DIM)),
        "scale": shaped(mesh, ()),
    }  # fmt: skip
    return training(loss, params, shaped(mesh, (64, 256), "data"), shaped(mesh, (64, 192), "data"))


def graph(mesh: Mesh) -> Any:
    """Message passing: edges over `data`, nodes on every device, sums by segment."""

    def loss(p: Any, nodes: Any, source: Any, target: Any) -> Any:
        for w in p:
            sent = jax.nn.relu(nodes[source] @ w)
            nodes = nodes + jax.ops.segment_sum(sent, target, nodes.shape[0])
        return jnp.square(nodes).mean()

    edges = shaped(mesh, (4096,), "data", dtype=jnp.int32)
    weights = [shaped(mesh, (64, 64)) for _ in range(2)]
    return training(loss, weights, shaped(mesh, (512, 64)), edges, edges)


def accumulated(mesh: Mesh) -> Any:
    """FSDP with gradients summed over microbatches in a loop."""

    def loss(p: Any, x: Any) -> Any:
        for w_in, w_out in p:
            x = x + jax.nn.gelu(x @ w_in) @ w_out
        return jnp.square(x).mean()

    def step(p: Any, x: Any) -> Any:
        def turn(total: Any, x: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(p, x)), None

        total, _ = lax.scan(turn, jax.tree.map(jnp.zeros_like, p), x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, total)

    weights = [
        (shaped(mesh, (DIM, FFN), "data"), shaped(mesh, (FFN, DIM), None, "data")) for _ in range(2)
    ]
    return step, (weights, shaped(mesh, (4, 64, DIM), None, "data"))


def adafactor(mesh: Mesh) -> Any:
    """Factored second moments of sharded weights: means over rows and columns."""

    def step(w: Any, row: Any, column: Any, x: Any) -> Any:
        g = jax.grad(lambda w: jnp.square(jnp.tanh(x @ w)).mean())(w)
        row = 0.9 * row + 0.1 * jnp.square(g).mean(1)
        column = 0.9 * column + 0.1 * jnp.square(g).mean(0)
        scale = lax.rsqrt(row[:, None] * column[None] / row.mean() + 1e-30)
        update = g * scale
        return w - update / jnp.maximum(1.0, jnp.sqrt(jnp.square(update).mean())), row, column

    return step, (
        shaped(mesh, (256, 512), "data", "model"),
        shaped(mesh, (256,), "data"),
        shaped(mesh, (512,), "model"),
        shaped(mesh, (64, 256), "data"),
    )


def muon(mesh: Mesh) -> Any:
    """Newton-Schulz iterations on a momentum that is sharded as its weight."""

    def step(w: Any, m: Any, x: Any) -> Any:
        g = jax.grad(lambda w: jnp.square(x @ w).mean())(w)
        m = 0.95 * m + g
        y = m / (jnp.linalg.norm(m) + 1e-7)
        for _ in range(3):
            a = y @ y.T
            y = 3.4445 * y + (-4.775 * a + 2.0315 * a @ a) @ y
        return w - 0.02 * y, m

    w = shaped(mesh, (256, 512), "data", "model")
    return step, (w, w, shaped(mesh, (64, 256), "data"))


def lora(mesh: Mesh) -> Any:
    """Adapters on frozen weights that are sharded over `model`."""

    def loss(adapters: Any, frozen: Any, x: Any) -> Any:
        for (a, b), (up, down) in zip(adapters, frozen, strict=True):
            x = x + jax.nn.silu(x @ up + x @ a @ b) @ down
        return jnp.square(x.astype(jnp.float32)).mean()

    adapter = shaped(mesh, (DIM, 8), dtype=BF16), shaped(mesh, (8, FFN), None, "model", dtype=BF16)
    frozen = (
        shaped(mesh, (DIM, FFN), None, "model", dtype=BF16),
        shaped(mesh, (FFN, DIM), "model", dtype=BF16),
    )
    x = shaped(mesh, (16, 32, DIM), "data", dtype=BF16)
    return training(loss, [adapter] * 2, [frozen] * 2, x)


def encoder_decoder(mesh: Mesh) -> Any:
    """T5's form: relative position biases, cross attention, a shared table over `model`."""

    def bias(table: Any, n: int) -> Any:
        distance = jnp.arange(n)[None] - jnp.arange(n)[:, None]
        return table[jnp.clip(distance + 16, 0, 31)].transpose(2, 0, 1)[None]

    def attention(p: Any, x: Any, y: Any, b: Any) -> Any:
        q, k, v = (jnp.einsum("bsd,dhk->bshk", s, p[n]) for s, n in ((x, "q"), (y, "k"), (y, "v")))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + b
        out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
        return x + jnp.einsum("bshk,hkd->bsd", out, p["o"])

    def loss(p: Any, source: Any, target: Any) -> Any:
        x, y = p["table"][source], p["table"][target]
        x = attention(p["enc"], x, x, bias(p["bias"], x.shape[1]))
        y = attention(p["dec"], y, y, bias(p["bias"], y.shape[1]))
        y = attention(p["cross"], y, x, 0.0)
        y = y + jax.nn.relu(y @ p["up"]) @ p["down"]
        return cross_entropy(y @ p["table"].T, target)

    def heads() -> Any:
        into = shaped(mesh, (DIM, HEADS, HEAD), None, "model")
        return {"q": into, "k": into, "v": into, "o": shaped(mesh, (HEADS, HEAD, DIM), "model")}

    params = {
        "table": shaped(mesh, (VOCAB, DIM), "model"),
        "bias": shaped(mesh, (32, HEADS), None, "model"),
        "enc": heads(), "dec": heads(), "cross": heads(),
        "up": shaped(mesh, (DIM, FFN), None, "model"), "down": shaped(mesh, (FFN, DIM), "model"),
    }  # fmt: skip
    source = shaped(mesh, (16, 32), "data", dtype=jnp.int32)
    return training(loss, params, source, shaped(mesh, (16, 16), "data", dtype=jnp.int32))


def mixer(mesh: Mesh) -> Any:
    """MLP-Mixer: products over tokens, then over channels, both over `model`."""

    def loss(p: Any, x: Any) -> Any:
        for w in p:
            x = x + jnp.einsum("bhd,hs->bsd", jax.nn.gelu(jnp.einsum("bsd,sh->bhd", x, w[0])), w[1])
            x = x + jax.nn.gelu(x @ w[2]) @ w[3]
        return jnp.square(x).mean()

    weights = (
        shaped(mesh, (64, 256), None, "model"), shaped(mesh, (256, 64), "model"),
        shaped(mesh, (DIM, FFN), None, "model"), shaped(mesh, (FFN, DIM), "model"),
    )  # fmt: skip
    return training(loss, [weights] * 2, shaped(mesh, (16, 64, DIM), "data"))


def dropout(mesh: Mesh) -> Any:
    """An MLP with dropout: random bits of a sharded activation."""

    def loss(p: Any, x: Any, key: Any) -> Any:
        h = jax.nn.relu(x @ p[0])
        keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, h.shape)
        return jnp.square(jnp.where(keep, h / 0.9, 0) @ p[1]).mean()

    weights = shaped(mesh, (DIM, FFN), None, "model"), shaped(mesh, (FFN, DIM), "model")
    key = shaped(mesh, (2,), dtype=jnp.uint32)
    return training(loss, weights, shaped(mesh, (64, DIM), "data"), key)


D8 = {"data": 8}
GRID = {"data": 4, "model": 4}
PROGRAMS: dict[str, tuple[dict[str, int], Build]] = {
    "gpt2 data": (D8, lambda m: gpt2(m, "data")),
    "gpt2 fsdp": (D8, lambda m: gpt2(m, "data", "data")),
    "gpt2 fsdp unrolled": (D8, lambda m: gpt2(m, "data", "data", scan=False)),
    "gpt2 fsdp untied": (D8, lambda m: gpt2(m, "data", "data", tied=False)),
    "gpt2 fsdp table by rows": (D8, lambda m: gpt2(m, "data", "data", table=("data",))),
    "gpt2 tp": (GRID, lambda m: gpt2(m, "data", tp="model")),
    "gpt2 fsdp tp": (GRID, lambda m: gpt2(m, "data", "data", "model")),
    "gpt2 fsdp tp table by hidden": (
        GRID, lambda m: gpt2(m, "data", "data", "model", table=(None, ("data", "model")))),
    "gpt2 fsdp tp sp": (GRID, lambda m: gpt2(m, "data", "data", "model", seq="model")),
    "gqa tp sp": (GRID, lambda m: gpt2(m, "data", None, "model", seq="model", kv_heads=4)),
    "gqa tp unrolled": (GRID, lambda m: gpt2(m, "data", None, "model", kv_heads=4, scan=False)),
    "moe top-2": ({"data": 2, "expert": 4}, lambda m: moe(m, pinned=False)),
    "moe top-2 pinned": ({"data": 2, "expert": 4}, lambda m: moe(m, pinned=True)),
    "moe top-2 fsdp": ({"data": 4, "expert": 4}, lambda m: moe(m, pinned=True, fsdp=True)),
    "vit data": (D8, vit),
    "vit tp": (GRID, lambda m: vit(m, "model")),
    "unet data": (D8, lambda m: unet(m, "data")),
    "unet spatial": ({"data": 4, "space": 2}, lambda m: unet(m, "data", "space")),
    "ssm scan": (GRID, lambda m: ssm(m, scan="loop")),
    "ssm associative": (GRID, lambda m: ssm(m, scan="associative")),
    "lstm": (GRID, lstm),
    "pipeline shard_map": ({"pipe": 4, "data": 2}, pipeline),
    "ulysses": ({"data": 2, "seq": 4}, ulysses),
    "context parallel": ({"data": 2, "seq": 4}, context),
    "decode cache": ({"data": 2, "model": 4}, decode),
    "decode cache, 2 kv heads": ({"data": 2, "model": 4}, lambda m: decode(m, kv_heads=2)),
    "dlrm": (GRID, dlrm),
    "clip": (D8, clip),
    "graph network": (D8, graph),
    "accumulated fsdp": (D8, accumulated),
    "adafactor": (GRID, adafactor),
    "muon": (GRID, muon),
    "lora tp": (GRID, lora),
    "encoder decoder tp": (GRID, encoder_decoder),
    "mixer tp": (GRID, mixer),
    "dropout mlp": (GRID, dropout),
}  # fmt: skip


def written() -> dict[str, Example]:
    """Every program by name."""
    return {name: Example(name, sizes, build) for name, (sizes, build) in PROGRAMS.items()}
