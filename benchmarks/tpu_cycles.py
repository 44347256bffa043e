"""Kernels by the TPU compiler's own cycles and by Flint's models: the table of docs/compiled.md.

    python -m benchmarks.tpu_cycles                  # some minutes; needs flint-ir[xla-tpu]
    python -m benchmarks.tpu_cycles --only Adam

Each program is compiled for TPU v5p without one, whole, so that its kernels have cycles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import flint
from flint.backends.cost.kernel_times import KernelTimes
from flint.frontends.model_file import Target, importable, load_step

CHIP, COMPILER = "v5p", "xla-tpu-cycles"
KINDS = ("gemm", "elementwise", "optimizer", "copy")
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="programs whose name contains this")
    only = parser.parse_args().only
    print("| program | step: compiler, Flint | " + " | ".join(KINDS) + " | without cycles |")
    print("|---|---|" + "---:|" * (len(KINDS) + 1))
    for name, trace in programs():
        if only in name:
            found = trace().estimate(CHIP, timing="compiler", unpriced_is_zero=True)
            assert found.kernel_times is not None
            _row(name, found.step_time_ns, found.kernel_times)


def _row(name: str, step_ns: float, times: KernelTimes) -> None:
    told = {k.kind: k for k in times.kinds if k.by_cycles}
    cells = [
        f"{told[k].model_ns / told[k].compiler_ns:.2f} of {told[k].compiler_ns / 1e6:.2f} ms"
        if k in told
        else ""
        for k in KINDS
    ]
    total = sum(k.compiler_ns for k in times.kinds)
    rest = sum(k.compiler_ns for k in times.kinds if not k.by_cycles) / total
    steps = f"{step_ns / 1e6:.1f}, {times.model_step_time_ns / 1e6:.1f} ms"
    print(f"| {name} | {steps} | " + " | ".join(cells) + f" | {rest:.1%} |", flush=True)


def programs() -> Iterator[tuple[str, Callable[[], flint.Trace]]]:
    """Programs by name."""
    for name, make in (("GELU MLP", _mlp), ("attention", _attention), ("Adam", _adam)):
        fn, args, donated = make()
        yield (
            name,
            lambda fn=fn, args=args, donated=donated: flint.trace(
                fn, "data=1", *args, donate_argnums=donated, compiler=COMPILER, chip=CHIP
            ),
        )
    llama = {"num_layers": "4", "seq": "2048", "remat": "none"}
    mixtral = {"num_layers": "2", "seq": "1024"}
    yield "Llama, a step", lambda: _example("llama_jax.py", "data=4,model=2", llama)
    yield "Mixtral, a step", lambda: _example("mixtral_jax.py", "4x2", mixtral)


def _example(file: str, mesh: str, settings: Mapping[str, str]) -> flint.Trace:
    target = Target.parse(str(EXAMPLES / file))
    with importable(target.path.parent):
        loaded = load_step(target, mesh, settings=dict(settings))
        return flint.trace(loaded.step, loaded.mesh, compiler=COMPILER, chip=CHIP)


_Made = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]


def _mlp() -> _Made:
    def loss(weights: Any, x: Any) -> Any:
        y = jax.nn.gelu(x @ weights[0]) @ weights[1]
        return jnp.sum(y.astype(jnp.float32) ** 2)

    weights = (_array(4096, 16384), _array(16384, 4096))
    return jax.grad(loss), (weights, _array(8192, 4096)), ()


def _attention() -> _Made:
    batch, length, heads, size = 4, 4096, 16, 128

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
        seen = jnp.tril(jnp.ones((length, length), bool))
        shares = jax.nn.softmax(jnp.where(seen, scores * size**-0.5, -1e30), -1)
        return jnp.einsum("bhqk,bkhd->bqhd", shares.astype(jnp.bfloat16), v)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(attend(q, k, v).astype(jnp.float32))

    array = _array(batch, length, heads, size)
    return jax.grad(loss, (0, 1, 2)), (array, array, array), ()


def _adam() -> _Made:
    def step(w: Any, g: Any, m: Any, v: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        return w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * w), m, v

    array = _array(8192, 16384, dtype=jnp.float32)
    return step, (array,) * 4, (0, 2, 3)


def _array(*shape: int, dtype: Any = jnp.bfloat16) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


if __name__ == "__main__":
    main()
