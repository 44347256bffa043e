"""How long estimates of captured steps take: the first of a workload, the next, and other ones.

    flint capture examples/llama_jax.py --mesh 64x8 --set model=70b -o trace
    python benchmarks/estimate.py trace/workload.flint --clusters h100-dgx,a100-80-dgx

The first estimate makes kernels of operations and lays out memory; the workload keeps both, and
the next asks for them only. One on another cluster with the same compiler makes neither again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from flint.backends.cost.estimate import estimate
from flint.cluster.models import Cluster
from flint.ir.workload import Workload


def main() -> None:
    """Print a row of a table for each workload."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("workloads", nargs="+", type=Path)
    options.add_argument("--clusters", default="h100-dgx,a100-80-dgx", help="the second is other")
    options.add_argument("--profile", default="", help="whose kernels")
    given = options.parse_args()
    names = given.clusters.split(",")
    print("| workload | rows | first s | again s | " + " s | ".join(names[1:]) + " s |")
    print("|---|--:|--:|" + "--:|" * len(names))
    for path in given.workloads:
        workload = Workload.load(path)
        asked = [names[0], names[0], *names[1:]]
        seconds = [_seconds(workload, Cluster.load(name), given.profile) for name in asked]
        rows = sum(map(len, workload.programs))
        print(f"| {path} | {rows:,} | " + " | ".join(f"{s:.2f}" for s in seconds) + " |")


def _seconds(workload: Workload, cluster: Cluster, profile: str) -> float:
    started = time.perf_counter()
    estimate(workload, cluster, profile=profile)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
