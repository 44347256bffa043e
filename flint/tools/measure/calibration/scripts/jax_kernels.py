"""Times of kernels on one GPU or TPU with JAX, for `flint calibrate`.

    python collect.py -o mine.csv

Each size is compiled alone and runs several times in a loop on the device, whose operand changes from
turn to turn so that nothing is omitted; the median over many loops is written. Of the machine the name and the
clocks of its chip are kept, no more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from flint.tools.measure.calibration.scripts.grid import (
    Row,
    arguments,
    cases,
    run_all,
    state_of_gpu,
)

#: Turns of the loop on the device.
TURNS = 16


def kernel_of(row: Row, jax: Any, jnp: Any) -> tuple[Callable[[Any], Any], Any]:
    """A function of one array that is the kernel of a row, and the array."""
    dtype = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}[row["dtype"]]
    keys = iter(jax.random.split(jax.random.key(0), 8))

    def random(*shape: int) -> Any:
        return jax.random.normal(next(keys), shape).astype(dtype)

    kind = row["kind"]
    if kind == "gemm":
        b, m, n, k, layout = (row[c] for c in ("batch", "m", "n", "k", "layout"))
        lead = (b,) if b > 1 else ()
        right = random(*lead, n, k) if layout[1] == "t" else random(*lead, k, n)
        turned = layout[1] == "t"
        return (lambda x: x @ (jnp.swapaxes(right, -1, -2) if turned else right)), random(
            *lead, m, k
        )
    if kind == "attention":
        k, v = (random(row["batch"], row["keys"], row["kv_heads"], row["head_dim"]) for _ in "kv")
        causal = bool(row["causal"])
        return (
            lambda q: jax.nn.dot_product_attention(q, k, v, is_causal=causal),
            random(row["batch"], row["queries"], row["heads"], row["head_dim"]),
        )
    if kind in ("softmax", "norm", "reduction"):
        functions = {
            "softmax": lambda x: jax.nn.softmax(x, -1),
            "norm": lambda x: (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5),
            "reduction": lambda x: x.sum(-1),
        }
        return functions[kind], random(row["rows"], row["columns"])
    y = random(row["elements"])
    functions = {"add": lambda x: x + y, "elementwise": jax.nn.gelu, "copy": lambda x: x[::-1]}
    return functions[kind], random(row["elements"])


def timer(options: Any, jax: Any, jnp: Any) -> Callable[[Row], list[float]]:
    """What gives the times of a row, in seconds."""

    def time_of(row: Row) -> list[float]:
        kernel, x = kernel_of(row, jax, jnp)

        @jax.jit  # type: ignore[untyped-decorator]
        def loop(x: Any) -> Any:
            def turn(_: Any, state: Any) -> Any:
                x, kept = state
                made = jax.lax.optimization_barrier(kernel(x))
                x, made = jax.lax.optimization_barrier((x, made))
                return x, made.ravel()[0].astype(jnp.float32) * 0 + kept

            return jax.lax.fori_loop(0, TURNS, turn, (x, jnp.float32(0)))[1]

        loop(x).block_until_ready()
        times: list[float] = []
        end = time.perf_counter() + options.seconds
        while len(times) < 3 or (time.perf_counter() < end and len(times) < 200):
            start = time.perf_counter()
            loop(x).block_until_ready()
            times.append((time.perf_counter() - start) / TURNS)
        return times

    return time_of


def main() -> None:
    options = arguments(__doc__ or "")
    if options.device:
        os.environ["JAX_PLATFORMS"] = options.device
    import jax
    import jax.numpy as jnp

    chip = jax.devices()[0]
    said = [
        f"jax {jax.__version__} on {chip.device_kind}",
        f"before: {state_of_gpu() or 'no driver tells clocks and power'}",
    ]
    run_all(
        cases(options.quick, options.dtypes.split(",")),
        timer(options, jax, jnp),
        said,
        options.output,
    )


if __name__ == "__main__":
    main()
