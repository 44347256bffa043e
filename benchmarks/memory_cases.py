"""The JAX examples at sizes that a machine without accelerators compiles in seconds.

Eight devices each. Arithmetic is float32, which XLA for CPUs would turn bfloat16 into.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

import flint

ROOT = Path(__file__).resolve().parents[1]
Make = Callable[[Any], flint.Step]


@dataclasses.dataclass(frozen=True)
class Case:
    """One step: `make` builds it for a mesh of `axes`."""

    axes: Mapping[str, int]
    make: Make


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"memory_{name}", ROOT / f"examples/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _in_f32(step: flint.Step) -> flint.Step:
    """The step on arguments in float32."""

    def wide(a: Any) -> Any:
        dtype = jnp.float32 if a.dtype == jnp.bfloat16 else a.dtype
        return jax.ShapeDtypeStruct(a.shape, dtype, sharding=a.sharding)

    return dataclasses.replace(step, args=jax.tree.map(wide, tuple(step.args)))


def _llama(
    parallel: str = "fsdp+tp",
    layers: str = "scan",
    remat: str = "full",
    axes: tuple[int, int] = (4, 2),
    seq: int = 256,
    **sizes: int,
) -> Case:
    module = _example("llama_jax")
    small = {"dim": 256, "num_layers": 4, "num_heads": 8, "ffn_dim": 768, "num_kv_heads": 4}
    c = module.Config(**(small | {"vocab": 2048} | sizes))

    def make(mesh: Any) -> flint.Step:
        at = module.Layout(mesh, parallel)
        tokens = at.abstract((2 * at.data_ranks, seq), jnp.int32, module.P(at.batch, None))
        params = module.abstract_params(c, at, layers, jnp.float32)
        count = at.abstract((), jnp.int32, module.P())
        args = (params, {"m": params, "v": params}, count, tokens, tokens)
        step = functools.partial(module.train_step, c=c, at=at, remat=remat)
        return flint.Step(step, args, donate_argnums=(0, 1, 2))

    return Case({"data": axes[0], "model": axes[1]}, make)


def _mixtral(axes: tuple[int, int] = (4, 2), dim: int = 256, **options: Any) -> Case:
    module = _example("mixtral_jax")
    small = {"dim": dim, "num_heads": 8, "num_kv_heads": 4, "ffn_dim": 2 * dim, "vocab": 2048}
    module.Config = functools.partial(module.Config, **small)  # type: ignore[attr-defined]
    chosen = {"seq": 128, "num_layers": 2} | options
    return Case({"data": axes[0], "expert": axes[1]}, lambda m: _in_f32(module.train(m, **chosen)))


def _decode(axes: tuple[int, int] = (4, 2), layers: int = 4, **options: int) -> Case:
    module = _example("decode_jax")
    sizes = {"dim": 256, "num_heads": 8, "ffn_dim": 512, "num_kv_heads": 4, "head_dim": 32}
    c = module.Config(num_layers=layers, vocab=2048, **sizes)
    module.CONFIGS = {"8b": c}  # type: ignore[attr-defined]
    shape = {"tokens": 4, "batch": 32, "length": 512} | options
    return Case(
        {"data": axes[0], "model": axes[1]},
        lambda m: _in_f32(module.decode(m, model="8b", **shape)),
    )


def _ring(axes: tuple[int, int] = (2, 4), seq: int = 1024, batch: int = 4) -> Case:
    module = _example("ring_attention_jax")
    small = {"dim": 256, "num_heads": 8, "num_kv_heads": 4, "head_dim": 32}
    module.Config = functools.partial(module.Config, **small)  # type: ignore[attr-defined]
    return Case(
        {"data": axes[0], "seq": axes[1]}, lambda m: _in_f32(module.train(m, seq=seq, batch=batch))
    )


def _resnet(axes: tuple[int, int] = (4, 2), batch: int = 64, image: int = 128) -> Case:
    module = _example("resnet50_jax")

    class Wide:
        """jax.numpy in which bfloat16 is float32."""

        def __getattr__(self, name: str) -> Any:
            return jnp.float32 if name == "bfloat16" else getattr(jnp, name)

    module.jnp = Wide()  # type: ignore[attr-defined]
    return Case(
        {"data": axes[0], "model": axes[1]}, lambda m: module.train(m, batch=batch, image=image)
    )


def _spmd_pipeline(axes: tuple[int, int] = (4, 2), **options: int) -> Case:
    module = _example("spmd_pipeline_jax")
    sizes = {"dim": 256, "num_heads": 8, "head_dim": 32, "hidden": 1024}
    module.Config = functools.partial(module.Config, **sizes)  # type: ignore[attr-defined]
    chosen = {"num_layers": 8, "seq": 128, "microbatches": 8} | options
    return Case({"pipe": axes[0], "data": axes[1]}, lambda m: _in_f32(module.train(m, **chosen)))


#: Cases by name, made when they are asked for.
CASES: dict[str, Callable[[], Case]] = {
    "llama-scan-full": _llama,
    "llama-scan-none": functools.partial(_llama, remat="none"),
    "llama-scan-none-sp": functools.partial(_llama, "fsdp+tp+sp", remat="none"),
    "llama-scan-full-dp": functools.partial(_llama, "dp"),
    "llama-unrolled-full": functools.partial(_llama, layers="unrolled"),
    "llama-unrolled-none": functools.partial(_llama, layers="unrolled", remat="none"),
    "mixtral": _mixtral,
    "decode": _decode,
    "ring-attention": _ring,
    "resnet50": _resnet,
    "spmd-pipeline": _spmd_pipeline,
    # Other sizes and meshes of the same.
    "llama-scan-full-deep": functools.partial(_llama, num_layers=12, seq=128),
    "llama-scan-full-long": functools.partial(_llama, num_layers=2, seq=1024),
    "llama-scan-full-wide": functools.partial(_llama, dim=512, ffn_dim=2048, axes=(2, 4)),
    "llama-scan-full-fsdp": functools.partial(_llama, "fsdp", axes=(8, 1)),
    "llama-scan-none-tp": functools.partial(
        _llama, "tp", remat="none", axes=(1, 8), num_kv_heads=8
    ),
    "llama-scan-none-long": functools.partial(_llama, remat="none", seq=768),
    "llama-scan-none-vocab": functools.partial(_llama, remat="none", vocab=16_384, num_layers=2),
    "llama-unrolled-none-2": functools.partial(
        _llama, layers="unrolled", remat="none", num_layers=2, seq=512
    ),
    "llama-unrolled-none-sp": functools.partial(
        _llama, "fsdp+tp+sp", layers="unrolled", remat="none", axes=(2, 4), num_layers=3
    ),
    "llama-unrolled-none-dp": functools.partial(
        _llama, "dp", layers="unrolled", remat="none", num_layers=3
    ),
    "mixtral-wide": functools.partial(_mixtral, (2, 4), 384),
    "mixtral-long": functools.partial(_mixtral, seq=512),
    "mixtral-einsum": functools.partial(_mixtral, dispatch="einsum"),
    "mixtral-none": functools.partial(_mixtral, remat="none"),
    "decode-one": functools.partial(_decode, tokens=1, length=2048),
    "decode-deep": functools.partial(_decode, (2, 4), layers=8, batch=16),
    "ring-attention-short": functools.partial(_ring, (4, 2), 512, 8),
    "resnet50-image-64": functools.partial(_resnet, batch=128, image=64),
    "resnet50-data": functools.partial(_resnet, (8, 1), image=96),
    "spmd-pipeline-2": functools.partial(_spmd_pipeline, (2, 4), seq=256, microbatches=4),
}
