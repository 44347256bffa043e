"""Models of graphs, of pairs of texts and images, and of fields that a grid holds."""

from __future__ import annotations

import functools
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from benchmarks.sharing.corpus.families.vision import drawn_image, first_tokens, image_input
from benchmarks.sharing.corpus.family import WIDTH_STYLES, Family
from benchmarks.sharing.corpus.parts import (
    Arrays,
    attention_weights,
    causal_mask,
    embedded,
    ffn,
    ffn_weights,
    layer_norm,
    picked_entropy,
    self_attention,
    whole,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import LAYERS, VOCABS, Options, drawn_width


def draw_graph(rng: Random) -> Options:
    return {
        "nodes": rng.choice((1024, 4096, 10_000, 65_536)),
        "degree": rng.choice((4, 8, 16, 30)),
        "features": rng.choice((16, 100, 128, 602)),
        "dim": rng.choice((64, 128, 256, 256, 512, 1024)),
        "layers": rng.choice((2, 3, 4, 6, 10, 15)),
        "form": rng.choice(
            ("convolution", "attention", "messages", "messages", "sample", "isomorphism")
        ),
        "heads": rng.choice((1, 4, 8)),
        "edge_features": rng.choice((4, 16, 64)),
        "task": rng.choice(("nodes", "nodes", "graph", "forces")),
        "outputs": rng.choice((1, 7, 47, 172)),
    }


def _graph_weights(o: Options, run: Run) -> Any:
    dim = o["dim"]
    square = Weight((dim, dim), ("embed", "ffn"))
    layer: dict[str, Any] = {"self": square, "scale": Weight((dim,)), "bias": Weight((dim,))}
    if o["form"] == "attention":
        layer |= {"value": square, "from": Weight((o["heads"], dim // o["heads"]))}
        layer["to"] = Weight((o["heads"], dim // o["heads"]))
    elif o["form"] == "messages":
        layer |= {
            "message": Weight((3 * dim, dim), ("embed", "ffn")),
            "message2": square,
            "update": Weight((2 * dim, dim), ("embed", "ffn")),
        }
    elif o["form"] == "isomorphism":
        layer |= {"second": square, "eps": Weight((1,))}
    else:
        layer["other"] = square
    return {
        "first": Weight((o["features"], dim), ("", "ffn")),
        "edges": Weight((o["edge_features"], dim), ("", "ffn")),
        "layers": run.stack(o["layers"], layer),
        "last": Weight((dim, o["outputs"] if o["task"] != "forces" else 1), ("embed", "")),
    }


def _summed(values: Any, to: Any, nodes: int) -> Any:
    return jax.ops.segment_sum(values, to, num_segments=nodes)


def _graph_layer(o: Options, held: Any, p: Arrays, sender: Any, receiver: Any) -> Any:
    """New vectors of nodes and edges of one graph."""
    x, e = held
    nodes = x.shape[0]
    if o["form"] == "attention":
        v = (x @ p["value"]).reshape(nodes, o["heads"], -1)
        score = (v * p["from"]).sum(-1)[sender] + (v * p["to"]).sum(-1)[receiver]
        score = jax.nn.leaky_relu(score.astype(jnp.float32), 0.2)
        score = jnp.exp(score - jax.ops.segment_max(score, receiver, num_segments=nodes)[receiver])
        share = score / (_summed(score, receiver, nodes)[receiver] + 1e-9)
        found = _summed(share[..., None].astype(v.dtype) * v[sender], receiver, nodes)
        return jax.nn.elu(found.reshape(nodes, -1) + x @ p["self"]), e
    if o["form"] == "messages":
        joined = jnp.concatenate([x[sender], x[receiver], e], axis=-1)
        e = e + jax.nn.silu(jax.nn.silu(joined @ p["message"]) @ p["message2"])
        total = _summed(e, receiver, nodes)
        new = jax.nn.silu(jnp.concatenate([x, total], axis=-1) @ p["update"]) @ p["self"]
        return x + layer_norm(new, p["scale"], p["bias"]), e
    total = _summed(x[sender] + e, receiver, nodes)
    if o["form"] == "isomorphism":
        y = jax.nn.relu(((1 + p["eps"]) * x + total) @ p["self"]) @ p["second"]
        return jax.nn.relu(layer_norm(y, p["scale"], p["bias"])), e
    count = _summed(jnp.ones(receiver.shape, x.dtype), receiver, nodes)
    mean = total / jnp.maximum(count, 1)[:, None]
    if o["form"] == "convolution":
        mean = total * jax.lax.rsqrt(jnp.maximum(count, 1))[:, None]
    return jax.nn.relu(layer_norm(x @ p["self"] + mean @ p["other"], p["scale"], p["bias"])), e


def build_graph(o: Options, run: Run) -> Model:
    """Convolutions, attention and messages on graphs; each position of the batch has graphs of its own."""

    def one(params: Any, features: Any, edges: Any, ends: Any) -> Any:
        block = functools.partial(_graph_layer, o, sender=ends[0], receiver=ends[1])
        held = features @ params["first"], edges @ params["edges"]
        x, _ = run.layers(lambda h, p: block(h, p), held, params["layers"])
        x = x.mean(0) if o["task"] == "graph" else x
        return x @ params["last"]

    def outputs(params: Any, features: Any, edges: Any, ends: Any) -> Any:
        return jax.vmap(one, in_axes=(None, 0, 0, 0))(params, features, edges, ends)

    def forward(params: Any, features: Any, edges: Any, ends: Any) -> Any:
        if o["task"] != "forces":
            return outputs(params, features, edges, ends)
        energy = lambda f: outputs(params, f, edges, ends).astype(jnp.float32).sum()
        return -jax.grad(energy)(features)

    def loss(params: Any, features: Any, edges: Any, ends: Any, targets: Any) -> Any:
        found = forward(params, features, edges, ends).astype(jnp.float32)
        return jnp.mean(jnp.square(found - targets))

    batch, nodes = run.plan.batch, o["nodes"]
    count = nodes * o["degree"]
    inputs = (
        Input((batch, nodes, o["features"]), ("batch",)),
        Input((batch, count, o["edge_features"]), ("batch",)),
        Input((batch, 2, count), ("batch",), "int32"),
    )
    shape = {
        "nodes": (nodes, o["outputs"]),
        "graph": (o["outputs"],),
        "forces": (nodes, o["features"]),
    }
    targets = Input((batch, *shape[o["task"]]), ("batch",))
    return Model(forward, loss, _graph_weights(o, run), inputs, (targets,))


def draw_towers(rng: Random) -> Options:
    return {
        **drawn_image(rng),
        **drawn_width(rng, 3072),
        "layers": rng.choice(LAYERS[2:12]),
        "text": drawn_width(rng, 2048),
        "text_layers": rng.choice(LAYERS[2:10]),
        "vocab": rng.choice(VOCABS[:8]),
        "length": rng.choice((32, 64, 77, 77, 128, 256)),
        "shared_dim": rng.choice((256, 512, 768, 1024)),
        "loss": rng.choice(("softmax", "softmax", "sigmoid", "queue")),
        "second": rng.choice(("text", "text", "image")),
        "convolved": rng.random() < 0.5,
        "causal": rng.random() < 0.5,
    }


def _tower(run: Run, o: Options, layers: int, out: int) -> dict[str, Any]:
    dim = o["dim"]
    layer = attention_weights(dim, o["heads"], o["head_dim"]) | ffn_weights(dim, 4 * dim, bias=True)
    layer |= {"in_scale": Weight((dim,)), "mid_scale": Weight((dim,))}
    return {
        "layers": run.stack(layers, layer),
        "scale": Weight((dim,)),
        "out": Weight((dim, out), ("embed", "")),
    }


def _climbed(run: Run, x: Any, p: Arrays, mask: Any = None) -> Any:
    """A tower's vector, of length 1."""

    def block(x: Any, p: Arrays) -> Any:
        x = x + self_attention(run, whole(run, layer_norm(x, p["in_scale"])), p, mask)
        return x + ffn(run, whole(run, layer_norm(x, p["mid_scale"])), p, "gelu")

    x = layer_norm(run.layers(block, x, p["layers"]), p["scale"])
    y = (x.mean(1) @ p["out"]).astype(jnp.float32)
    return y * jax.lax.rsqrt(jnp.square(y).sum(-1, keepdims=True) + 1e-6)


def build_towers(o: Options, run: Run) -> Model:
    """CLIP's and SigLIP's kinds, and two views of one image."""
    is_text = o["second"] == "text"

    def images_of(params: Any, images: Any) -> Any:
        p = params["image"]
        return _climbed(run, first_tokens(o, run, p, images) + p["positions"], p)

    def second_of(params: Any, second: Any) -> Any:
        if not is_text:
            return images_of(params, second)
        p = params["text"]
        x = embedded(run, p["embed"], second) + p["positions"]
        return _climbed(run, x, p, causal_mask(o["length"]) if o["causal"] else None)

    def forward(params: Any, images: Any, second: Any) -> Any:
        a, b = images_of(params, images), second_of(params, second)
        if o["loss"] == "queue":
            b = jnp.concatenate([b, params["queue"].astype(jnp.float32)], axis=0)
        scores = jnp.einsum("id,jd->ij", a, run.pin(b, "", ""))
        scores = scores * jnp.exp(params["temperature"].astype(jnp.float32))
        return run.pin(scores, "batch")

    def loss(params: Any, images: Any, second: Any) -> Any:
        scores = forward(params, images, second)
        same = jnp.arange(scores.shape[0])
        if o["loss"] == "sigmoid":
            sign = 2.0 * (same[:, None] == same) - 1.0
            return jnp.mean(jax.nn.softplus(-sign * (scores - 10.0)).sum(-1))
        found = picked_entropy(scores, same)
        return found if o["loss"] == "queue" else 0.5 * (found + picked_entropy(scores.T, same))

    image: dict[str, Any] = {
        "patches": Weight((3 * o["patch"] ** 2, o["dim"]), ("", "embed")),
        "positions": Weight((o["side"] ** 2, o["dim"])),
        **_tower(run, o, o["layers"], o["shared_dim"]),
    }
    weights: dict[str, Any] = {"image": image, "temperature": Weight(())}
    if is_text:
        size = o["text"]
        weights["text"] = {
            "embed": Weight((o["vocab"], size["dim"]), ("vocab", "embed")),
            "positions": Weight((o["length"], size["dim"])),
            **_tower(run, size, o["text_layers"], o["shared_dim"]),
        }
    if o["loss"] == "queue":
        weights["queue"] = Weight((4096, o["shared_dim"]))
    words = Input((run.plan.batch, o["length"]), ("batch", ""), "int32")
    inputs = image_input(o, run), words if is_text else image_input(o, run)
    return Model(forward, loss, weights, inputs)


def draw_field(rng: Random) -> Options:
    return {
        "grid": rng.choice((64, 128, 256, 512, 1024)),
        "channels": rng.choice((1, 3, 5, 20)),
        "width": rng.choice((32, 48, 64, 128, 256)),
        "layers": rng.choice((2, 4, 4, 8, 12)),
        "steps": rng.choice((1, 1, 4, 16, 64)),
        "form": rng.choice(
            ("filter", "filter", "shifts", "exchange", "exchange", "spectral", "spectral", "upwind")
        ),
        "modes": rng.choice((8, 12, 16, 32)),
        "edge": rng.choice(("wrap", "zero")),
        "residual": rng.random() < 0.7,
        "pushed": rng.random() < 0.4,
    }


def _field_weights(o: Options, run: Run) -> Any:
    width, modes = o["width"], o["modes"]
    layer = {"mix": Weight((width, width), ("embed", "ffn")), "bias": Weight((width,))}
    if o["form"] == "spectral":
        layer |= {name: Weight((width, width, modes, modes)) for name in ("real", "imaginary")}
    elif o["form"] in ("filter", "exchange"):
        layer["filter"] = Weight((3, 3, width, width), ("", "", "embed", "ffn"))
    else:
        layer |= {name: Weight((width,)) for name in ("centre", "x", "y")}
    return {
        "first": Weight((o["channels"], width), ("", "ffn")),
        "layers": run.stack(o["layers"], layer),
        "last": Weight((width, o["channels"]), ("embed", "")),
    }


def _filtered(x: Any, kernel: Any, padding: Any) -> Any:
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _exchanged(o: Options, run: Run, x: Any, kernel: Any) -> Any:
    """A filter over rows that devices hold parts of: each sends its first and last row to neighbours."""
    axes = run.axes("length")
    if not axes or o["grid"] % run.positions("length"):
        return _filtered(x, kernel, "SAME")
    count, axis = run.positions("length"), axes[0]
    spec = P(run.axes("batch") or None, axis)

    def on_device(x: Any, kernel: Any) -> Any:
        wraps = o["edge"] == "wrap"
        down = [(i, (i + 1) % count) for i in range(count) if wraps or i + 1 < count]
        up = [(j, i) for i, j in down]
        above = jax.lax.ppermute(x[:, -1:], axis, down)
        below = jax.lax.ppermute(x[:, :1], axis, up)
        return _filtered(jnp.concatenate([above, x, below], axis=1), kernel, ((0, 0), (1, 1)))

    return jax.shard_map(on_device, mesh=run.mesh, in_specs=(spec, P()), out_specs=spec)(x, kernel)


def _spectral(o: Options, x: Any, p: Arrays) -> Any:
    """Products of low frequencies (arXiv 2010.08895, section 4)."""
    size, modes = o["grid"], o["modes"]
    spectrum = jnp.fft.rfft2(x.astype(jnp.float32), axes=(1, 2))[:, :modes, :modes]
    weight = jax.lax.complex(p["real"].astype(jnp.float32), p["imaginary"].astype(jnp.float32))
    product = jnp.einsum("bxyi,ioxy->bxyo", spectrum, weight)
    rest = ((0, 0), (0, size - modes), (0, size // 2 + 1 - modes), (0, 0))
    return jnp.fft.irfft2(jnp.pad(product, rest), s=(size, size), axes=(1, 2)).astype(x.dtype)


def _shifted(o: Options, x: Any, p: Arrays) -> Any:
    """Differences with neighbours, of both sides or of the side that the flow comes from."""

    def moved(axis: int, by: int) -> Any:
        if o["edge"] == "wrap":
            return jnp.roll(x, by, axis)
        pad = [(0, 0)] * 4
        pad[axis] = (max(by, 0), max(-by, 0))
        size = x.shape[axis]
        return jax.lax.slice_in_dim(jnp.pad(x, pad), max(-by, 0), max(-by, 0) + size, axis=axis)

    if o["form"] == "upwind":
        flow = jnp.tanh(x * p["x"])
        return p["centre"] * x - flow * jnp.where(flow > 0, x - moved(1, 1), moved(1, -1) - x)
    found = p["centre"] * x + p["x"] * (moved(1, 1) + moved(1, -1) - 2 * x)
    return found + p["y"] * (moved(2, 1) + moved(2, -1) - 2 * x)


def build_field(o: Options, run: Run) -> Model:
    """Networks that take a field on a grid some steps ahead; rows of the grid may be sharded."""

    def mixed(x: Any, p: Arrays) -> Any:
        if o["form"] == "spectral":
            return _spectral(o, x, p)
        if o["form"] == "exchange":
            return _exchanged(o, run, x, p["filter"])
        return _filtered(x, p["filter"], "SAME") if o["form"] == "filter" else _shifted(o, x, p)

    def block(x: Any, p: Arrays) -> Any:
        y = run.pin(jax.nn.gelu(mixed(x, p) + x @ p["mix"] + p["bias"]), "batch", "length")
        return x + y if o["residual"] else y

    def ahead(params: Any, field: Any) -> Any:
        x = run.pin(field @ params["first"], "batch", "length")
        return field + run.layers(block, x, params["layers"]) @ params["last"]

    def forward(params: Any, field: Any) -> Any:
        if o["steps"] == 1:
            return ahead(params, field)
        step = lambda f, _: (ahead(params, f).astype(field.dtype), None)
        return jax.lax.scan(step, field, None, length=o["steps"])[0]

    def loss(params: Any, field: Any, later: Any) -> Any:
        start = field + 0.01 * jnp.sin(field) if o["pushed"] else field
        return jnp.mean(jnp.square((forward(params, start) - later).astype(jnp.float32)))

    shape = (run.plan.batch, o["grid"], o["grid"], o["channels"])
    field = Input(shape, ("batch", "length"))
    return Model(forward, loss, _field_weights(o, run), (field,), (field,))


FIELD_STYLES = ("dp", "cp", "cp", "fsdp+cp", "fsdp", "fsdp+cp")
FAMILIES = (
    Family("graph network", draw_graph, build_graph, WIDTH_STYLES, 0.2),
    Family("two towers", draw_towers, build_towers, WIDTH_STYLES, 0.15),
    Family("field on a grid", draw_field, build_field, FIELD_STYLES, 0.25),
)
