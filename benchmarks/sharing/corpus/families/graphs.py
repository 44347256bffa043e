"""Networks on the nodes and edges of graphs."""

from __future__ import annotations

import functools
from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.family import WIDTH_STYLES, Family
from benchmarks.sharing.corpus.parts import (
    Arrays,
    layer_norm,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import (
    Options,
)


def draw_graph(rng: Random) -> Options:
    """Sizes of graphs, kinds of layers, tasks."""
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


FAMILIES = (Family("graph network", draw_graph, build_graph, WIDTH_STYLES, 0.2),)
