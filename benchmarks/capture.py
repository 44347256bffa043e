"""Time capturing Llama 3 training steps, each in a process of its own.

    python benchmarks/capture.py                                    every case
    python benchmarks/capture.py --models 70b --layers scan --devices 512,32768
    python benchmarks/capture.py --repeat 3                         the fastest of three

Columns: wall and CPU seconds from the start of the process to a verified Program (interpreter,
imports, JAX's tracing, the partitioner's child process included), and the largest resident memory of
the process and of its child. The mesh is (devices / 8) x 8, or 1 x 8 for eight devices; FSDP over
the first axis, tensor parallelism over the second. Nothing is written.

Layers are one `scan`, `unrolled` (a list of layers behind one jitted function), or a `loop` (the
same list without that jit: every layer is traced, partitioned and walked).
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL_RANKS = 8
#: What the example does with a layer of a list.
JITTED = "block = jax.jit(block)"
HEADINGS = ("model", "layers", "devices", "rows", "wall s", "cpu s", "MB", "child MB")


def main() -> None:
    """Run the chosen cases one after another and print a line for each."""
    options = _options()
    if options.case:
        _capture(*options.case.split(","))
        return
    print(" ".join(f"{h:>9}" for h in HEADINGS))
    for model in options.models.split(","):
        for layers in options.layers.split(","):
            for devices in options.devices.split(","):
                runs = [run(model, layers, devices) for _ in range(options.repeat)]
                best = min(runs, key=lambda r: r["wall"])
                _print_row(model, layers, devices, best)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default="8b,70b,405b")
    parser.add_argument("--layers", default="scan,unrolled")
    parser.add_argument("--devices", default="8,512,4096,32768")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--case", help=argparse.SUPPRESS)  # what a measured process does
    return parser.parse_args()


def run(model: str, layers: str, devices: str) -> dict[str, float]:
    """One case in a new process; its wall time is taken here, outside of it."""
    command = [sys.executable, __file__, "--case", f"{model},{layers},{devices}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled already
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    wall = time.perf_counter() - started
    measured: dict[str, float] = json.loads(done.stdout)
    return {**measured, "wall": wall}


def _capture(model: str, layers: str, devices: str) -> None:
    """The measured process: capture, verify, end the child, print what it took as JSON."""
    from flint.passes.partition.worker import the_worker
    from flint.steps.model_file import Target, importable, load_step
    from flint.tracing import trace_step

    mesh = f"{int(devices) // MODEL_RANKS}x{MODEL_RANKS}"
    settings = {"model": model, "layers": "unrolled" if layers == "loop" else layers}
    with tempfile.TemporaryDirectory() as scratch:
        target = Target(_example(layers, Path(scratch)))
        with importable(target.path.parent):
            loaded = load_step(target, mesh, settings=settings)
            program = trace_step(loaded.step, loaded.mesh, name=loaded.name).program
    program.verify()
    the_worker().stop()  # the usage of children counts those that have ended
    own, child = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    per_mb = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes there
    measured = {
        "rows": len(program),
        "cpu": own.ru_utime + own.ru_stime + child.ru_utime + child.ru_stime,
        "mb": own.ru_maxrss / per_mb,
        "child_mb": child.ru_maxrss / per_mb,
    }
    print(json.dumps(measured))


def _example(layers: str, scratch: Path) -> Path:
    """The example; for a `loop` a copy of it in `scratch` whose layers are not jitted."""
    path = ROOT / "examples" / "llama_jax.py"
    if layers != "loop":
        return path
    text = path.read_text()
    assert text.count(JITTED) == 1, f"the example has no line '{JITTED}'"
    copy = scratch / path.name
    copy.write_text(text.replace(JITTED, "pass"))
    return copy


def _print_row(model: str, layers: str, devices: str, r: dict[str, float]) -> None:
    seconds = f"{r['wall']:9.2f} {r['cpu']:9.2f}"
    memory = f"{r['mb']:9.0f} {r['child_mb']:9.0f}"
    print(f"{model:>9} {layers:>9} {devices:>9} {r['rows']:9,.0f} {seconds} {memory}", flush=True)


if __name__ == "__main__":
    main()
