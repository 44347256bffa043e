"""Run written traces in ASTRA-sim and compare its step time with Flint's.

    python benchmarks/astra_sim.py --simulator build/bin/AstraSim_Analytical_Congestion_Unaware
    python benchmarks/astra_sim.py --simulator ... --only ring --only decode

Captures every example below with durations (`-c CLUSTER`), or without (`-`: the roofline of the
placeholders), and asks `flint simulate` of each network beside the traces: what the simulator says,
what `flint estimate` says, the reasons between them, and whether Flint's own run by the simulator's
rules is the same to the nanosecond, which it must be for the congestion-unaware backend. Without a
simulator nothing is run. Needs the examples' requirements and about ten CPU minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
#: Reasons of `flint simulate` that have a column.
TERMS = (
    "kernels side by side",
    "durations",
    "prices of communication",
    "under computation",
    "one communication at a time",
)


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


def simulated(directory: Path, simulator: Path, cluster: str | None) -> list[dict[str, Any]]:
    """What `flint simulate` says of each network."""
    command = [sys.executable, "-m", "flint", "simulate", str(directory), "--with", "astra-sim"]
    on = [] if cluster is None else ["-c", cluster]
    found = subprocess.run(
        [*command, "--binary", str(simulator), *on, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if not found.stdout:
        raise SystemExit(found.stderr)
    runs: list[dict[str, Any]] = json.loads(found.stdout)["runs"]
    return runs


def run(case: Case, simulator: Path, directory: Path) -> list[str]:
    """The lines of the table for one example, one for each network."""
    path, *rest = case.arguments.split()
    command = [sys.executable, "-m", "flint", "capture", str(ROOT / "examples" / path), *rest]
    on = [] if case.cluster == "-" else ["-c", case.cluster]
    subprocess.run([*command, *on, "-o", str(directory), "-q"], check=True, capture_output=True)
    cluster = None if case.cluster == "-" else case.cluster
    return [_line(case, found) for found in simulated(directory, simulator, cluster)]


def _line(case: Case, found: dict[str, Any]) -> str:
    way = found["comparison"] or {"estimated_ns": None, "rules_step_time_ns": None, "terms": []}
    time, rules = found["step_time_ns"], way["rules_step_time_ns"]
    terms = {t["name"]: t["ns"] for t in way["terms"]}
    return "  ".join(
        (
            f"{case.name + ', ' + found['network']:<36}",
            f"{_ms(time):>12}",
            f"{_ms(way['estimated_ns']):>12}",
            f"{_difference(time, way['estimated_ns']):>8}",
            *(f"{_ms(terms.get(name, 0.0)):>12}" for name in TERMS),
            "equal" if rules is not None and rules == time else "DIFFERS",
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
    heads: tuple[str, ...] = ("simulated ms", "estimate ms", "", "side by side", "durations")
    widths = (12, 12, 8, 12, 12, 12, 12, 12)
    heads = (*heads, "prices", "overlap", "one slot")
    titles = (f"{h:>{w}}" for h, w in zip(heads, widths, strict=True))
    print("  ".join((f"{'case':<36}", *titles)))
    lines = []
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as directory:
            found = run(case, options.simulator.resolve(), Path(directory) / "out")
        print("\n".join(found), flush=True)
        lines += found
    return int(any(line.endswith("DIFFERS") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
