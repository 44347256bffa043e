"""Single kernels as XLA's TPU compiler schedules them: products, and splash attention.

    pip install --target plugins --no-deps libtpu==0.0.52
    python -m benchmarks.tpu_single products --plugins plugins > products.csv
    python -m benchmarks.tpu_single splash --plugins plugins > splash.csv

Makes the tables of benchmarks/data/tpu_schedules for TPUs that need not be there. Each child compiles
one program.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Blocks and head sizes of splash attention: generation, head size, block.
SPLASH = (
    ("v6e", 64, 512), ("v6e", 128, 512), ("v6e", 128, 1024), ("v6e", 256, 512),
    ("v5p", 128, 512), ("v5e", 128, 512),
)  # fmt: skip
HEADS, SEQUENCE = 8, 2048
#: Multiplications of one instruction of an array: 8 rows with 128 x 128 weights.
PUSHED = 8 * 128 * 128
#: First argument of a process that compiles.
CHILD = "compile"
LIBRARY = "libtpu/libtpu.so"
_REGION = re.compile(r"(Start|End) region (\d+)")
_ADDRESS = re.compile(r"^\s*0x([0-9a-f]+)\s")


def print_products(plugins: Path) -> None:
    """Windows, and bundles of each, of products with what was fused into them.

    As in data/tpu_schedules/products.csv. A kernel is a loop over windows with little around it and
    no loop inside, so its bundles are those of a window. There are as many windows as the compiler
    says, or as are needed for all multiplications if that is more: it does not say all of its loops.
    """
    print("chip,m,n,k,fused,flops,windows,bundles,estimated_cycles")
    for at, ((m, n, k), fused, flops, _) in enumerate(_products()):
        with tempfile.TemporaryDirectory() as folder:
            found = _child(plugins, "v6e", ["product", str(at)], _dump(folder))
            paths = list(Path(folder).glob("*-per-bundle-utilization.txt"))
            units = max((u for p in paths if (u := _units(p))), key=lambda u: sum(x[0] for x in u))
        estimated, *bounds = map(int, found.stdout.split())
        needed = m * n * k / (sum(unit[0] for unit in units) * PUSHED)
        windows = max(math.prod(bounds), round(needed))
        row = ("v6e", m, n, k, fused, flops, windows, len(units), estimated)
        print(",".join(map(str, row)), flush=True)


def _units(path: Path) -> list[list[int]]:
    """For each bundle of a kernel, how many instructions each unit gets: products first."""
    if any(part in path.name for part in ("-TLP-", "<late-")):
        return []
    lines = path.read_text().partition("== UTILIZATION:")[2].splitlines()
    return [list(map(int, line.split())) for line in lines if line.strip()]


def _dump(folder: str) -> str:
    """Flags with which the compiler writes the bundles of each kernel."""
    return (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
        "--xla_jf_dump_llo_pass_label_regex=final"
    )


def print_splash(plugins: Path) -> None:
    """Bundles of the region with the products, as in data/tpu_schedules/splash.csv."""
    print("chip,kernel,head_size,block,products,cycles")
    for chip, size, block in SPLASH:
        with tempfile.TemporaryDirectory() as folder:
            _child(plugins, chip, ["splash", str(size), str(block)], _dump(folder))
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
    environment = {**os.environ, **_child_environment(plugins), "LIBTPU_INIT_ARGS": flags}
    command = [sys.executable, __file__, CHILD, chip, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _child_environment(plugins: Path) -> dict[str, str]:
    """What libtpu has to be told where there is no TPU."""
    return {
        "JAX_PLATFORMS": "cpu",
        "TPU_LIBRARY_PATH": str((plugins / LIBRARY).resolve()),
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v6e-16",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }


Shape = tuple[int, int, int]


def _products() -> Iterator[tuple[Shape, str, int, Callable[..., Any]]]:
    """Shape (m, n, k), what is fused, its flops, and the function of a, b, one like a, one like ab.

    Flops are one for each element-wise operation, whatever the function, as Flint counts them.
    """
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

    for m, n, k in ((4096, 4096, 4096), (8192, 4096, 14336), (8192, 14336, 4096)):
        yield (m, n, k), "nothing", 0, plain
        yield (m, n, k), "prologue silu(a) x b", 3 * m * k, gated
        yield (m, n, k), "prologue a x scale of row in f32", m * k, normed
        yield (m, n, k), "epilogue + c", m * n, residual
        yield (m, n, k), "epilogue + c and sum of squares", 3 * m * n, reduced


def _compile(chip: str, what: str, arguments: list[str]) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    device = topologies.get_topology_desc(platform="tpu", topology_name=f"{chip}:2x2x1").devices[0]

    def abstract(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=SingleDeviceSharding(device))

    if what == "product":
        (m, n, k), _, _, function = list(_products())[int(arguments[0])]
        args = (abstract(m, k), abstract(k, n), abstract(m, k), abstract(m, n))
        text = jax.jit(function).lower(*args).compile().as_text()
        found = re.findall(r'estimated_cycles":"(\d+)","iteration_bounds":\[([^]]*)\]', text)
        cycles, bounds = max(found, key=lambda pair: int(pair[0]))
        print(cycles, *re.findall(r"\d+", bounds), flush=True)
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


def main() -> None:
    """Print one of the tables; or, in a child, compile one program of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("table", choices=("products", "splash"))
    parser.add_argument("--plugins", type=Path, default=Path("plugins"))
    options = parser.parse_args()
    if not (options.plugins / LIBRARY).exists():
        parser.error(f"{options.plugins} has no libtpu; the first line of the help installs it")
    {"products": print_products, "splash": print_splash}[options.table](options.plugins)


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        _compile(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main()
