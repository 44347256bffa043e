"""Gated cells along the length: LSTMs, GRUs and simple ones."""

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
    layer_norm,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import (
    VOCABS,
    WIDTHS,
    Options,
)


def draw_cells(rng: Random) -> Options:
    """Kinds of cells, directions, tasks."""
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


FAMILIES = (Family("gated cells", draw_cells, build_cells, WIDTH_STYLES, 0.2),)
