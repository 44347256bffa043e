"""CPU time and memory of `flint explore`'s evaluation, against its bars.

    python -m benchmarks.explore_speed [--points 64] [--clusters 300]

One process evaluates 70B on 512 H100: as many points as `--points`, half of them pipelined, over meshes,
remat, microbatches, schedules and policies, one group of equal programs after the other. Shardy's process
counts. Then `--clusters` points of one capture, which differ in bandwidth, latency and policy. What is
counted are CPU seconds of the processes, so that other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from pathlib import Path

from flint.tools.explore.evaluation.evaluate import Evaluator
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result
from flint.tools.explore.subject import Subject

LLAMA = Path(__file__).resolve().parents[1] / "examples" / "llama_jax.py"
SETTINGS = (("model", "70b"),)
#: CPU seconds a point, bytes of a process, CPU seconds a point of one capture.
BARS = (0.6, 10**9, 0.018)


def train_points() -> Iterator[Point]:
    """Of the entry `train`, group by group."""
    meshes = [f"data={512 // m},model={m}" for m in (1, 2, 4, 8, 16)]
    for mesh, remat, policy in product(
        meshes, ("none", "full"), ("", "fsdp", "in-order", "blocking")
    ):
        yield Point(mesh, "h100-dgx", (("remat", remat),), policy=policy)


def pipelined_points() -> Iterator[Point]:
    """Of the entry `pipelined`, group by group."""
    meshes = ("pipe=8,data=8,model=8", "pipe=4,data=16,model=8", "pipe=8,data=16,model=4")
    kinds = product(meshes, ("full", "none"), ("8", "16", "32"), ("1f1b", "zb-h1"))
    for (mesh, remat, microbatches, schedule), policy in product(kinds, ("", "in-order")):
        pipeline = (("microbatches", microbatches), ("schedule", schedule))
        yield Point(mesh, "h100-dgx", (("remat", remat),), pipeline, policy=policy)


def spread(points: Sequence[Point], count: int) -> list[list[Point]]:
    """Groups of equal programs, evenly from all, of about so many points."""
    groups = [list(g) for _, g in groupby(points, key=lambda p: p.program)]
    wanted = max(1, round(count / (len(points) / len(groups))))
    step = len(groups) / min(wanted, len(groups))
    return [groups[int(i * step)] for i in range(min(wanted, len(groups)))]


def cpu_seconds() -> float:
    """Of this process and of those that it started, ended or not."""
    own = time.process_time()
    ticks = os.sysconf("SC_CLK_TCK")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            own += sum(map(int, fields[11:15])) / ticks
    return own


def evaluated(
    evaluator: Evaluator, groups: Sequence[Sequence[Point]]
) -> tuple[float, list[Result]]:
    """CPU seconds and results of groups."""
    began, found = cpu_seconds(), list[Result]()
    for group in groups:
        found += evaluator.evaluate(group)
    return cpu_seconds() - began, found


def cluster_points(count: int) -> list[list[Point]]:
    """Points of one capture."""
    changes = [
        (("ib.bandwidth", f"{25 + i % 50}GB/s"), ("ib.latency", f"{2 + i // 50}us"))
        for i in range(count)
    ]
    policies = ("", "fsdp", "in-order")
    return [
        [
            Point("data=64,model=8", "h100-dgx", changes=c, policy=policies[i % 3])
            for i, c in enumerate(changes)
        ]
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=64)
    parser.add_argument("--clusters", type=int, default=300)
    asked = parser.parse_args()
    rows, total, count = [], 0.0, 0
    for entry, points in (("train", train_points()), ("pipelined", pipelined_points())):
        evaluator = Evaluator(Subject(f"{LLAMA}:{entry}", settings=SETTINGS))
        seconds, found = evaluated(evaluator, spread(list(points), asked.points // 2))
        said = ", ".join(f"{n} {status}" for status, n in Counter(r.status for r in found).items())
        captures = len({r.point.program for r in found})
        rows.append(f"{entry}: {len(found)} points, {captures} captures, {said}")
        rows.append(f"  {seconds / len(found):.3f} CPU s a point")
        total, count = total + seconds, count + len(found)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    evaluator = Evaluator(Subject(f"{LLAMA}:train", settings=SETTINGS))
    one = cluster_points(asked.clusters)
    evaluator.trace(one[0][0])
    seconds, found = evaluated(evaluator, one)
    refused = [r.reason for r in found if not r.step_time_ns]
    print("\n".join(rows))
    measured = (total / count, peak, seconds / len(found))
    names = ("CPU s a point, mixed", "peak bytes of the process", "CPU s a point of one capture")
    for name, value, bar in zip(names, measured, BARS, strict=True):
        verdict = "holds" if value <= bar else "MISSED"
        print(f"{name:32} {value:16,.4f}   bar {bar:16,.3f}   {verdict}")
    if refused:
        print(f"{len(refused)} points of one capture have no time: {refused[0]}")


if __name__ == "__main__":
    main()
