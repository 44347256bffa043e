"""Networks that take a field on a grid some steps ahead."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from benchmarks.sharing.corpus.family import Family
from benchmarks.sharing.corpus.parts import (
    Arrays,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import (
    Options,
)


def draw_field(rng: Random) -> Options:
    """Grids, how neighbours are read, steps."""
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
FAMILIES = (Family("field on a grid", draw_field, build_field, FIELD_STYLES, 0.25),)
