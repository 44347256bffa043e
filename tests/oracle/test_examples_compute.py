"""The example models compute what they claim: small sizes on four CPU devices, other ways to the
same numbers. Each case runs in its own process, which must choose its devices before jax starts."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.long import long_but

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"dim": 64, "num_layers": 2, "num_heads": 8, "num_kv_heads": 4, "ffn_dim": 128, "vocab": 96}
TOKENS = np.random.default_rng(0).integers(0, SMALL["vocab"], (8, 16))


def example(name: str) -> ModuleType:
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))


def random_like(tree: Any) -> Any:
    """Small normal numbers on the host, the same for every layout; vectors are near one."""
    random = np.random.default_rng(1)

    def values(leaf: Any) -> Any:
        return (random.normal(size=leaf.shape) * 0.1 + (leaf.shape[-1:] == leaf.shape)).astype("f4")

    return jax.tree.map(values, tree)


def losses(step: Callable[..., Any], params: Any) -> list[float]:
    zeros = jax.tree.map(jnp.zeros_like, params)
    moments, count, found = {"m": zeros, "v": zeros}, jnp.int32(0), []
    targets = np.roll(TOKENS, -1, axis=1)
    for _ in range(4):
        params, moments, count, loss = step(params, moments, count, TOKENS, targets)
        found.append(float(loss))
    return found


def llama() -> None:
    """Every way to shard, scan or recompute gives the same falling losses."""
    module, found = example("llama_jax"), []
    c = module.Config(**SMALL)
    for parallel, layers, remat in [("dp", "scan", "none"), ("fsdp+tp+sp", "unrolled", "full")]:
        at = module.Layout(mesh((2, 2), ("data", "model")), parallel)
        params = random_like(module.abstract_params(c, at, "scan", jnp.float32))
        if layers == "unrolled":
            stacked = params["layers"]
            params["layers"] = [jax.tree.map(lambda a, i=i: a[i], stacked) for i in range(2)]
        shapes = module.abstract_params(c, at, layers, jnp.float32)
        params = jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), params, shapes)
        step = jax.jit(functools.partial(module.train_step, c=c, at=at, remat=remat))
        found.append(losses(step, params))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    assert all(np.diff(found[0]) < 0)


def mixtral() -> None:
    """With room for all tokens, both ways to dispatch give the same falling losses."""
    module, found = example("mixtral_jax"), []
    devices = mesh((2, 2), ("data", "expert"))
    for dispatch in module.DISPATCH:
        c = module.Config(**SMALL, head_dim=8, capacity=8.0, dispatch=dispatch)
        shapes = module.abstract_params(c, devices, jnp.float32)
        params = jax.tree.map(
            lambda a, s: jax.device_put(a, s.sharding), random_like(shapes), shapes
        )
        step = jax.jit(functools.partial(module.train_step, c=c, mesh=devices, remat="none"))
        found.append(losses(step, params))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    assert all(np.diff(found[0]) < 0)


def ring_attention() -> None:
    """Output and gradients of a ring of four are those of attention in one piece."""
    module = example("ring_attention_jax")
    c = module.Config(dim=64, num_heads=8, num_kv_heads=4, head_dim=8)
    shapes = {"wq": (64, 8, 8), "wk": (64, 4, 8), "wv": (64, 4, 8), "wo": (8, 8, 64)}
    random = np.random.default_rng(2)
    params = {name: (random.normal(size=s) * 0.2).astype("f4") for name, s in shapes.items()}
    x, gradient = (random.normal(size=(8, 32, 64)).astype("f4") for _ in range(2))

    def whole(params: Any, x: Any) -> Any:
        q, k, v = (jnp.einsum("bsd,dhk->bshk", x, params[n]) for n in ("wq", "wk", "wv"))
        q, k = module.rotary(q, c.rope_theta), module.rotary(k, c.rope_theta)
        k, v = jnp.repeat(k, 2, axis=2), jnp.repeat(v, 2, axis=2)
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return jnp.einsum("bshk,hkd->bsd", out, params["wo"])

    devices = mesh((1, 4), ("data", "seq"))
    step = jax.jit(functools.partial(module.forward_backward, c=c, mesh=devices))
    y, backward = jax.vjp(whole, params, x)
    compare = functools.partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-3)
    jax.tree.map(compare, step(params, x, gradient), (y, *backward(gradient)))


def decode() -> None:
    """Token by token through the cache, the most likely next tokens are those of the full model."""
    module, full = example("decode_jax"), example("llama_jax")
    devices = mesh((2, 2), ("data", "model"))
    c, at = full.Config(**SMALL), full.Layout(devices, "tp")
    params = random_like(full.abstract_params(c, at, "scan", jnp.float32))

    def forward(params: Any, tokens: Any) -> Any:
        x = params["embed"][tokens]
        for i in range(c.num_layers):
            x = full.layer(x, jax.tree.map(lambda a, i=i: a[i], params["layers"]), c, at)
        return jnp.argmax(full.rms_norm(x, params["norm"], c.norm_eps) @ params["head"], axis=-1)

    expected = np.asarray(jax.jit(forward)(params, TOKENS))
    small = module.Config(**SMALL, head_dim=8)
    for name, agree in [("bf16", 1.0), ("int8", 0.9), ("fp8", 0.9)]:
        shape = (c.num_layers, *TOKENS.shape, c.num_kv_heads)
        dtype = jnp.float32 if name == "bf16" else module.CACHE_DTYPES[name]
        cache = {n: jnp.zeros((*shape, 8), dtype) for n in ("k", "v")}
        if name != "bf16":
            cache |= {n: jnp.zeros(shape) for n in ("k_scale", "v_scale")}
        step, position = jax.jit(functools.partial(module.decode_step, c=small, mesh=devices)), 0
        found = np.empty_like(expected)
        for i in range(TOKENS.shape[1]):
            cache, found[:, i], position = step(params, cache, TOKENS[:, i], position)
        assert np.mean(found == expected) >= agree, name


def disaggregated() -> None:
    """The token after a prompt, and those decoded on its cache, are those of the full model."""
    module, full = example("disaggregated_jax"), example("llama_jax")
    devices = mesh((1, 2, 2), ("pool", "data", "model"))
    c, at = full.Config(**SMALL), full.Layout(mesh((2, 2), ("data", "model")), "tp")
    params = random_like(full.abstract_params(c, at, "scan", jnp.float32))
    small, layout = module.Config(**SMALL, head_dim=8), module.Layout(devices, ("model",))

    def forward(params: Any, tokens: Any) -> Any:
        x = params["embed"][tokens]
        for i in range(c.num_layers):
            x = full.layer(x, jax.tree.map(lambda a, i=i: a[i], params["layers"]), c, at)
        x = full.rms_norm(x, params["norm"], c.norm_eps) @ params["head"]
        return jnp.argmax(x[:, -1], axis=-1)

    prefill = jax.jit(functools.partial(module.prefill_step, layout=layout, c=small))
    decode = jax.jit(functools.partial(module.decode_step, layout=layout, c=small))
    tokens, position = TOKENS, jnp.int32(TOKENS.shape[1])
    token, cache = prefill(params, tokens)
    room = [(0, 0), (0, 0), (0, 4), (0, 0), (0, 0)]
    cache = jax.tree.map(lambda x: jnp.pad(x, room), cache)
    for _ in range(4):
        np.testing.assert_array_equal(token, jax.jit(forward)(params, tokens))
        tokens = np.concatenate([tokens, np.asarray(token)[:, None]], axis=1)
        cache, token, position = decode(params, cache, token, position)


def gpt3() -> None:
    """The stages one after another give the loss and gradients of the model written plainly."""
    module = example("gpt3_jax")
    c = module.Config(dim=64, num_layers=2, num_heads=8, seq=16, vocab=96)
    at = module.Layout(mesh((1, 2, 2), ("pipe", "data", "model")))
    one = module.layer_params(c, at)
    shapes = {"embed": module.embed_params(c, at), "layers": [one, one]}
    params = random_like({**shapes, "head": module.head_params(c, at)})
    targets = np.roll(TOKENS, -1, axis=1)

    def staged(params: Any, remat: str) -> Any:
        x = module.embed(params["embed"], TOKENS, c=c, at=at)
        for p in params["layers"]:
            x = module.layer(p, x, c=c, at=at, remat=remat)
        return module.cross_entropy(module.head(params["head"], x, c=c, at=at), targets)

    expected = jax.jit(jax.value_and_grad(plain_gpt))(params, targets)
    for remat in ("none", "selective"):
        found = jax.jit(jax.value_and_grad(functools.partial(staged, remat=remat)))(params)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def plain_gpt(params: Any, targets: Any) -> Any:
    """Pre-norm Transformer with 8 heads, without a word on devices."""

    def norm(x: Any, p: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]

    x = params["embed"]["table"][TOKENS] + params["embed"]["positions"]
    for p in params["layers"]:
        heads = jnp.tensordot(norm(x, p["norm1"]), p["qkv"], 1) + p["qkv_bias"]
        q, k, v = (heads[:, :, i].swapaxes(1, 2) for i in range(3))
        scores = q @ k.swapaxes(2, 3) / np.sqrt(8)
        seen = np.tril(np.ones((16, 16), dtype=bool))
        out = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ v
        x = x + jnp.tensordot(out.swapaxes(1, 2), p["out"], 2) + p["out_bias"]
        up = jax.nn.gelu(norm(x, p["norm2"]) @ p["up"] + p["up_bias"])
        x = x + up @ p["down"] + p["down_bias"]
    logits = norm(x, params["head"]) @ params["head"]["table"].T
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
    return -chosen.mean()


CASES = {c.__name__: c for c in (llama, mixtral, ring_attention, decode, disaggregated, gpt3)}


@pytest.mark.parametrize("case", long_but(["gpt3"], CASES))
def test_example_computes(case: str) -> None:
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, __file__, case]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    CASES[sys.argv[1]]()
