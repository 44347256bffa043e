"""Peak memory against XLA's own analysis (`memory_analysis()`) of the examples, at small sizes.

XLA compiles for eight CPU devices; arithmetic is float32, which XLA for CPUs would turn bfloat16
into. Two comparisons:

- The program that XLA ended with, kernel by kernel in its order, read back from its HLO: what is
  alive when, and what shares memory. Within 5 %, most within 1 %.
- The program as captured, in the order in which it was written, in kernels. It differs where XLA for
  CPUs differs from that order and from those kernels. `MISSES` says why, and by how much.

Its own processes, because devices are chosen before jax starts.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import flint
from flint.backends.cost.memory import memory_use
from flint.frontends.jax_program import abstract_mesh
from flint.frontends.xla_hlo import read_hlo
from flint.mesh import Mesh
from flint.rewrite import rewrite

ROOT = Path(__file__).resolve().parents[2]
BAR = 0.05
#: Captured programs that differ from XLA by more than the bar: at most, and at least, and why.
MISSES = {
    # XLA starts to recompute as soon as it can: of unrolled layers nothing holds it back, as XLA
    # for CPUs drops the barriers that wait for the gradient. It keeps what none would.
    "llama-unrolled-full": (-0.75, -0.50),
    # Order and kernels differ (of XLA's own program we are within 1 %): XLA for CPUs runs what does
    # not depend on each other early, for its threads, and fuses less. Which arrays make the
    # difference was not traced one by one.
    "llama-unrolled-none": (-0.15, 0.0),
    "llama-scan-full": (-0.10, 0.0),
    # The first block is recomputed before the backward loop begins (no barrier); four arrays of
    # scores and transposed copies of them are alive where kernels keep two.
    "ring-attention": (-0.50, -0.30),
}
Make = Callable[[Any], flint.Step]


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"memory_{name}", ROOT / f"examples/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_f32(step: flint.Step) -> flint.Step:
    """The step on arguments in float32."""

    def wide(a: Any) -> Any:
        dtype = jnp.float32 if a.dtype == jnp.bfloat16 else a.dtype
        return jax.ShapeDtypeStruct(a.shape, dtype, sharding=a.sharding)

    return dataclasses.replace(step, args=jax.tree.map(wide, tuple(step.args)))


def llama(parallel: str, layers: str, remat: str) -> tuple[dict[str, int], Make]:
    module = example("llama_jax")
    c = module.Config(dim=256, num_layers=4, num_heads=8, ffn_dim=768, num_kv_heads=4, vocab=2048)

    def make(mesh: Any) -> flint.Step:
        at = module.Layout(mesh, parallel)
        tokens = at.abstract((2 * at.data_ranks, 256), jnp.int32, module.P(at.batch, None))
        params = module.abstract_params(c, at, layers, jnp.float32)
        count = at.abstract((), jnp.int32, module.P())
        args = (params, {"m": params, "v": params}, count, tokens, tokens)
        step = functools.partial(module.train_step, c=c, at=at, remat=remat)
        return flint.Step(step, args, donate_argnums=(0, 1, 2))

    return {"data": 4, "model": 2}, make


def mixtral() -> tuple[dict[str, int], Make]:
    module = example("mixtral_jax")
    small = {"dim": 256, "num_heads": 8, "num_kv_heads": 4, "ffn_dim": 512, "vocab": 2048}
    module.Config = functools.partial(module.Config, **small)  # type: ignore[attr-defined]
    return {"data": 4, "expert": 2}, lambda m: in_f32(module.train(m, seq=128, num_layers=2))


def decode() -> tuple[dict[str, int], Make]:
    module = example("decode_jax")
    c = module.Config(
        dim=256, num_layers=4, num_heads=8, ffn_dim=512, num_kv_heads=4, head_dim=32, vocab=2048
    )
    module.CONFIGS = {"8b": c}  # type: ignore[attr-defined]
    shape = {"model": "8b", "tokens": 4, "batch": 32, "length": 512}
    return {"data": 4, "model": 2}, lambda m: in_f32(module.decode(m, **shape))


def ring() -> tuple[dict[str, int], Make]:
    module = example("ring_attention_jax")
    small = {"dim": 256, "num_heads": 8, "num_kv_heads": 4, "head_dim": 32}
    module.Config = functools.partial(module.Config, **small)  # type: ignore[attr-defined]
    return {"data": 2, "seq": 4}, lambda m: in_f32(module.train(m, seq=1024, batch=4))


def resnet() -> tuple[dict[str, int], Make]:
    module = example("resnet50_jax")

    class Wide:
        """jax.numpy in which bfloat16 is float32."""

        def __getattr__(self, name: str) -> Any:
            return jnp.float32 if name == "bfloat16" else getattr(jnp, name)

    module.jnp = Wide()  # type: ignore[attr-defined]
    return {"data": 4, "model": 2}, lambda m: module.train(m, batch=64, image=128)


CASES: dict[str, Callable[[], tuple[dict[str, int], Make]]] = {
    "llama-scan-full": functools.partial(llama, "fsdp+tp", "scan", "full"),
    "llama-scan-none": functools.partial(llama, "fsdp+tp", "scan", "none"),
    "llama-scan-none-sp": functools.partial(llama, "fsdp+tp+sp", "scan", "none"),
    "llama-scan-full-dp": functools.partial(llama, "dp", "scan", "full"),
    "llama-unrolled-full": functools.partial(llama, "fsdp+tp", "unrolled", "full"),
    "llama-unrolled-none": functools.partial(llama, "fsdp+tp", "unrolled", "none"),
    "mixtral": mixtral,
    "decode": decode,
    "ring-attention": ring,
    "resnet50": resnet,
}


def measure(case: str) -> dict[str, int]:
    """Peak bytes: XLA's, ours of XLA's own program, and ours of the captured program."""
    shape, make = CASES[case]()
    axes = jax.sharding.AxisType.Auto
    step = make(jax.make_mesh(tuple(shape.values()), tuple(shape), axis_types=(axes,) * len(shape)))
    function = jax.jit(step.fn, donate_argnums=tuple(step.donate_argnums))
    compiled = function.lower(*step.args).compile()
    found = compiled.memory_analysis()
    mesh = Mesh.parse(shape)
    optimised = read_hlo(compiled.as_text().encode(), mesh, name=case, trip_counts={})
    captured = flint.trace(make(abstract_mesh(mesh)), mesh).workload
    kernels = rewrite(captured, granularity="kernel").programs[0]
    held = found.argument_size_in_bytes + found.output_size_in_bytes
    return {
        "xla": held - found.alias_size_in_bytes + found.temp_size_in_bytes,
        "optimised": memory_use(optimised).peak_bytes,
        "captured": memory_use(kernels).peak_bytes,
    }


@functools.cache
def measured(case: str) -> dict[str, int]:
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, __file__, case],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_memory_of_what_xla_runs_is_what_xla_says(case: str) -> None:
    found = measured(case)
    assert found["optimised"] == pytest.approx(found["xla"], rel=BAR)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_memory_of_what_was_captured(case: str) -> None:
    found = measured(case)
    low, high = MISSES.get(case, (-BAR, BAR))
    assert low <= found["captured"] / found["xla"] - 1 <= high


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
