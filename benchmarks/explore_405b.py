"""Llama 3.1 405B on 8,192 and 16,384 H100: how far up the paper's parallelism stands.

    python -m benchmarks.explore_405b points.jsonl

"The Llama 3 Herd of Models" (arXiv 2407.21783), table 4: tensor parallelism 8, context 1, pipeline
16, data 64 (32 sequences of 8,192 tokens for each of them) and 128 (16). Both are 2,048 sequences a
step, 16M tokens. The program is benchmarks/models/llama_megatron.py with the stack `megatron`, whose
optimizer's state is sharded over the data ranks, as Meta's was (section 3.3.2).

The space: every mesh of pipe, data and model of that size, 1, 2 and 4 stages for each pipeline rank,
one or two sequences in a microbatch, and four kinds of recomputation. Points whose weights, gradients
and kept activations alone are more than a device has are counted without a capture; a file of points
that is there goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from flint.tools.explore.evaluation.evaluate import Evaluator
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result, Status
from flint.tools.explore.subject import Subject

MODEL = "benchmarks/models/llama_megatron.py"
CLUSTER, STACK = "h100-dgx", "megatron"
DEVICES = (8192, 16_384)
SEQUENCES, SEQ = 2048, 8192
LAYERS, HIDDEN, FFN, KV_HEADS, PARAMETERS = 126, 16_384, 53_248, 8, 405_853_388_800
RECOMPUTE = ("none", "activations", "mlp", "full")


def axes_of(point: Point) -> dict[str, int]:
    """The mesh of a point."""
    return {name: int(size) for name, size in (a.split("=") for a in point.mesh.split(","))}


def points(devices: int) -> Iterator[Point]:
    """All points whose numbers come out even."""
    sizes = [2**n for n in range(devices.bit_length())]
    for pipe, model, chunks, micro, recompute in itertools.product(
        sizes, sizes, (1, 2, 4), (1, 2), RECOMPUTE
    ):
        data = devices // (pipe * model)
        microbatches = SEQUENCES // max(1, data * micro)
        if not data or not microbatches or pipe * chunks > LAYERS or model > KV_HEADS:
            continue
        if chunks > 1 and (pipe == 1 or microbatches % pipe):
            continue
        settings = {"microbatches": microbatches, "micro_batch": micro, "chunks": chunks,
                    "recompute": recompute}  # fmt: skip
        pairs = tuple(sorted((name, str(value)) for name, value in settings.items()))
        yield Point(f"pipe={pipe},data={data},model={model}", CLUSTER, pairs, stack=STACK)


def kept_bytes(recompute: str, model: int) -> float:
    """What a layer keeps of one sequence for the backward pass on a device, less what is small."""
    width = {"none": HIDDEN * 5 + 3 * FFN, "activations": HIDDEN * 4 + 2 * FFN,
             "mlp": HIDDEN * 5, "full": HIDDEN}  # fmt: skip
    return 2 * SEQ * width[recompute] / model


def least_bytes(point: Point) -> float:
    """What the first pipeline rank certainly holds: weights in 16 bits, sums of gradients in 32, and
    activations of as many microbatches as there are stages."""
    axes, settings = axes_of(point), dict(point.settings)
    held = min(axes["pipe"], int(settings["microbatches"])) * int(settings["micro_batch"])
    layers = (LAYERS // axes["pipe"]) * kept_bytes(settings["recompute"], axes["model"])
    return 0.95 * 6 * PARAMETERS / (axes["pipe"] * axes["model"]) + held * layers


def evaluated(point: Point, evaluator: Evaluator, capacity_bytes: int) -> Result:
    """The result of a point; a bound where that says that it cannot fit."""
    least = least_bytes(point)
    if least <= capacity_bytes:
        return evaluator.evaluate([point])[0]
    devices = 1
    for size in axes_of(point).values():
        devices *= size
    return Result(
        point, Status.TOO_LARGE, devices, "weights, gradients and kept activations alone",
        memory_bytes=int(least), capacity_bytes=capacity_bytes, is_bound=True,
    )  # fmt: skip


def read_results(path: Path) -> list[Result]:
    """The results of a file; none if there is no such file."""
    if not path.exists():
        return []
    return [Result.from_json(json.loads(line)) for line in path.read_text().splitlines()]


def run(path: Path, capacity_bytes: int) -> None:
    """Evaluate what the file lacks, and add it point by point."""
    there = {result.point.key for result in read_results(path)}
    subject = Subject(MODEL, settings=(("distributed_optimizer", "true"), ("model", "llama3-405b")))
    evaluator = Evaluator(subject)
    with path.open("a") as file:
        for point in itertools.chain.from_iterable(map(points, DEVICES)):
            if point.key in there:
                continue
            started = time.perf_counter()
            result = evaluated(point, evaluator, capacity_bytes)
            file.write(json.dumps(result.to_json()) + "\n")
            file.flush()
            if not result.is_bound:
                told(result, time.perf_counter() - started)


def told(result: Result, seconds: float) -> None:
    """A line on standard error."""
    s = dict(result.point.settings)
    print(
        f"{result.point.mesh:28} {s['microbatches']:>4}x{s['micro_batch']} chunks {s['chunks']} "
        f"{s['recompute']:11} {result.status.value:9} {result.step_time_ns / 1e9:6.2f} s "
        f"{result.memory_bytes / 2**30:6.1f} GiB {result.reason[:60]} ({seconds:.0f} s)",
        file=sys.stderr,
        flush=True,
    )


def is_papers(result: Result) -> bool:
    """Whether the mesh is that of table 4."""
    axes = axes_of(result.point)
    return (axes["pipe"], axes["model"]) == (16, 8)


def section(results: Sequence[Result], devices: int) -> str:
    """What the page says of one number of devices."""
    of_size = [r for r in results if r.devices == devices]
    feasible = sorted((r for r in of_size if r.status is Status.FITS), key=lambda r: r.step_time_ns)
    counted = Counter(r.status.value for r in of_size)
    ranks = [n for n, r in enumerate(feasible, 1) if is_papers(r)]
    said = f"{len(of_size)} points: {', '.join(f'{n} {w}' for w, n in counted.most_common())}. "
    if ranks:
        better = ranks[0] - 1
        said += (
            f"Of those that fit, {better} ({better / len(feasible):.1%}) are better than the first "
            f"with the paper's mesh, which has {len(ranks)} of them."
        )
    else:
        said += "None with the paper's mesh fits."
    lines = [
        "| place | pipe, data, model | microbatches | stages a rank | done again | step | MFU | memory |",
        "|--:|---|---|--:|---|--:|--:|--:|",
    ]
    shown = [n for n in range(len(feasible)) if n < 10 or n + 1 in ranks[:1]]
    for n in shown:
        lines.append(row(n + 1, feasible[n]))
    return f"### {devices:,} devices\n\n{said}\n\n" + "\n".join(lines) + "\n"


def row(place: int, r: Result) -> str:
    """A point in the table."""
    s, axes = dict(r.point.settings), axes_of(r.point)
    mesh = ", ".join(map(str, axes.values()))
    return (
        f"| {place} | {f'**{mesh}**' if is_papers(r) else mesh} | {s['microbatches']} x "
        f"{s['micro_batch']} | {s['chunks']} | {s['recompute']} | {r.step_time_ns / 1e9:.2f} s | "
        f"{r.mfu:.1%} | {r.memory_bytes / 2**30:.1f} GiB |"
    )


def main() -> None:
    """Command line."""
    from flint.cluster.models import Cluster

    parser = argparse.ArgumentParser(description="Rank the parallelism of Llama 3.1 405B.")
    parser.add_argument("points", type=Path, help="file of results, one JSON object a line")
    parser.add_argument("--show", action="store_true", help="of what is there")
    given = parser.parse_args()
    if not given.show:
        run(given.points, int(Cluster.load(CLUSTER).chip.memory_bytes.value))
    for devices in DEVICES:
        print(section(read_results(given.points), devices) + "\n")


if __name__ == "__main__":
    main()
