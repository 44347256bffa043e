"""Kernels and bytes of the same programs by XLA's TPU compiler and by Flint's profile `xla-tpu`.

    pip install --target plugins --no-deps libtpu==0.0.52
    python -m benchmarks.tpu_compiler --plugins plugins
    python -m benchmarks.tpu_compiler --plugins plugins --only "GPT" --keep hlo
    python -m benchmarks.tpu_compiler --plugins plugins --products
    python -m benchmarks.tpu_compiler --plugins plugins --splash

The compiler runs for a TPU v6e that need not be there. It writes its scheduled module before it
generates instructions; that text is read. A kernel is a fusion, a copy, a convolution or another
operation of a computation that moves data. Its bytes are those that cross its edge, of slices what
is sliced, and of updates in place what is written; those in HBM are the part whose layout does
not say S(1), which is VMEM. Copies that the compiler starts early to bring arrays into VMEM or
back are counted by themselves. Flint's `ms` are its prices of these kernels on the cluster v6e.

Prints a Markdown table for each computation that is a loop's body (one iteration), and for what is
outside of loops, and one of collectives. `--products` and `--splash` count the instructions of
products with fused work and of Pallas' splash attention (benchmarks/data/tpu_schedules).
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import kernels
from benchmarks.compilers.compile import compile_options, parse_module
from benchmarks.compilers.programs import Case
from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.model import latency_ns
from flint.cluster.models import Cluster
from flint.ir.program import Flag, Kind, Program
from flint.ir.workload import Workload
from flint.passes.partition import partitioner
from flint.rewrite import rewrite
from flint.steps.captured import Captured

LIBRARY = "libtpu/libtpu.so"
#: Chips of a TPU v6e slice by number of devices.
TOPOLOGIES = {1: "1x1", 2: "2x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8"}
#: Operations that are no kernels.
IDLE = frozenset(
    ["parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional",
     "call", "after-all", "partition-id", "replica-id", "copy-done", "slice-done", "custom-call"]
)  # fmt: skip
COLLECTIVE = re.compile(r"^(all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)")
TILES = re.compile(r"\{[^{}]*\}")
ARRAY = re.compile(r"(\w+\[[\d,]*\])(\{[^{}]*\})?")
#: Fewer kernels make no row of the table.
FEW = 5
SECONDS = 1800


@dataclass
class Part:
    """Kernels of a computation: counts and bytes of products and others, and of early copies."""

    products: int = 0
    product_bytes: int = 0
    others: int = 0
    other_bytes: int = 0
    hbm_bytes: int = 0
    copies: int = 0
    copy_bytes: int = 0
    ms: float = 0.0
    collectives: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, edge: tuple[int, int], *, product: bool) -> None:
        """Count a kernel by its bytes, and those of them in HBM."""
        moved, in_hbm = edge
        self.hbm_bytes += in_hbm
        if product:
            self.products += 1
            self.product_bytes += moved
        else:
            self.others += 1
            self.other_bytes += moved

    def cells(self) -> list[str]:
        """Of the table."""
        total = self.product_bytes + self.other_bytes
        return [
            f"{self.products}: {self.product_bytes / 1e6:,.0f}",
            f"{self.others}: {self.other_bytes / 1e6:,.0f}",
            f"{self.products + self.others}: {total / 1e6:,.0f}",
            f"{(self.hbm_bytes + self.copy_bytes) / 1e6:,.0f}",
            f"{self.copies}: {self.copy_bytes / 1e6:,.0f}" if self.copies else "",
            f"{self.ms:.2f}" if self.ms else "",
        ]


def main() -> None:
    """Compare the programs and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--plugins", type=Path, default=Path("plugins"))
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the scheduled modules, read if there"
    )
    parser.add_argument("--products", action="store_true", help="single kernels")
    parser.add_argument("--splash", action="store_true", help="splash attention")
    parser.add_argument("--compile", type=int, default=0, help=argparse.SUPPRESS)  # the child
    options = parser.parse_args()
    if not (options.plugins / LIBRARY).exists():
        raise SystemExit(f"{options.plugins} has no libtpu: pip install --target {options.plugins} "
                         "--no-deps libtpu==0.0.52")  # fmt: skip
    if options.compile:
        _child(options.compile)
    elif options.products:
        from benchmarks.tpu_single import print_products

        print_products(options.plugins)
    elif options.splash:
        from benchmarks.tpu_single import print_splash

        print_splash(options.plugins)
    else:
        _print_programs(options)


def _print_programs(options: argparse.Namespace) -> None:
    print("| program, part | by | products: MB | others: MB | all: MB | HBM, MB | early copies: MB "
          "| ms |\n|---|---|---:|---:|---:|---:|---:|---:|")  # fmt: skip
    for name, capture in programs():
        if options.only not in name:
            continue
        captured = capture()
        theirs = parts_of(_module(name, captured, options))
        ours = _flint(captured)
        for number, part in enumerate(theirs):
            label = f"**{name}**, " + (f"loop {number}" if number else "outside of loops")
            _row(label, "XLA", part)
            if number < len(ours):
                _row("", "`xla-tpu`", ours[number])


def _row(label: str, by: str, part: Part) -> None:
    print(f"| {label} | {by} | " + " | ".join(part.cells()) + " |", flush=True)
    if part.collectives:
        said = ", ".join(f"{k}{w} {n}" for (k, w), n in sorted(part.collectives.items()))
        print(f"| | | collectives: {said} | | | | | |", flush=True)


def programs() -> Iterator[tuple[str, Callable[[], Captured]]]:
    """Programs by name, as those of kernels.py, with shorter sequences and for TPUs."""
    llama = {"num_layers": "4", "parallel": "fsdp+tp", "seq": "2048"}
    for name, file, mesh, settings in (
        ("llama 8B, remat full", "llama_jax.py", "4x4", {**llama, "remat": "full"}),
        ("llama 8B, remat none", "llama_jax.py", "4x4", {**llama, "remat": "none"}),
        ("llama 8B, unrolled", "llama_jax.py", "4x4",
         {**llama, "remat": "full", "layers": "unrolled", "num_layers": "2"}),
        ("mixtral", "mixtral_jax.py", "4x4", {"num_layers": "4", "seq": "1024"}),
        ("decode", "decode_jax.py", "2x8", {"num_layers": "4", "tokens": "4"}),
    ):  # fmt: skip
        case = Case(name, file, mesh, settings)
        yield name, lambda case=case: case.capture("tpu")  # type: ignore[misc]
    yield "GPT block, forward", lambda: kernels.gpt_block(gradient=False, platform="tpu")
    yield "GPT block, gradient", lambda: kernels.gpt_block(gradient=True, platform="tpu")


# Flint ------------------------------------------------------------------------------------------


def _flint(captured: Captured) -> list[Part]:
    """Sums outside of loops, then of each loop."""
    workload = Workload.single(partitioner("shardy")(captured))
    program = rewrite(workload, profile="xla-tpu", granularity="kernel").programs[0]
    parts = [Part() for _ in range(len(program.regions) + 1)]
    for row in map(program.row, range(len(program))):
        part = parts[row.region + 1]
        if row.kind is Kind.COMPUTE and not row.flags & Flag.VIEW:
            moved = row.operand_bytes + row.result_bytes
            part.add((moved, moved), product="dot" in row.opcode)
        elif row.kind is Kind.COLLECTIVE:
            part.collectives[row.collective.name.lower().replace("_", "-"), ""] += 1
    _priced(program, parts)
    return parts


def _priced(program: Program, parts: list[Part]) -> None:
    table, rows = kernels_of(program)
    times = latency_ns(table, Cluster.load("v6e").chip) * 1e-6
    for row, ms in zip(rows.tolist(), times.tolist(), strict=True):
        parts[int(program.region[row]) + 1].ms += ms


# XLA --------------------------------------------------------------------------------------------


def _module(name: str, captured: Captured, options: argparse.Namespace) -> str:
    """The scheduled module as text."""
    kept = (
        options.keep / ("-".join(name.replace(",", "").split()) + ".txt") if options.keep else None
    )
    if kept and kept.exists():
        return kept.read_text()
    text = _compiled(captured, options.plugins)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(text)
    return text


def _compiled(captured: Captured, plugins: Path) -> str:
    """Start the compiler, and end it as soon as it has written the module."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.tpu_compiler",
            "--compile",
            str(captured.mesh.size),
        ]
        command += ["--plugins", str(plugins)]
        dump = f"--xla_jf_dump_to={folder} --xla_jf_dump_hlo_text=true"
        dump += " --xla_jf_dump_llo_pass_label_regex=NONE"
        environment = {**os.environ, **child_environment(plugins), "LIBTPU_INIT_ARGS": dump}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              env=environment) as child:  # fmt: skip
            assert child.stdin is not None
            child.stdin.write(captured.module)
            child.stdin.close()
            try:
                return _written(child, Path(folder))
            finally:
                child.send_signal(signal.SIGKILL)


def _written(child: subprocess.Popen[bytes], folder: Path) -> str:
    before = -1
    for _ in range(SECONDS):
        found = sorted(folder.glob("*-TLP-hlo.txt"))
        size = found[0].stat().st_size if found else -1
        if found and size == before and size:
            return found[0].read_text()
        if child.poll() is not None and not found:
            raise SystemExit(f"the TPU compiler ended with {child.returncode}")
        before = size
        time.sleep(1)
    raise SystemExit(f"the TPU compiler wrote no module in {SECONDS} s")


def child_environment(plugins: Path) -> dict[str, str]:
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


def _child(devices: int) -> None:
    """Compile the StableHLO on the standard input; the module is written by a flag."""
    from jax.experimental import topologies
    from jaxlib import xla_client

    name = f"v6e:{TOPOLOGIES[devices]}x1"
    found = list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    options = compile_options(found)
    module = parse_module(sys.stdin.buffer.read())
    found[0].client.compile(module, xla_client.DeviceList(tuple(found)), options)


Line = tuple[str, str, str, str, str]  #: name, type, opcode, operands, the whole line


def parts_of(text: str) -> list[Part]:
    """Sums of the entry, then of each loop's body, forward first, of a scheduled module."""
    computations = {n: _lines(b) for n, b in _blocks(text).items()}
    entry = next(n for n, b in _blocks(text).items() if b.startswith("ENTRY"))
    bodies = re.findall(r"body=%([\w.\-]+)", text)
    found = [_part(computations[n], computations) for n in dict.fromkeys([entry, *bodies])]
    loops = [p for p in found[1:] if p.products and p.products + p.others >= FEW]
    return [found[0], *sorted(loops, key=lambda p: p.products)]


def _blocks(text: str) -> dict[str, str]:
    found = {}
    for block in re.split(r"\n\n+", text):
        head = block.lstrip("\n").split("\n", 1)[0]
        name = head.removeprefix("ENTRY ").split(" ")[0].lstrip("%")
        if head.endswith("{") and "(" in head:
            found[name] = block.lstrip("\n")
    return found


def _lines(block: str) -> list[Line]:
    found = []
    for line in block.split("\n")[1:]:
        cut = re.sub(r",? ?(metadata|backend_config)=.*$", "", line)
        if match := kernels.LINE.match(cut):
            found.append((*match.groups(), cut))
    return found


def _part(lines: list[Line], computations: dict[str, list[Line]]) -> Part:
    found = Part()
    types = {name: type_ for name, type_, _, _, _ in lines}
    for _, type_, opcode, operands, line in lines:
        if match := COLLECTIVE.match(opcode):
            if not opcode.endswith("-done"):
                when = " (async)" if opcode.endswith("-start") else ""
                found.collectives[match.group(1), when] += 1
        elif opcode in ("copy-start", "slice-start"):
            found.copies += 1
            found.copy_bytes += _moved_early(type_)
        elif opcode not in IDLE or "tpu_custom_call" in line:
            called = re.search(r"calls=%([\w.\-]+)", line)
            body = computations.get(called.group(1), []) if called else []
            if inner := _collective_inside(body):
                found.collectives[inner, " (fused)"] += 1
            read = re.findall(r"%([\w.\-]+)", operands)
            outside = [_bytes(type_), *(_bytes(types.get(r, "")) for r in read)]
            if opcode == "dynamic-update-slice":
                outside = [_bytes(types.get(read[1], ""))] * 2  # the rest stays as it is
            edge = _fused(body, type_, computations) if body else _sum(outside)
            found.add(edge, product=_has_product(opcode, body, computations))
    return found


def _has_product(opcode: str, body: list[Line], computations: dict[str, list[Line]]) -> bool:
    if opcode in ("convolution", "dot"):
        return True
    return any(
        inner in ("convolution", "dot")
        or (inner == "fusion" and (c := re.search(r"calls=%([\w.\-]+)", line)) is not None
            and _has_product("", computations.get(c.group(1), []), computations))
        for _, _, inner, _, line in body
    )  # fmt: skip


def _collective_inside(body: list[Line]) -> str:
    found = (COLLECTIVE.match(opcode) for _, _, opcode, _, _ in body)
    return next((m.group(1) for m in found if m), "")


def _moved_early(type_: str) -> int:
    """Bytes of an early copy: what arrives. (`copy-start` names it first, `slice-start` second.)"""
    arrays = [_bytes("".join(a))[0] for a in ARRAY.findall(type_) if a[0][-1] != "["]
    sizes = [s for s in arrays if s > 4]
    return min(sizes, default=0)


def _fused(body: list[Line], result: str, computations: dict[str, list[Line]]) -> tuple[int, int]:
    """Bytes that cross the edge of a fusion, and those of them in HBM."""
    types = {name: type_ for name, type_, _, _, _ in body}
    edges = []
    updates = [args for _, _, opcode, args, _ in body if opcode == "dynamic-update-slice"]
    if updates:
        written = [types.get(kernels.operands_of(a)[1], "") for a in updates]
        shares = _bytes(result)
        size = sum(_bytes(t)[0] for t in written)
        edges.append((size, size if shares[1] else 0))
    else:
        edges.append(_bytes(result))
    for name, type_, opcode, _, _ in body:
        if opcode == "parameter":
            size = _read(name, type_, body, computations)
            edges.append((size, size if _bytes(type_)[1] else 0))
    return _sum(edges)


def _read(name: str, type_: str, body: list[Line], computations: dict[str, list[Line]]) -> int:
    """Bytes of a parameter that a fusion reads, also where a fusion inside of it slices it."""
    whole, size = kernels.type_bytes(type_), 0
    users = [r for r in body if r[2] != "parameter" and name in kernels.operands_of(r[3])]
    if not users:
        return whole  # the result of a fusion inside of a fusion
    for user, result, opcode, args, line in users:
        operands = kernels.operands_of(args)
        called = re.search(r"calls=%([\w.\-]+)", line)
        if opcode == "fusion" and called:
            inner = computations[called.group(1)]
            for number in [i for i, operand in enumerate(operands) if operand == name]:
                row = next(r for r in inner if r[2] == "parameter" and r[3] == str(number))
                size += _read(row[0], row[1], inner, computations)
        elif opcode == "dynamic-slice":
            size += kernels.type_bytes(result)
        elif opcode == "bitcast":
            size += _read(user, result, body, computations)
        elif opcode != "dynamic-update-slice" or operands[0] != name:
            return whole
    return min(size, whole)


def _sum(edges: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(e[0] for e in edges), sum(e[1] for e in edges)


def _bytes(type_: str) -> tuple[int, int]:
    """Bytes of a type, of all parts of a tuple, and those of them in HBM."""
    edges = []
    for array, layout in ARRAY.findall(type_):
        size = kernels.type_bytes(array)
        edges.append((size, 0 if "S(" in layout else size))
    return _sum(edges)


if __name__ == "__main__":
    main()
