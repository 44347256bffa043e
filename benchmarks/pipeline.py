"""Time whole pipelines: capture, and writing every rank's trace, each in a process of its own.

    python benchmarks/pipeline.py                     every case
    python benchmarks/pipeline.py --only "GPT-3"      those whose name contains this
    python benchmarks/pipeline.py --repeat 3          the least of three

`CPU s` is user and system time from the start of the process (interpreter, imports, JAX's tracing,
the partitioner's child process included) to the last file, `wall s` the time that passed. The last
two columns: what is allowed, and what STAGE, a generator of such traces for the models that it knows,
took when that was set, where it was tried. Files go below --directory (the system's temporary
directory unless it is given) and are removed. The 405B model is captured and verified, not written.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADINGS = ("ranks", "rows", "nodes", "MB", "CPU s", "wall s", "allowed", "STAGE")


@dataclass(frozen=True)
class Case:
    """One pipeline: a model file of examples/, the mesh and the settings of its entry.

    `allowed` and `stage` are CPU seconds; without `allowed` it is captured only.
    """

    name: str
    model: str
    mesh: str
    settings: dict[str, str] = field(default_factory=dict)
    allowed: float | None = None
    stage: float | None = None


CASES = (
    Case("GPT-3 TP8 PP8, 8", "gpt3_jax.py", "8x1x8", {"microbatches": "8"}, 10, 137),
    Case("GPT-3 TP8 PP8, 64", "gpt3_jax.py", "8x1x8", {"microbatches": "64"}, 20),
    Case("GPT-3 TP8 PP8 DP8, 8", "gpt3_jax.py", "8x8x8", {"microbatches": "8"}, 15, 220),
    Case(
        "Llama 70B TP8 PP4 DP2, 8",
        "llama_jax.py:pipelined",
        "4x2x8",
        {"model": "70b", "microbatches": "8"},
        10,
        173,
    ),
    Case(
        "Llama 405B TP8 PP16 DP128, 16",
        "llama_jax.py:pipelined",
        "16x128x8",
        {"model": "405b", "microbatches": "16", "parallel": "fsdp+tp+sp", "reshard": "false"},
    ),
)


def main() -> None:
    """Run the chosen cases one after another and print a line for each."""
    options = _options()
    if options.case is not None:
        _measured(CASES[options.case], options.directory)
        return
    width = max(len(case.name) for case in CASES)
    print(f"{'name, microbatches':<{width}}", *(f"{h:>9}" for h in HEADINGS))
    for number, case in enumerate(CASES):
        if options.only in case.name:
            runs = [_run(number, options.directory) for _ in range(options.repeat)]
            best = min(runs, key=lambda r: r["cpu"])
            print(f"{case.name:<{width}}", *_cells(case, best), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where to write")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)  # what a measured process does
    return parser.parse_args()


def _run(number: int, directory: Path | None) -> dict[str, float]:
    """One case in a new process; its wall time is taken here, outside of it."""
    with tempfile.TemporaryDirectory(prefix="flint-pipeline-", dir=directory) as place:
        command = [sys.executable, __file__, "--case", str(number), "--directory", place]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        started = time.perf_counter()
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        wall = time.perf_counter() - started
    measured: dict[str, float] = json.loads(done.stdout)
    return {**measured, "wall": wall}


def _measured(case: Case, place: Path) -> None:
    """The measured process: capture, write, end the child, print what it took as JSON."""
    from flint.passes.partition.worker import the_worker
    from flint.steps.model_file import Target, importable, load_step
    from flint.tracing import trace_step

    target = Target.parse(str(ROOT / "examples" / case.model))
    with importable(target.path.parent):
        loaded = load_step(target, case.mesh, settings=case.settings)
        trace = trace_step(loaded.step, loaded.mesh, name=loaded.name, source=loaded.source)
    nodes = trace_bytes = 0
    if case.allowed is None:
        trace.workload.verify()
    else:
        report = trace.save(place / "traces")
        nodes, trace_bytes = max(report.nodes.values()), report.trace_bytes
    the_worker().stop()  # the usage of children counts those that have ended
    own, child = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    measured = {
        "ranks": trace.mesh.size,
        "rows": sum(len(p) for p in trace.workload.programs),
        "nodes": nodes,
        "mb": trace_bytes / 1e6,
        "cpu": own.ru_utime + own.ru_stime + child.ru_utime + child.ru_stime,
    }
    print(json.dumps(measured))


def _cells(case: Case, r: dict[str, float]) -> list[str]:
    written = [f"{r['nodes']:9,.0f}", f"{r['mb']:9.1f}"] if case.allowed else [f"{'-':>9}"] * 2
    bars = [f"{'-' if bar is None else bar:>9}" for bar in (case.allowed, case.stage)]
    return [
        f"{r['ranks']:9,}",
        f"{r['rows']:9,}",
        *written,
        f"{r['cpu']:9.2f}",
        f"{r['wall']:9.2f}",
        *bars,
    ]


if __name__ == "__main__":
    main()
