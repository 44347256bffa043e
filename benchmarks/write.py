"""Time writing every rank's trace against copying the same bytes.

    python benchmarks/write.py                        a synthetic Transformer step
    python benchmarks/write.py step.flint --ranks 8,64
    python benchmarks/write.py --groups dims --link --ranks 32768

Prints one line per number of ranks. Writes below --directory (the system's temporary directory
unless it is given) and removes what it wrote.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from flint.backends.chakra import write
from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Kind, Program, RegionKind
from flint.ir.workload import RankClass, Workload
from flint.rewrite import rewrite

LAYERS = 32
#: Scope, collective over an axis after it, and its bytes: one layer's forward and backward.
FORWARD = ("norm", "attention/qkv", "attention/scores", "attention/softmax", "attention/out", "mlp")


def transformer(mesh: Mesh) -> Program:
    """About 3,000 nodes: two scans of LAYERS layers, gathered weights, reduced activations."""
    b = ProgramBuilder(mesh)
    weights = b.add("param", Kind.PARAMETER, result_bytes=1 << 30)
    last = b.add("stablehlo.gather", deps=[weights], result_bytes=1 << 24, operand_bytes=1 << 24)
    for name, per_scope in (("forward", 5), ("backward", 8)):
        b.begin_region(RegionKind.LOOP, LAYERS, name=name)
        carried = b.add("carry", Kind.VALUE, deps=[last])
        last = carried
        for scope in FORWARD:
            last = _scope(b, f"transpose(jvp(llama))/layers/{scope}", weights, last, per_scope)
        b.end_region([(carried, last)])
    b.add("stablehlo.subtract", deps=[last], flops=1 << 20, result_bytes=1 << 22)
    return b.build()


def _scope(b: ProgramBuilder, scope: str, weights: int, last: int, operations: int) -> int:
    gathered = _collective(b, Collective.ALL_GATHER, "data", [weights], 1 << 20, scope)
    for _ in range(operations):
        last = b.add(
            "stablehlo.dot_general",
            deps=[last, gathered],
            flops=1 << 36,
            result_bytes=1 << 24,
            operand_bytes=1 << 25,
            scope=scope,
        )
    return _collective(b, Collective.ALL_REDUCE, "model", [last], 1 << 24, scope)


def _collective(
    b: ProgramBuilder, kind: Collective, axis: str, deps: list[int], comm_bytes: int, scope: str
) -> int:
    return b.add(
        f"sdy.{kind.name.lower()}",
        Kind.COLLECTIVE,
        deps=deps,
        collective=kind,
        group=Group((AxisRef(axis),)),
        comm_bytes=comm_bytes,
        result_bytes=comm_bytes,
        scope=scope,
    )


def workload_for(ranks: int, source: Path | None) -> Workload:
    """The synthetic step on `ranks` devices, or the program of a file with its mesh resized.

    A mesh keeps two positions along its first axis: groups of one are not in a program.
    """
    if source is None:
        model = min(8, max(ranks // 2, 1))
        return Workload.single(transformer(Mesh(("data", "model"), (ranks // model, model))))
    loaded = Workload.load(source)
    inner = loaded.mesh.size // loaded.mesh.sizes[0]
    mesh = Mesh(loaded.mesh.names, (max(ranks // inner, 2), *loaded.mesh.sizes[1:]))
    programs = tuple(replace(p, mesh=mesh) for p in loaded.programs[:1])
    return Workload(mesh, programs, (RankClass("all", 0),), loaded.metadata)


def measure(workload: Workload, place: Path, granularity: str, groups: str, link: bool) -> str:
    """One line of the table. Merging operations into kernels is part of the time."""
    cpu, wall = time.process_time(), time.perf_counter()
    nodes_of = rewrite(workload, granularity=granularity)
    report = write(nodes_of, place / "traces", groups=groups, link=link, keep=workload)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    copy = time.perf_counter()
    if link:
        copied = "-", "-"
    else:
        shutil.copytree(place / "traces", place / "copy")
        copy = time.perf_counter() - copy
        copied = f"{copy:.2f}", f"{wall / copy:.2f}"
    nodes = max(report.nodes.values())
    return (
        f"{report.ranks:>7} {nodes:>7} {report.trace_bytes / 1e6:>10.1f} "
        f"{report.disk_bytes / 1e6:>9.1f} {cpu:>7.2f} {wall:>7.2f} {copied[0]:>7} {copied[1]:>6}"
    )


def main() -> None:
    """Parse arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", nargs="?", type=Path, help="a .flint file")
    parser.add_argument("--ranks", default="8,64,512,4096", help="numbers of ranks")
    parser.add_argument("--granularity", default="kernel", choices=("op", "kernel"))
    parser.add_argument("--groups", default="names", choices=("names", "dims"))
    parser.add_argument("--link", action="store_true", help="hard links for ranks of equal bytes")
    parser.add_argument("--directory", type=Path, help="where to write")
    options = parser.parse_args()
    print(
        f"{'ranks':>7} {'nodes':>7} {'traces MB':>10} {'disk MB':>9} {'CPU s':>7} {'wall s':>7} "
        f"{'copy s':>7} {'ratio':>6}"
    )
    for ranks in map(int, options.ranks.split(",")):
        workload = workload_for(ranks, options.source)
        with tempfile.TemporaryDirectory(prefix="flint-write-", dir=options.directory) as place:
            line = measure(workload, Path(place), options.granularity, options.groups, options.link)
            print(line, flush=True)


if __name__ == "__main__":
    main()
