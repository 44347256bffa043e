"""How much of captured workloads is made of free sizes, and how much of that `flint anonymize --level shapes` changes.

    python benchmarks/sharing/sizes_coverage.py CAPTURES [WORD...] [--shapes]

CAPTURES is a folder of `.flint` files (`known_examples.py` writes one), of which those of one program are read whose name has a WORD. Of each: rows,
CPU seconds, variables, free shares of dimensions, FLOPs and bytes moved. Then all variables are changed at random: op classes of
rows that then do not fit what they read, and did before, are named. With `--shapes` also what the level does at 2 %.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from flint.errors import FlintError
from flint.ir.program import Kind
from flint.ir.workload import Workload
from flint.tools.share.anonymize import anonymize
from flint.tools.share.sizes import Sizes


def main() -> int:
    """Print a row for each capture; exit status 1 where rows do not fit."""
    words = [a for a in sys.argv[2:] if not a.startswith("--")]
    files = sorted(Path(sys.argv[1]).glob("*.flint"))
    chosen = [f for f in files if not words or any(w in f.name for w in words)]
    print("| capture | rows | CPU s | variables | dimensions | FLOPs | bytes | broken | shapes |")
    print("|---|--:|--:|--:|--:|--:|--:|---|---|")
    bad = 0
    chosen = [path for path in chosen if len(Workload.load(path).programs) == 1]
    for path in chosen:
        row, broken = _row(path, shapes="--shapes" in sys.argv)
        bad += bool(broken)
        print(row, flush=True)
    print(f"\n{len(chosen) - bad} of {len(chosen)} fit with other sizes")
    return 1 if bad else 0


def _row(path: Path, *, shapes: bool) -> tuple[str, set[str]]:
    workload = Workload.load(path)
    start = time.process_time()
    sizes = Sizes.of(workload)
    seconds = time.process_time() - start
    broken = _broken(sizes)
    free = " | ".join(f"{share:.0%}" for share in _free(sizes))
    rows = sum(map(len, workload.programs))
    changed = _changed(workload) if shapes else "-"
    said = ", ".join(sorted(broken)) or "-"
    head = f"| {path.stem} | {rows:,} | {seconds:.2f} | {len(sizes.variables)} | {free}"
    return f"{head} | {said} | {changed} |", broken


def _free(sizes: Sizes) -> tuple[float, float, float]:
    """Shares of dimensions longer than 1, of FLOPs and of bytes moved that some variable is in."""
    is_free = np.array([bool(e.variables) for e in sizes.table.entries])
    found = np.zeros((3, 2))
    columns = sizes.columns
    p = columns.program
    counts = np.bincount(columns.shape, minlength=len(columns.shapes))
    for shape, count in zip(columns.shapes, counts.tolist(), strict=True):
        long = [e for e in shape if sizes.table.entries[e].terms != (((), 1),)]
        found[0] += count * np.array([is_free[long].sum(), len(long)])
    works = (p.kind >= Kind.COMPUTE) * p.trips.astype(np.float64)
    for place, names in ((1, ("flops",)), (2, ("result_bytes", "operand_bytes"))):
        for name in names:
            number = works * getattr(p, name)
            found[place] += number[is_free[columns.numbers[name]]].sum(), number.sum()
    dims, flops, moved = (float(a / b) if b else 0.0 for a, b in found)
    return dims, flops, moved


def _broken(sizes: Sizes) -> set[str]:
    """Op classes of rows that do not fit what they read with other sizes, and do in the original."""
    random = np.random.default_rng(1)
    values = {
        v.number: max(int(v.value * factor), 1) + int(more)
        for v, factor, more in zip(
            sizes.variables,
            random.uniform(0.5, 3.0, len(sizes.variables)),
            random.integers(0, 4, len(sizes.variables)),
            strict=True,
        )
    }
    found = sizes.resized(values)
    found.verify()
    return {op.name for op in Sizes.of(found).unexplained_ops - sizes.unexplained_ops}


def _changed(workload: Workload) -> str:
    start = time.process_time()
    try:
        found = anonymize(workload, level="shapes", seed=1)
    except FlintError as error:
        return f"{error.code}, {time.process_time() - start:.1f} s: {error.help}"
    assert found.moves is not None
    m, seconds = found.moves, time.process_time() - start
    return (
        f"{m.changed} of {m.variables}, {m.dimensions:.0%}, median {m.median:.1%}, {seconds:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
