"""Recommenders and plain networks of products."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.family import WIDTH_STYLES, Family
from benchmarks.sharing.corpus.parts import ACTIVATIONS, Arrays, layer_norm
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import WIDTHS, Options


def draw_recommender(rng: Random) -> Options:
    """Tables, networks, and what crosses fields."""
    dim = rng.choice((16, 32, 64, 96, 128, 256))
    return {
        "dim": dim,
        "tables": rng.choice((4, 8, 13, 20, 26, 40)),
        "rows": rng.choice((100_000, 1_000_000, 4_000_000, 10_000_000)),
        "hot": rng.choice((1, 1, 8, 20, 100)),
        "stacked": rng.random() < 0.6,
        "dense": rng.choice((13, 64, 256)),
        "bottom": [rng.choice((256, 512, 1024)) for _ in range(rng.choice((1, 2, 3)))],
        "top": [rng.choice((256, 512, 1024, 2048)) for _ in range(rng.choice((1, 2, 3, 4)))],
        "crossing": rng.choice(("dot", "dot", "cross", "concatenated", "attention", "machine")),
        "crosses": rng.choice((2, 3, 4)),
        "by": rng.choice(("rows", "columns")),
    }


def _mlp_weights(sizes: list[int]) -> list[dict[str, Weight]]:
    """Products between these widths, cut over the result and then over the sum in turn."""
    found = []
    for i, (m, n) in enumerate(pairwise(sizes)):
        names = ("embed", "ffn") if i % 2 == 0 else ("ffn", "embed")
        found.append(
            {"w": Weight((m, n), names), "b": Weight((n,), ("ffn",) if i % 2 == 0 else ())}
        )
    return found


def _mlp(x: Any, layers: list[Arrays], activation: str = "relu", *, last: bool = True) -> Any:
    for i, p in enumerate(layers):
        x = x @ p["w"] + p["b"]
        x = ACTIVATIONS[activation](x) if last or i + 1 < len(layers) else x
    return x


def _recommender_weights(o: Options) -> Any:
    dim, fields = o["dim"], o["tables"] + 1
    cut = ("rows", "") if o["by"] == "rows" else ("", "rows")
    if o["stacked"]:
        tables: Any = Weight((o["tables"], o["rows"], dim), ("", *cut))
    else:
        tables = [Weight((o["rows"] // (1 + i % 3), dim), cut) for i in range(min(o["tables"], 8))]
        fields = len(tables) + 1
    width = {
        "dot": dim + fields * (fields - 1) // 2,
        "machine": dim + dim,
        "attention": fields * dim,
    }.get(o["crossing"], fields * dim)
    found = {
        "tables": tables,
        "bottom": _mlp_weights([o["dense"], *o["bottom"], dim]),
        "top": _mlp_weights([width, *o["top"], 1]),
    }
    if o["crossing"] == "cross":
        one = {"w": Weight((width, width), ("embed", "ffn")), "b": Weight((width,))}
        found["crosses"] = [one] * o["crosses"]
    if o["crossing"] == "attention":
        found["mix"] = [Weight((dim, dim)) for _ in range(3)]
    return found


def _looked_up(o: Options, tables: Any, ids: Any) -> Any:
    """Vectors (b, tables, dim) of ids (b, tables, hot), summed over those of one table."""
    if o["stacked"]:
        rows = jax.vmap(lambda t, i: t[i], in_axes=(0, 1), out_axes=1)(tables, ids)
    else:
        rows = jnp.stack([t[ids[:, i]] for i, t in enumerate(tables)], axis=1)
    return rows.sum(2)


def _crossed(o: Options, params: Any, dense: Any, fields: Any) -> Any:
    """What the top network reads: fields (b, f, d) with each other."""
    batch, count, dim = fields.shape
    if o["crossing"] == "dot":
        products = jnp.einsum("bfd,bgd->bfg", fields, fields)
        upper, right = jnp.triu_indices(count, 1)
        return jnp.concatenate([dense, products[:, upper, right]], axis=-1)
    if o["crossing"] == "machine":
        pairs = jnp.square(fields.sum(1)) - jnp.square(fields).sum(1)
        return jnp.concatenate([dense, 0.5 * pairs], axis=-1)
    if o["crossing"] == "attention":
        q, k, v = (jnp.einsum("bfd,de->bfe", fields, w) for w in params["mix"])
        scores = jax.nn.softmax(jnp.einsum("bfd,bgd->bfg", q, k).astype(jnp.float32), axis=-1)
        return (fields + jnp.einsum("bfg,bgd->bfd", scores.astype(v.dtype), v)).reshape(batch, -1)
    x = first = fields.reshape(batch, count * dim)
    for p in params.get("crosses", ()):
        x = first * (x @ p["w"] + p["b"]) + x
    return x


def build_recommender(o: Options, run: Run) -> Model:
    """DLRM's, DCN's and factorisation machines' kinds."""

    def forward(params: Any, dense: Any, ids: Any) -> Any:
        bottom = _mlp(run.pin(dense, "batch"), params["bottom"])
        fields = run.pin(_looked_up(o, params["tables"], ids), "batch")
        fields = jnp.concatenate([bottom[:, None], fields], axis=1)
        return _mlp(
            run.pin(_crossed(o, params, bottom, fields), "batch"), params["top"], last=False
        )[:, 0]

    def loss(params: Any, dense: Any, ids: Any, clicks: Any) -> Any:
        logits = forward(params, dense, ids).astype(jnp.float32)
        return jnp.mean(
            jnp.maximum(logits, 0) - logits * clicks + jnp.log1p(jnp.exp(-jnp.abs(logits)))
        )

    batch = run.plan.batch * 128
    tables = o["tables"] if o["stacked"] else min(o["tables"], 8)
    ids = Input((batch, tables, o["hot"]), ("batch",), "int32")
    inputs = Input((batch, o["dense"]), ("batch",)), ids
    return Model(forward, loss, _recommender_weights(o), inputs, (Input((batch,), ("batch",)),))


def draw_plain(rng: Random) -> Options:
    """Widths and kinds of layers, ensembles."""
    return {
        "inputs": rng.choice((16, 64, 100, 784, 1024, 4096)),
        "width": rng.choice((*WIDTHS, 12_288, 16_384)),
        "layers": rng.choice((2, 3, 4, 6, 8, 12, 16, 32, 64)),
        "outputs": rng.choice((1, 10, 128, 1000)),
        "form": rng.choice(("plain", "residual", "residual", "gated", "ensemble", "bottleneck")),
        "members": rng.choice((4, 8, 16)),
        "activation": rng.choice(("relu", "gelu", "tanh", "silu")),
        "norm": rng.random() < 0.4,
        "slopes": rng.random() < 0.2,
    }


def _plain_weights(o: Options, run: Run) -> Any:
    width, inner = o["width"], o["width"] // 4 if o["form"] == "bottleneck" else o["width"]
    layer = {"in": Weight((width, inner), ("embed", "ffn")), "b": Weight((inner,), ("ffn",))}
    if o["form"] != "plain":
        layer["out"] = Weight((inner, width), ("ffn", "embed"))
    if o["form"] == "gated":
        layer["gate"] = Weight((width, inner), ("embed", "ffn"))
    if o["norm"]:
        layer["scale"] = Weight((width,))
    found = {
        "first": Weight((o["inputs"], width), ("", "embed")),
        "layers": run.stack(o["layers"], layer),
        "last": Weight((width, o["outputs"]), ("embed", "")),
    }
    if o["form"] != "ensemble":
        return found
    return jax.tree.map(
        lambda w: Weight((o["members"], *w.shape), ("", *w.names)),
        found,
        is_leaf=lambda w: isinstance(w, Weight),
    )


def build_plain(o: Options, run: Run) -> Model:
    """Regression by products and activations; `slopes` also fits the gradient by the inputs."""
    act = ACTIVATIONS[o["activation"]]

    def block(x: Any, p: Arrays) -> Any:
        y = layer_norm(x, p["scale"]) if o["norm"] else x
        hidden = act(y @ p["in"] + p["b"])
        hidden = hidden * (y @ p["gate"]) if "gate" in p else hidden
        return x + hidden @ p["out"] if "out" in p else hidden

    def one(params: Any, x: Any) -> Any:
        return run.layers(block, x @ params["first"], params["layers"]) @ params["last"]

    def forward(params: Any, x: Any) -> Any:
        if o["form"] == "ensemble":
            return jax.vmap(one, in_axes=(0, None))(params, x).mean(0)
        return one(params, x)

    def loss(params: Any, x: Any, y: Any) -> Any:
        found = jnp.mean(jnp.square((forward(params, x) - y).astype(jnp.float32)))
        if not o["slopes"]:
            return found
        slopes = jax.grad(lambda z: forward(params, z).astype(jnp.float32).sum())(x)
        return found + jnp.mean(jnp.square(slopes.astype(jnp.float32)))

    batch = run.plan.batch * 64
    inputs, targets = (
        Input((batch, o["inputs"]), ("batch",)),
        Input((batch, o["outputs"]), ("batch",)),
    )
    return Model(forward, loss, _plain_weights(o, run), (inputs,), (targets,))


FAMILIES = (
    Family("recommender", draw_recommender, build_recommender, WIDTH_STYLES, 0.2),
    Family("plain network", draw_plain, build_plain, WIDTH_STYLES, 0.2),
)
