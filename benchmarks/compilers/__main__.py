"""Collectives of captured programs against those of XLA's whole GPU compiler, program by program.

    pip install jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2
    python -m benchmarks.compilers --keep compiled
    python -m benchmarks.compilers --keep compiled --only llama_fsdp --show
    python -m benchmarks.compilers --keep compiled --write

`--write` writes docs/compilers.md (between its marks) and tests/oracle/compiled_xla_gpu.json, which
tests hold captured programs against without a compiler.

No device is needed: the compiler runs whole for an H100 SXM that is described to it. `--keep DIR`
keeps what it made; a program is compiled again when its StableHLO changes, so that a second run
evaluates captured sides only. The captured side is `shardy` with the profile of the compiler.

Prints a Markdown row for each program (see `table.py`) and how many are how far (`compare.py`).
`--show` prints kinds, axes, executions and bytes of both sides, and XLA's partitioner alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jaxlib

from benchmarks.compilers.compare import Comparison
from benchmarks.compilers.compile import Kept, compile_all
from benchmarks.compilers.programs import ROOT, Sample, samples
from benchmarks.compilers.reasons import REASONS
from benchmarks.compilers.table import as_json, equal_programs, markdown, summary
from flint.errors import FlintError
from flint.frontends.files.hlo import read_hlo
from flint.ir.program import Program
from flint.passes.base import run_passes
from flint.passes.compilers.sides import Side, side
from flint.passes.partition import partitioner
from flint.passes.profiles import profile
from flint.passes.rewrites.dead_code import DropDeadCode
from flint.steps.captured import Captured

PAGE = ROOT / "docs" / "compilers.md"
DATA = ROOT / "tests" / "oracle" / "compiled_xla_gpu.json"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
PLATFORMS = {"gpu": "cuda", "tpu": "tpu"}


def main() -> None:
    """Compare the chosen programs and print the table."""
    options = _options()
    chosen = [s for s in samples() if _is_chosen(s, options)]
    captured = {s.name: s.capture(PLATFORMS[options.compiler]) for s in chosen}
    options.keep.mkdir(parents=True, exist_ok=True)
    kept = {name: Kept.of(options.keep, name, options.compiler) for name in captured}
    compile_all([(kept[name], c) for name, c in captured.items()], options.compiler, options.python)
    comparisons: list[Comparison] = []
    failed: list[str] = []
    for name, program in captured.items():
        compared = _compare(name, program, kept[name], options.compiler)
        if isinstance(compared, str):
            failed.append(compared)
            continue
        comparisons.append(compared)
        if options.show:
            _show(compared, program)
    print(markdown(comparisons))
    print(*failed, sep="\n")
    print(summary(comparisons))
    if options.write:
        _write(comparisons, failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--keep", type=Path, required=True, help="a folder for compiled modules")
    parser.add_argument("--compiler", choices=PLATFORMS, default="gpu")
    parser.add_argument("--only", default="", help="programs whose name contains one of these")
    parser.add_argument("--exactly", default="", help="programs by name, with commas")
    parser.add_argument("--show", action="store_true", help="every collective of both sides")
    parser.add_argument("--write", action="store_true", help="write the page and the test's data")
    parser.add_argument("--python", default=sys.executable, help="Python that has the plugins")
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


def _compare(name: str, captured: Captured, kept: Kept, compiler: str) -> Comparison | str:
    facts = kept.facts
    if "error" in facts:
        return f"{name}: not compiled: {facts['error']}"
    try:
        compiled = read_hlo(
            kept.module.read_bytes(), captured.mesh, trip_counts=captured.trip_counts
        )
        program = run_passes(partitioner("shardy")(captured), profile(f"xla-{compiler}").passes)
    except FlintError as error:
        return f"{name}: {error}"
    assert isinstance(compiled, Program), "what a compiler gives is partitioned"
    return Comparison(
        name,
        str(captured.mesh),
        side(program),
        side(compiled, memory_bytes=_memory(facts["memory"])),
    )


def _memory(parts: dict[str, int]) -> int:
    """Bytes that a compiled program holds at once at most, by the compiler's own account."""
    return parts["argument"] + parts["output"] - parts["alias"] + parts["temp"]


def _show(comparison: Comparison, captured: Captured) -> None:
    xla = side(run_passes(partitioner("xla")(captured), [DropDeadCode()]))
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
