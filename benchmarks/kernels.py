"""Kernels and bytes of the same programs by XLA's GPU compiler and by Flint's profile `xla-gpu`.

    pip install jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2
    python -m benchmarks.kernels --keep compiled

The compiler runs whole, for an H100 that need not be there (see compilers/compile.py). Its optimised module
is read as text: a kernel is a fusion, a copy or a library call of a computation that has five or
more; its bytes are those of its operands, of which a slice counts what is sliced, and results, of
which an update in place counts what is written. Collectives do not count, nor do operations that
are no kernel. Of Flint's profiles, kernels are the COMPUTE rows of a region.

Prints a Markdown table: for each computation that is a loop's body, and for the rest of the
program, kernels and MB, those of products of matrices and all.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compilers.compile import Kept, compile_all
from benchmarks.compilers.programs import Case
from flint.ir.program import Flag, Kind
from flint.ir.workload import Workload
from flint.passes.partition import partitioner
from flint.rewrite import rewrite
from flint.steps.captured import Captured

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "s64": 8}
TYPE = re.compile(r"(\w+)\[([\d,]*)\]")
LINE = re.compile(r"\s*(?:ROOT )?%([\w.\-]+) = (\([^=]*?\)|\S+) ([\w\-]+)\((.*?)\)(?:,|$)")
#: A fusion around a product of matrices, or a call of a library for one.
PRODUCT = re.compile(r'^gemm_fusion|custom_call_target="[^"]*(gemm|matmul)')
#: Fewer kernels make no row of the table: small computations that a reduction applies, conditions.
FEW = 5


@dataclass
class Sum:
    """Kernels and bytes."""

    products: int = 0
    product_bytes: int = 0
    others: int = 0
    other_bytes: int = 0

    def add(self, moved_bytes: int, *, product: bool) -> None:
        """Count a kernel."""
        if product:
            self.products += 1
            self.product_bytes += moved_bytes
        else:
            self.others += 1
            self.other_bytes += moved_bytes

    def __str__(self) -> str:
        total = (self.product_bytes + self.other_bytes) / 1e6
        cells = (
            f"{self.products}: {self.product_bytes / 1e6:,.0f}",
            f"{self.others}: {self.other_bytes / 1e6:,.0f}",
            f"{self.products + self.others}: {total:,.0f}",
        )
        return " | ".join(cells)


def main() -> None:
    """Compare the programs and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--keep", type=Path, required=True, help="a folder for compiled modules")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    print("| program, part | by | products: MB | other kernels: MB | all: MB |")
    print("|---|---|---:|---:|---:|")
    for name, capture in _programs():
        if options.only in name:
            captured = capture()
            _print(name, _xla(captured, Kept.of(options.keep, name, "gpu")), _flint(captured))


def _print(name: str, xla: list[Sum], flint: dict[str, list[Sum]]) -> None:
    for part, theirs in enumerate(xla):
        label = f"**{name}**, " + ("outside of loops" if not part else f"loop {part}")
        print(f"| {label} | XLA | {theirs} |")
        for profile, sums in flint.items():
            if part < len(sums):
                print(f"| | `{profile}` | {sums[part]} |", flush=True)


# programs ---------------------------------------------------------------------------------------


def _programs() -> Iterator[tuple[str, Callable[[], Captured]]]:
    llama = {"num_layers": "4", "parallel": "fsdp+tp"}
    for name, file, settings in (
        ("llama 8B, remat full", "llama_jax.py", {**llama, "remat": "full"}),
        ("llama 8B, remat none", "llama_jax.py", {**llama, "remat": "none", "seq": "4096"}),
        ("mixtral", "mixtral_jax.py", {"num_layers": "4", "seq": "1024"}),
    ):
        case = Case(name, file, "4x4", settings)
        yield name, lambda case=case: case.capture("cuda")  # type: ignore[misc]
    yield "GPT block, forward", lambda: gpt_block(gradient=False)
    yield "GPT block, gradient", lambda: gpt_block(gradient=True)


def gpt_block(*, gradient: bool, platform: str = "cuda") -> Captured:
    """A layer with 16 heads of 128, layer norms and biases; two sequences of 2,048 on two GPUs."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    from flint.frontends.jax_step.program import capture_jax
    from flint.ir.mesh import Mesh
    from flint.steps.step import Step

    heads, size, seq = 16, 128, 2048
    dim = heads * size

    def norm(x: Any, scale: Any, bias: Any) -> Any:
        x32 = x.astype(jnp.float32)
        x32 -= jnp.mean(x32, -1, keepdims=True)
        x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), -1, keepdims=True) + 1e-5)
        return x32.astype(x.dtype) * scale + bias

    def block(p: Any, x: Any) -> Any:
        y = norm(x, p["scale1"], p["bias1"])
        q, k, v = jnp.einsum("bsd,dchk->cbshk", y, p["qkv"]) + p["qkv_bias"][:, None, None]
        scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32) * size**-0.5
        causal = jnp.arange(seq)[:, None] >= jnp.arange(seq)
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), -1).astype(x.dtype)
        out = jnp.einsum("bhst,bthk->bshk", weights, v)
        x = x + jnp.einsum("bshk,hkd->bsd", out, p["out"]) + p["out_bias"]
        y = norm(x, p["scale2"], p["bias2"])
        up = jax.nn.gelu(jnp.einsum("bsd,df->bsf", y, p["up"]) + p["up_bias"])
        return x + jnp.einsum("bsf,fd->bsd", up, p["down"]) + p["down_bias"]

    def loss(p: Any, x: Any) -> Any:
        return jnp.sum(block(p, x).astype(jnp.float32) ** 2)

    vectors = dict.fromkeys(("scale1", "bias1", "scale2", "bias2", "out_bias", "down_bias"), (dim,))
    shapes: dict[str, tuple[int, ...]] = {
        **vectors,
        "qkv": (dim, 3, heads, size),
        "qkv_bias": (3, heads, size),
        "out": (heads, size, dim),
        "up": (dim, 4 * dim),
        "up_bias": (4 * dim,),
        "down": (4 * dim, dim),
    }
    mesh = AbstractMesh((2,), ("data",), (AxisType.Auto,))

    def abstract(shape: tuple[int, ...], *spec: str) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))

    args = ({n: abstract(s) for n, s in shapes.items()}, abstract((2, seq, dim), "data"))
    step = Step(jax.grad(loss) if gradient else block, args, platform=platform)
    return capture_jax(step, Mesh(("data",), (2,)))


# Flint ------------------------------------------------------------------------------------------


def _flint(captured: Captured) -> dict[str, list[Sum]]:
    """Sums outside of loops, then of each loop, by profile."""
    workload = Workload.single(partitioner("shardy")(captured))
    return {name: _rows(rewrite(workload, profile=name, granularity="kernel"))
            for name in ("none", "xla-gpu")}  # fmt: skip


def _rows(workload: Workload) -> list[Sum]:
    program = workload.programs[0]
    sums = [Sum() for _ in range(len(program.regions) + 1)]
    for row in map(program.row, range(len(program))):
        if row.kind is Kind.COMPUTE and not row.flags & Flag.VIEW:
            moved = row.operand_bytes + row.result_bytes
            sums[row.region + 1].add(moved, product="dot" in row.opcode)
    return sums


# XLA --------------------------------------------------------------------------------------------


def _xla(captured: Captured, kept: Kept) -> list[Sum]:
    """Sums of the entry, then of each loop, forward first, of the compiled module."""
    from jax._src.lib import xla_client

    compile_all([(kept, captured)], "gpu")
    text = xla_client.XlaComputation(kept.module.read_bytes()).get_hlo_module().to_string()
    parts = _computations(text)
    found = {name: _kernels(lines, parts) for name, lines in parts.items()}
    entry = [s for n, s in found.items() if parts[n][0].startswith("ENTRY")]
    loops = [
        s
        for n, s in found.items()
        if s.products and s.products + s.others >= FEW and not parts[n][0].startswith("ENTRY")
    ]
    return entry + sorted(loops, key=lambda s: s.products)


def _computations(text: str) -> dict[str, list[str]]:
    """Lines of each computation by name."""
    found = {}
    for block in text.split("\n\n"):
        lines = [re.sub(r"metadata=\{[^}]*\}", "", line) for line in block.strip("\n").split("\n")]
        name = lines[0].split("(")[0].replace("ENTRY", "").strip().lstrip("%")
        found[name] = lines
    return found


def _kernels(lines: list[str], parts: dict[str, list[str]]) -> Sum:
    types: dict[str, str] = {}
    found = Sum()
    for line in lines[1:]:
        if not (match := LINE.match(line)):
            continue
        name, type_, opcode, operands = match.groups()
        types[name] = type_
        if opcode not in ("fusion", "copy", "custom-call") or not type_bytes(type_):
            continue
        called = re.search(r"calls=%([\w.\-]+)", line)
        if called:
            moved = _fused_bytes(parts[called.group(1)], type_)
        else:
            read = re.findall(r"%([\w.\-]+)", operands)
            moved = type_bytes(type_) + sum(type_bytes(types.get(r, "")) for r in read)
        found.add(moved, product=bool(PRODUCT.search(f"{name} {opcode} {line}")))
    return found


def _fused_bytes(body: list[str], result: str) -> int:
    """Bytes that cross into and out of a fusion."""
    rows = [m.groups() for m in map(LINE.match, body[1:]) if m]
    types = {name: type_ for name, type_, _, _ in rows}
    read, written = 0, type_bytes(result)
    updates = [args for _, _, opcode, args in rows if opcode == "dynamic-update-slice"]
    if updates:
        written = sum(type_bytes(types.get(operands_of(args)[1], "")) for args in updates)
    for name, type_, opcode, _ in rows:
        if opcode == "parameter":
            read += bytes_read(name, type_, rows)
    return read + written


def bytes_read(name: str, type_: str, rows: list[tuple[str, ...]]) -> int:
    """Bytes of a parameter of a fusion that it reads, seen through bitcasts."""
    users = [row for row in rows if row[2] != "parameter" and name in operands_of(row[3])]
    slices = 0
    for user, result, opcode, args in users:
        if opcode == "dynamic-slice":
            slices += type_bytes(result)
        elif opcode == "bitcast":
            slices += bytes_read(user, result, rows)
        elif opcode != "dynamic-update-slice" or operands_of(args)[0] != name:
            return type_bytes(type_)
    return min(slices, type_bytes(type_))


def operands_of(args: str) -> list[str]:
    """Names in the operands of an operation."""
    return re.findall(r"%([\w.\-]+)", args)


def type_bytes(type_: str) -> int:
    """Bytes of a type of HLO, of all parts of a tuple."""
    return sum(
        BYTES.get(element, 0) * math.prod(int(d) for d in dims.split(",") if d)
        for element, dims in TYPE.findall(type_)
    )


if __name__ == "__main__":
    main()
