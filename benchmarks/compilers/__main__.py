"""Collectives of captured programs against those of XLA's whole GPU compiler, program by program.

    pip install jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2
    python -m benchmarks.compilers
    python -m benchmarks.compilers --only llama_fsdp --show
    python -m benchmarks.compilers --write

`--write` writes docs/compilers.md (between its marks) and tests/oracle/compiled_xla_gpu.json, which
tests hold captured programs against without a compiler.

No device is needed: the compiler runs whole for an H100 SXM that is described to it. What it made is
kept in $FLINT_CACHE_DIR; a program is compiled again when its StableHLO changes, so that a second
run evaluates captured sides only. The captured side is XLA's partitioner with the profile of the compiler.

Prints a Markdown row for each program (see `table.py`) and how many are how far (`compare.py`).
`--show` prints kinds, axes, executions and bytes of both sides, and XLA's partitioner alone.
"""

from __future__ import annotations

import argparse

import jaxlib

from benchmarks.compilers.compare import Comparison
from benchmarks.compilers.programs import ROOT, Sample, samples
from benchmarks.compilers.reasons import REASONS
from benchmarks.compilers.table import as_json, equal_programs, markdown, summary
from benchmarks.compilers.whole import CHIPS, Compiler
from flint.errors import FlintError
from flint.passes.base import run_passes
from flint.passes.compilers.sides import Side, side
from flint.passes.partition.xla import partitioned
from flint.passes.profiles import profile
from flint.passes.rewrites.dead_code import DropDeadCode
from flint.steps.captured import Captured

PAGE = ROOT / "docs" / "compilers.md"
DATA = ROOT / "tests" / "oracle" / "compiled_xla_gpu.json"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


def main() -> None:
    """Compare the chosen programs and print the table."""
    options = _options()
    whole = Compiler(options.compiler)
    comparisons: list[Comparison] = []
    failed: list[str] = []
    for sample in samples():
        if not _is_chosen(sample, options):
            continue
        captured = sample.capture(whole.platform)
        try:
            compared = _compare(sample.name, captured, whole)
        except FlintError as error:
            failed.append(f"{sample.name}: {error}")
            continue
        comparisons.append(compared)
        if options.show:
            _show(compared, captured)
    print(markdown(comparisons))
    print(*failed, sep="\n")
    print(summary(comparisons))
    if options.write:
        _write(comparisons, failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--compiler", choices=CHIPS, default="xla-gpu")
    parser.add_argument("--only", default="", help="programs whose name contains one of these")
    parser.add_argument("--exactly", default="", help="programs by name, with commas")
    parser.add_argument("--show", action="store_true", help="every collective of both sides")
    parser.add_argument("--write", action="store_true", help="write the page and the test's data")
    return parser.parse_args()


def _write(found: list[Comparison], failed: list[str]) -> None:
    """The page and the data, of all programs."""
    DATA.write_text(as_json(found, "xla-gpu", jaxlib.__version__), encoding="utf-8")
    parts = [
        f"{summary(found)} programs; {len(failed)} not compiled.",
        markdown(found, REASONS),
        f"Equal: {equal_programs(found)}.",
    ]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + "\n\n".join(parts) + "\n" + END + after, encoding="utf-8")


def _is_chosen(sample: Sample, options: argparse.Namespace) -> bool:
    if options.exactly:
        return sample.name in options.exactly.split(",")
    return any(part in sample.name for part in options.only.split(","))


def _compare(name: str, captured: Captured, whole: Compiler) -> Comparison:
    compiled, memory_bytes = whole.compiled(captured)
    program = run_passes(partitioned(captured).program, profile(whole.name).passes)
    other = side(compiled, memory_bytes=memory_bytes)
    return Comparison(name, str(captured.mesh), side(program), other)


def _show(comparison: Comparison, captured: Captured) -> None:
    xla = side(run_passes(partitioned(captured).program, [DropDeadCode()]))
    sides: dict[str, Side] = {
        "captured": comparison.captured,
        "compiled": comparison.compiled,
        "xla partitioner": xla,
    }
    print(f"### {comparison.name} ({comparison.mesh}): {comparison.verdict}")
    keys = sorted({k for s in sides.values() for k in s.collectives})
    for kind, axes in keys:
        cells = [s.collectives.get((kind, axes), (0, 0)) for s in sides.values()]
        print(f"{kind:>15} {axes:<22}", *(f"{n:5d}x {b:14,d}" for n, b in cells))
    print(f"{'ring bytes':>15} {'':<22}", *(f"{s.ring_bytes:21,.0f}" for s in sides.values()))


if __name__ == "__main__":
    main()
