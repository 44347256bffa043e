"""Peak memory of the JAX examples: Flint's beside what XLA says (`memory_analysis()`).

    python -m benchmarks.memory                        # every case
    python -m benchmarks.memory --only llama-scan-full,decode --tpu

Columns, in MB for one of eight devices:

- `XLA CPU`: the compiler that every machine has. It starts what is ready first.
- `sequential`: XLA for CPUs with a schedule for little memory (`--sequential`).
- `XLA TPU`: XLA's compiler for TPUs, which runs without one (`--tpu`; needs the package libtpu).
- `as written`: Flint's kernels in the order of the program, what `flint estimate` says.

Compilers run in processes of their own, because devices are chosen before jax starts.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: XLA says within which share of its bytes Flint's must be.
BAR = 0.05
SEQUENTIAL = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
#: What libtpu wants to know on a machine without TPUs.
NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v6e-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
TOPOLOGY = "v6e:2x4x1"


def compiled_bytes(case: str, target: str) -> dict[str, int]:
    """Peak bytes of a device as XLA says for `target` (cpu or tpu), in this process.

    On CPUs also what Flint says of the program that XLA ended with, read back from its HLO.
    """
    import jax
    import numpy as np

    from benchmarks.memory_cases import CASES

    found = CASES[case]()
    devices = np.array(_devices(target)).reshape(tuple(found.axes.values()))
    types = (jax.sharding.AxisType.Auto,) * devices.ndim
    step = found.make(jax.sharding.Mesh(devices, tuple(found.axes), axis_types=types))
    function = jax.jit(step.fn, donate_argnums=tuple(step.donate_argnums))
    compiled = function.lower(*step.args).compile()
    said = compiled.memory_analysis()
    if target == "tpu":  # most of its temporaries are in VMEM, which only the peak counts
        return {"xla": said.peak_memory_in_bytes}
    held = said.argument_size_in_bytes + said.output_size_in_bytes - said.alias_size_in_bytes
    text = compiled.as_text().encode()
    return {"xla": held + said.temp_size_in_bytes, "optimised": _optimised(text, case, found.axes)}


def _devices(target: str) -> Sequence[object]:
    import jax
    from jax.experimental import topologies

    if target == "cpu":
        return list(jax.devices())
    described = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY)
    return list(described.devices)


def _optimised(text: bytes, name: str, axes: Mapping[str, int]) -> int:
    from flint.backends.cost.memory.memory import memory_use
    from flint.frontends.files.hlo import read_hlo
    from flint.ir.mesh import Mesh
    from flint.ir.program import Program

    program = read_hlo(text, Mesh.parse(axes), name=name, trip_counts={})
    assert isinstance(program, Program)  # no pipeline
    return memory_use(program).peak_bytes


def captured_bytes(case: str) -> dict[str, int]:
    """Peak bytes of the captured program as written."""
    import flint
    from benchmarks.memory_cases import CASES
    from flint.backends.cost.memory.memory import step_memory
    from flint.frontends.jax_step.meshes import abstract_mesh
    from flint.ir.mesh import Mesh

    found = CASES[case]()
    mesh = Mesh.parse(found.axes)
    workload = flint.trace(found.make(abstract_mesh(mesh)), mesh).workload
    return {"written": step_memory(workload)[0].peak_bytes}


def in_process(what: str, cases: Sequence[str], flags: str = "") -> dict[str, dict[str, int]]:
    """`cpu`, `tpu` or `captured` bytes of cases, found by a process that ends with them.

    Raises RuntimeError, with what it wrote, if it fails.
    """
    environment = (
        os.environ
        | NO_TPU
        | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {flags}".strip(),
            "JAX_PLATFORMS": "cpu",
        }
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--child", what, "--only", ",".join(cases)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{what} {', '.join(cases)}: {done.stderr[-2000:]}")
    found: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def row_of(case: str, sequential: bool, tpu: bool) -> str:
    """One line of the table."""

    def found(what: str, flags: str = "") -> dict[str, int]:
        return in_process(what, [case], flags)[case]

    cpu, ours = found("cpu")["xla"], found("captured")
    parts = [_pair(cpu, ours["written"])]
    if sequential:
        parts.append(_pair(found("cpu", SEQUENTIAL)["xla"], ours["written"]))
    if tpu:
        parts.append(_pair(found("tpu")["xla"], ours["written"]))
    return f"{case:24} " + "  ".join(parts)


def _pair(xla: int, ours: int) -> str:
    return f"{xla / 1e6:8.1f} {ours / 1e6:8.1f} {_difference(ours, xla)}"


def _difference(ours: int, xla: int) -> str:
    return f"{ours / xla - 1:+7.1%}{' ' if abs(ours / xla - 1) <= BAR else '*'}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 2 if a TPU's compiler is asked for and missing."""
    parser = argparse.ArgumentParser(description="Peak memory beside XLA's analysis.")
    parser.add_argument("--only", default="", help="names of cases, with commas")
    parser.add_argument("--sequential", action="store_true", help="XLA CPU's other schedule too")
    parser.add_argument("--tpu", action="store_true", help="XLA TPU too (package libtpu)")
    parser.add_argument("--child", choices=("cpu", "tpu", "captured"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        bytes_of = (
            captured_bytes
            if options.child == "captured"
            else functools.partial(compiled_bytes, target=options.child)
        )
        print(json.dumps({case: bytes_of(case) for case in options.only.split(",")}))
        return 0
    if options.tpu and importlib.util.find_spec("libtpu") is None:
        print("--tpu needs XLA's compiler for TPUs: pip install libtpu", file=sys.stderr)
        return 2
    _table([c for c in options.only.split(",") if c], options.sequential, options.tpu)
    return 0


def _table(only: Sequence[str], sequential: bool, tpu: bool) -> None:
    from benchmarks.memory_cases import CASES

    head = f"{'case':24}  XLA CPU  as written"
    head += "   sequential  as written" * sequential + "    XLA TPU  as written" * tpu
    print(head, flush=True)
    for case in only or CASES:
        print(row_of(case, sequential, tpu), flush=True)
    print(f"MB of one device; * differs by more than {BAR:.0%}")


if __name__ == "__main__":
    raise SystemExit(main())
