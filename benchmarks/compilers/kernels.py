"""Kernels, bytes, FLOPs, memory and step time of captured programs against XLA's GPU compiler's.

    python -m benchmarks.compilers.kernels
    python -m benchmarks.compilers.kernels --examples \\
        --write-json tests/oracle/compiled_kernels_xla_gpu.json
    python -m benchmarks.compilers.kernels --exactly "llama tp, remat full" --classes

What the compiler made is kept in $FLINT_CACHE_DIR. The captured side is the partitioned program with the kernels of profile `xla-gpu`; the compiled side is the optimised
module, whose kernels stay as they are. Both are priced on `h100-dgx`, chip and network alike, with
communication as early as it can begin. Memory of the compiled side is the compiler's own account.

Prints a Markdown row for each program, captured / compiled and the difference, and how many are
within the bars. `--classes` prints kernels and bytes of one program by what they are.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jaxlib
import numpy as np

from benchmarks.compilers.programs import Case, Sample, samples
from benchmarks.compilers.whole import Compiler
from flint.backends.cost.estimate import Estimate, estimate
from flint.cluster.models import Cluster
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.passes.partition.xla import partitioned
from flint.passes.work.totals import matmul_flops, total
from flint.requests.estimate import EstimateRequest

CLUSTER = "h100-dgx"
#: What is compared, its unit in the table, and how far it may be off to count as within the bar.
COLUMNS = {
    "kernels": ("", 1.0, 0.10),
    "moved_bytes": (", MB", 1e6, 0.10),
    "product_flops": (", GFLOP", 1e9, 0.01),
    "memory_bytes": (", MB", 1e6, 0.10),
    "step_ns": (", us", 1e3, 0.08),
}


@dataclass(frozen=True)
class Done:
    """What one device does in one step, loops multiplied out.

    `moved_bytes` are those that cross the edges of kernels, `product_flops` those of products of
    matrices and convolutions; `memory_bytes` the most in use at once.
    """

    kernels: int
    moved_bytes: int
    product_flops: int
    memory_bytes: int
    step_ns: float

    @classmethod
    def of(cls, estimated: Estimate, memory_bytes: int | None = None) -> Done:
        """Add up the kernels of an estimate of one rank class."""
        program = estimated.kernels.programs[0]
        rows = np.flatnonzero(program.kind == Kind.COMPUTE)
        trips = program.trips[rows].astype(object)
        moved = program.operand_bytes[rows] + program.result_bytes[rows]
        peak = estimated.classes[0].memory.peak_bytes
        return cls(
            int(trips.sum()),
            int((moved * trips).sum()),
            total(program, matmul_flops(program)),
            peak if memory_bytes is None else memory_bytes,
            estimated.step_time_ns,
        )


def captured_side(program: Program, cluster: Cluster, profile: str = "xla-gpu") -> Estimate:
    """A partitioned program with the kernels of a compiler's profile."""
    workload = Workload.single(program)
    return estimate(workload, EstimateRequest(cluster, profile=profile, unpriced_is_zero=True))


def compiled_side(program: Program, cluster: Cluster, stack: str = "xla") -> Estimate:
    """A compiled program: its rows are its kernels, launched by the software of `stack`."""
    request = EstimateRequest(cluster, stack=stack, profile="eager", unpriced_is_zero=True)
    return estimate(Workload.single(program), request)


def main() -> None:
    """Compare the chosen programs and print the table."""
    options = _options()
    cluster, whole, found = load_cluster(CLUSTER), Compiler("xla-gpu"), {}
    print(_head())
    for sample in samples():
        if not _is_chosen(sample, options):
            continue
        both = _both(sample, whole, cluster)
        if both is None:
            continue
        if options.classes:
            _print_classes(*both)
        sides = Done.of(both[0]), Done.of(both[1], both[2])
        found[sample.name] = sides
        print(_row(sample.name, *sides, _why(both[0], both[1])), flush=True)
    print(_summary(found))
    if options.write_json:
        options.write_json.write_text(_as_json(found), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="programs whose name contains one of these")
    parser.add_argument("--exactly", default="", help="one program by name")
    parser.add_argument("--examples", action="store_true", help="only programs of examples/")
    parser.add_argument("--classes", action="store_true", help="kernels by what they are")
    parser.add_argument("--write-json", type=Path)
    return parser.parse_args()


def _is_chosen(sample: Sample, options: argparse.Namespace) -> bool:
    if options.exactly:
        return bool(sample.name == options.exactly)
    named = any(part in sample.name for part in options.only.split(","))
    return named and (isinstance(sample, Case) or not options.examples)


def _both(
    sample: Sample, whole: Compiler, cluster: Cluster
) -> tuple[Estimate, Estimate, int] | None:
    """Both sides and the compiler's memory; None if it does not compile, or cannot be read."""
    captured = sample.capture(whole.platform)
    try:
        program, memory_bytes = whole.compiled(captured)
        mine = captured_side(partitioned(captured).program, cluster)
        return mine, compiled_side(program, cluster), memory_bytes
    except FlintError as error:
        print(f"{sample.name}: {error}")
        return None


# printing ----------------------------------------------------------------------------------------


def _head() -> str:
    names = [name.rpartition("_")[0] or name for name in COLUMNS]
    units = [unit for unit, _, _ in COLUMNS.values()]
    cells = [f"{n}{u}" for n, u in zip(names, units, strict=True)]
    cells.append("largest part of the time")
    return f"| program | {' | '.join(cells)} |\n|---|" + "---:|" * (len(cells) - 1) + "---|"


#: Programs are compiled without scopes, so that the compiled side has no optimizer's phase.
_CALLED = {"optimizer": "elementwise"}
#: Step times that differ by less need no reason.
_NEAR = 0.05


def _why(mine: Estimate, other: Estimate) -> str:
    """Of step times that differ: which work's time on the critical stream differs most."""
    if abs(difference(mine.step_time_ns, other.step_time_ns)) <= _NEAR:
        return ""
    one, two = _parts(mine), _parts(other)
    gaps = {name: one[name] - two[name] for name in {*one, *two}}
    name = max(sorted(gaps), key=lambda name: abs(gaps[name]))
    return f"{name} {gaps[name] / 1e3:+,.1f} us"


def _parts(estimated: Estimate) -> Counter[str]:
    """Time by kind of work, as far as nothing else hides it."""
    found: Counter[str] = Counter()
    for share in estimated.classes[0].shares:
        kind = _CALLED.get(share.kind, share.kind)
        found[f"{kind} over {share.over}" if share.over else kind] += round(share.exposed_ns)
    return found


def _row(name: str, mine: Done, other: Done, why: str) -> str:
    cells = [
        _cell(getattr(mine, column), getattr(other, column), scale)
        for column, (_, scale, _) in COLUMNS.items()
    ]
    return f"| {name} | " + " | ".join([*cells, why]) + " |"


def _cell(mine: float, other: float, scale: float) -> str:
    digits = 0 if other >= 100 * scale or not other else 2
    text = f"{mine / scale:,.{digits}f} / {other / scale:,.{digits}f}"
    return f"{text} {difference(mine, other):+.1%}"


def difference(mine: float, other: float) -> float:
    """Relative to the compiled program; 0 where neither has any."""
    return (mine - other) / other if other else float(mine != other)


def _summary(found: dict[str, tuple[Done, Done]]) -> str:
    parts = []
    for column, (_, _, bar) in COLUMNS.items():
        off = [abs(difference(getattr(a, column), getattr(b, column))) for a, b in found.values()]
        parts.append(f"{column} within {bar:.0%}: {sum(d <= bar for d in off)} of {len(off)}")
    return "\n" + "; ".join(parts)


def _as_json(found: dict[str, tuple[Done, Done]]) -> str:
    """The compiled side of every program: one line for each, so that a change is a readable diff."""
    lines = [
        f"  {json.dumps(name)}: {json.dumps(_record(other))}" for name, (_, other) in found.items()
    ]
    head = f'{{"compiler": "xla-gpu", "jaxlib": "{jaxlib.__version__}", "cluster": "{CLUSTER}",'
    return head + '\n "programs": {\n' + ",\n".join(lines) + "\n}}\n"


def _record(done: Done) -> dict[str, Any]:
    return {**asdict(done), "step_ns": round(done.step_ns)}


def _print_classes(mine: Estimate, other: Estimate, _: int) -> None:
    for label, side in (("captured", mine), ("compiled", other)):
        print(label)
        for name, (count, moved) in _classes(side.kernels.programs[0]):
            print(f"  {name:<34} {count:7,d} {moved / 1e6:12,.1f} MB")


def _classes(program: Program) -> Iterator[tuple[str, tuple[int, int]]]:
    counts: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for row in np.flatnonzero(program.kind == Kind.COMPUTE).tolist():
        name = program.opcodes[program.opcode[row]]
        times = int(program.trips[row])
        counts[name] += times
        moved[name] += times * int(program.operand_bytes[row] + program.result_bytes[row])
    for name, size in moved.most_common():
        yield name, (counts[name], size)


if __name__ == "__main__":
    main()
