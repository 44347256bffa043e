"""Run written traces in ASTRA-sim and compare its step time with Flint's.

    python benchmarks/astra_sim.py --simulator build/bin/AstraSim_Analytical_Congestion_Unaware
    python benchmarks/astra_sim.py --simulator ... --only ring --only decode

Captures every example below with durations (`-c CLUSTER`), or without (`-`: the roofline of the
placeholders), runs the analytical congestion-unaware backend on the directory, and prints for each
what the simulator says, what `flint estimate` says by its default rules, and what it says with the
rules of the simulator (`--overlap astra-sim`), which must be the same to the nanosecond. Without a
simulator nothing is run. Needs the examples' requirements and about ten CPU minutes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
_FINISHED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles")


@dataclass(frozen=True)
class Case:
    """A command of examples/README.md on a cluster ("-": none)."""

    name: str
    arguments: str
    cluster: str = "h100-dgx"


CASES = (
    Case("ring", "ring_attention_jax.py --mesh 2x8"),
    Case("resnet ddp", "torch_resnet50_ddp.py --mesh 16 --world"),
    Case("decode", "decode_jax.py --mesh 2x8"),
    Case("decode int8", "decode_jax.py --mesh 2x8 --set model=8b --set tokens=4 --set cache=int8"),
    Case("llama 2x8", "llama_jax.py --mesh 2x8"),
    Case("llama fsdp", "llama_jax.py --mesh 1x8 --set parallel=fsdp"),
    Case("llama v5p", "llama_jax.py --mesh 4x4", "v5p"),
    Case("mixtral", "mixtral_jax.py --mesh 2x8"),
    Case("spmd pipeline", "spmd_pipeline_jax.py --mesh 4x8"),
    Case("pipeline", "gpt3_jax.py --mesh pipe=4,data=1,model=8 --microbatches 8"),
    Case("torch pipeline", "torch_pipeline.py --mesh 4x2 --world"),
    Case("disaggregated", "disaggregated_jax.py --mesh pool=4,data=1,model=8"),
    Case("spatial resnet", "resnet50_jax.py --mesh 4x2 --set spatial=true"),
    Case("torch llama", "torch_llama.py --mesh 2x8 --world"),
    Case("llama, no cluster", "llama_jax.py --mesh 2x8", "-"),
    Case("mixtral, no cluster", "mixtral_jax.py --mesh 2x8", "-"),
    Case("pipeline, no cluster", "gpt3_jax.py --mesh pipe=4,data=1,model=8", "-"),
)


def simulated_ns(simulator: Path, directory: Path, network: str = "network.yml") -> int | None:
    """When the last rank finishes; None if some never do."""
    found = subprocess.run(
        [
            simulator,
            "--workload-configuration=trace",
            "--comm-group-configuration=comm_group.json",
            "--system-configuration=system.json",
            f"--network-configuration={network}",
            "--remote-memory-configuration=memory.json",
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    ends = {int(rank): int(end) for rank, end in _FINISHED.findall(found.stdout)}
    ranks = len(list(directory.glob("trace.*.et")))
    return max(ends.values()) if len(ends) == ranks else None


def estimated_ns(directory: Path, cluster: str, *options: str) -> float | None:
    """The step time of `flint estimate`, None where it has none."""
    command = [sys.executable, "-m", "flint", "estimate", str(directory), "-c", cluster]
    found = subprocess.run(
        [*command, *options, "--json"], capture_output=True, text=True, check=False
    )
    return float(json.loads(found.stdout)["step_time_ns"]) if found.returncode == 0 else None


def run(case: Case, simulator: Path, directory: Path) -> str:
    """One line of the table."""
    path, *rest = case.arguments.split()
    command = [sys.executable, "-m", "flint", "capture", str(ROOT / "examples" / path), *rest]
    on = [] if case.cluster == "-" else ["-c", case.cluster]
    subprocess.run([*command, *on, "-o", str(directory), "-q"], check=True, capture_output=True)
    began = time.process_time()
    simulated = simulated_ns(simulator, directory)
    del began
    default = estimated_ns(directory, case.cluster) if on else None
    exact = estimated_ns(directory, str(directory / "network.yml"), "--overlap", "astra-sim")
    return "  ".join(
        (
            f"{case.name:<22}",
            f"{_ms(simulated):>12}",
            f"{_ms(default):>12}",
            f"{_difference(simulated, default):>8}",
            f"{_ms(exact):>12}",
            "equal" if exact is not None and exact == simulated else "DIFFERS",
        )
    )


def _ms(ns: float | None) -> str:
    return "-" if ns is None else f"{ns / 1e6:,.6f}"


def _difference(simulated: float | None, estimated: float | None) -> str:
    if simulated is None or estimated is None:
        return "-"
    return f"{simulated / estimated - 1:+.1%}"


def main() -> int:
    """Print the table; 1 if the mode with the simulator's rules differs anywhere."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulator", type=Path, help="AstraSim_Analytical_Congestion_Unaware")
    parser.add_argument("--only", action="append", help="name of a case; may be repeated")
    options = parser.parse_args()
    if options.simulator is None:
        print("skipped: no --simulator is given")
        return 0
    print(f"{'case':<22}  {'simulated ms':>12}  {'estimate ms':>12}  {'':>8}  {'its rules ms':>12}")
    lines = []
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as directory:
            lines.append(run(case, options.simulator.resolve(), Path(directory) / "out"))
        print(lines[-1], flush=True)
    return int(any(line.endswith("DIFFERS") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
