"""Single kernels by XLA's TPU compiler: its own estimates of products, and splash attention.

Run by tpu_compiler.py (`--products`, `--splash`); each child compiles one program for a TPU v6e.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Cycles a second by generation: the peak over the operations of a cycle.
CLOCK_GHZ = 1.75
#: Blocks and head sizes of splash attention: generation, head size, block.
SPLASH = (
    ("v6e", 64, 512), ("v6e", 128, 512), ("v6e", 128, 1024), ("v6e", 256, 512),
    ("v5p", 128, 512), ("v5e", 128, 512),
)  # fmt: skip
HEADS, SEQUENCE = 8, 2048
_REGION = re.compile(r"(Start|End) region (\d+)")
_ADDRESS = re.compile(r"^\s*0x([0-9a-f]+)\s")


def print_products(plugins: Path) -> None:
    """Cycles that the compiler estimates, as TFLOP/s, of products with what was fused into them."""
    print("| product | fused | cycles | us | TFLOP/s |\n|---|---|---:|---:|---:|")
    for at, (shape, fused, _) in enumerate(_products()):
        found = _child(plugins, "v6e", ["product", str(at)], "")
        cycles = sum(map(int, found.stdout.split()))
        m, n, k = shape
        us = cycles / CLOCK_GHZ / 1e3
        rate = 2 * m * n * k / us / 1e6 if us else 0
        print(f"| {m} x {n} x {k} | {fused} | {cycles:,} | {us:,.1f} | {rate:,.0f} |", flush=True)


def print_splash(plugins: Path) -> None:
    """Bundles of the region with the products, as in data/tpu_schedules/splash.csv."""
    print("chip,kernel,head_size,block,products,cycles")
    for chip, size, block in SPLASH:
        with tempfile.TemporaryDirectory() as folder:
            flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
            flags += " --xla_jf_dump_llo_pass_label_regex=final"
            _child(plugins, chip, ["splash", str(size), str(block)], flags)
            for kernel, products in (("fwd", 2), ("dkv", 5)):
                name = {"fwd": "forward", "dkv": "backward"}[kernel]
                paths = Path(folder).glob(f"*-splash_mha_{kernel}*-final_bundles.txt")
                found = [p for p in paths if "analysis" not in p.name]
                if found:
                    cycles = body_bundles(found[0].read_text(errors="replace"))
                    print(f"{chip},{name},{size},{block},{products},{cycles}", flush=True)


def body_bundles(text: str) -> int:
    """Bundles of the innermost region that holds more than half of the one around it."""
    begins: dict[int, int] = {}
    regions: list[tuple[int, int]] = []
    address = -1
    for line in text.split("\n"):
        if match := _ADDRESS.match(line):
            address = int(match[1], 16)
        for what, number in _REGION.findall(line):
            if what == "Start":
                begins[int(number)] = address
            elif int(number) in begins:
                regions.append((begins[int(number)], address))
    first, last = max(regions, key=lambda r: r[1] - r[0])
    while inner := [r for r in regions if first <= r[0] and r[1] <= last
                    and (last - first) > r[1] - r[0] > (last - first) / 2]:  # fmt: skip
        first, last = max(inner, key=lambda r: r[1] - r[0])
    return last - first + 1


def _child(
    plugins: Path, chip: str, arguments: list[str], flags: str
) -> subprocess.CompletedProcess[str]:
    from tpu_compiler import child_environment

    environment = {**os.environ, **child_environment(plugins), "LIBTPU_INIT_ARGS": flags}
    command = [sys.executable, __file__, chip, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


Shape = tuple[int, int, int]


def _products() -> Iterator[tuple[Shape, str, Callable[..., Any]]]:
    """Shape (m, n, k), what is fused, and the function of a, b and two results' like c and d."""
    import jax
    import jax.numpy as jnp

    def gated(a: Any, b: Any, a2: Any, _: Any) -> Any:
        return (jax.nn.silu(a) * a2) @ b

    def residual(a: Any, b: Any, _: Any, c: Any) -> Any:
        return a @ b + c

    def normed(a: Any, b: Any, a2: Any, _: Any) -> Any:
        scale = jax.lax.rsqrt(a2[:, :1].astype(jnp.float32))
        return (a.astype(jnp.float32) * scale).astype(a.dtype) @ b

    def reduced(a: Any, b: Any, _: Any, c: Any) -> Any:
        y = a @ b + c
        return y, jnp.sum(jnp.square(y.astype(jnp.float32)), -1)

    def plain(a: Any, b: Any, _: Any, __: Any) -> Any:
        return a @ b

    for shape in ((4096, 4096, 4096), (8192, 4096, 14336), (8192, 14336, 4096)):
        yield shape, "nothing", plain
        yield shape, "prologue silu(a) x b", gated
        yield shape, "prologue a x scale of row, in f32", normed
        yield shape, "epilogue + c", residual
        yield shape, "epilogue + c, sum of squares", reduced


def _compile(chip: str, what: str, arguments: list[str]) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    device = topologies.get_topology_desc(platform="tpu", topology_name=f"{chip}:2x2x1").devices[0]

    def abstract(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=SingleDeviceSharding(device))

    if what == "product":
        (m, n, k), _, function = list(_products())[int(arguments[0])]
        args = (abstract(m, k), abstract(k, n), abstract(m, k), abstract(m, n))
        text = jax.jit(function).lower(*args).compile().as_text()
        print(*re.findall(r'estimated_cycles":"?(\d+)', text), flush=True)
    else:
        size, block = map(int, arguments)
        array = abstract(HEADS, max(SEQUENCE, 2 * block), size)
        jax.jit(_splash_gradient(array.shape[1], block)).lower(array, array, array).compile()
    os._exit(0)  # libtpu's threads do not end by themselves


def _splash_gradient(sequence: int, block: int) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    sizes = splash.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block,
        block_kv_dkv=block, block_kv_dkv_compute=block, use_fused_bwd_kernel=True,
    )  # fmt: skip
    mask = masks.MultiHeadMask([masks.CausalMask((sequence, sequence)) for _ in range(HEADS)])
    kernel = splash.make_splash_mha_single_device(mask=mask, block_sizes=sizes)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return kernel(q, k, v).astype(jnp.float32).sum()

    return jax.grad(loss, argnums=(0, 1, 2))


if __name__ == "__main__":
    _compile(sys.argv[1], sys.argv[2], sys.argv[3:])
