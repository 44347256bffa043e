"""Times of kernels on one GPU with PyTorch, for `flint calibrate`.

    python collect.py -o mine.csv                      kernels of one GPU
    torchrun --nproc-per-node 8 collect.py -o nccl.csv  collectives of a node (or of several)

Each size runs in a CUDA graph of several launches, after a warm-up, with the clock of the GPU
(events); the median of many replays is written. With --cold the L2 is emptied between launches.
Of the machine the name and the clocks of its GPU are kept, no more.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from flint.tools.measure.calibration.scripts.grid import (
    Row,
    arguments,
    cases,
    run_all,
    state_of_gpu,
    write,
)

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def kernel_of(row: Row, device: str) -> Callable[[], Any]:
    """A function that launches the kernel of a row."""
    dtype, f = DTYPES[row["dtype"]], torch.nn.functional

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device=device, dtype=dtype)

    kind = row["kind"]
    if kind == "gemm":
        b, m, n, k, layout = (row[c] for c in ("batch", "m", "n", "k", "layout"))
        lead = (b,) if b > 1 else ()
        left = random(*lead, k, m).mT if layout[0] == "t" else random(*lead, m, k)
        right = random(*lead, n, k).mT if layout[1] == "t" else random(*lead, k, n)
        return lambda: torch.matmul(left, right)
    if kind == "attention":
        q = random(row["batch"], row["heads"], row["queries"], row["head_dim"])
        k, v = (random(row["batch"], row["kv_heads"], row["keys"], row["head_dim"]) for _ in "kv")
        shared = row["heads"] != row["kv_heads"]
        causal = bool(row["causal"])
        return lambda: f.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=shared)
    if kind in ("softmax", "norm", "reduction"):
        x = random(row["rows"], row["columns"])
        weight, bias = random(row["columns"]), random(row["columns"])
        made = {
            "softmax": lambda: torch.softmax(x, -1),
            "norm": lambda: f.layer_norm(x, (row["columns"],), weight, bias),
            "reduction": lambda: x.sum(-1),
        }
        return made[kind]
    x, y = random(row["elements"]), random(row["elements"])
    return {"add": lambda: x + y, "elementwise": lambda: f.gelu(x), "copy": lambda: x.clone()}[kind]


def timer(options: Any, device: str) -> Callable[[Row], list[float]]:
    """What gives the times of a row, in seconds."""
    flush = torch.empty(2**28, dtype=torch.int8, device=device) if options.cold else None

    def on_host(row: Row) -> list[float]:
        run = kernel_of(row, device)
        times: list[float] = []
        run()
        end = time.perf_counter() + options.seconds
        while len(times) < 3 or (time.perf_counter() < end and len(times) < 1000):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return times

    def on_gpu(row: Row) -> list[float]:
        run = kernel_of(row, device)
        launches = 1 if flush is not None else 20
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(launches):
                    run()
            times: list[float] = []
            end = time.perf_counter() + options.seconds
            graph.replay()
            while len(times) < 5 or (time.perf_counter() < end and len(times) < 200):
                if flush is not None:
                    flush.zero_()
                begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begun.record()
                graph.replay()
                done.record()
                done.synchronize()
                times.append(begun.elapsed_time(done) * 1e-3 / launches)
        return times

    return on_host if device == "cpu" else on_gpu


def launch_us(device: str) -> float:
    """How long the host takes to launch a small kernel, in microseconds."""
    x = torch.zeros(16, device=device)
    for _ in range(100):
        x = x + 1
    start = time.perf_counter()
    for _ in range(2000):
        x = x + 1
    found = (time.perf_counter() - start) / 2000 * 1e6
    if device != "cpu":
        torch.cuda.synchronize()
    return found


def collectives(options: Any) -> None:
    """All-reduce, all-gather and reduce-scatter over all ranks of torchrun."""
    import torch.distributed as dist

    on_gpu = options.device != "cpu"
    dist.init_process_group("nccl" if on_gpu else "gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    nodes = ranks // int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    rows = []
    for size in [2**e for e in range(10, 14 if options.quick else 31)]:
        for name in ("all_reduce", "all_gather", "reduce_scatter"):
            if size % (2 * ranks):
                continue
            whole = torch.zeros(size // 2, dtype=torch.bfloat16, device=device)
            part = torch.zeros(size // 2 // ranks, dtype=torch.bfloat16, device=device)
            run = {
                "all_reduce": functools.partial(dist.all_reduce, whole),
                "all_gather": functools.partial(dist.all_gather_into_tensor, whole, part),
                "reduce_scatter": functools.partial(dist.reduce_scatter_tensor, part, whole),
            }[name]
            seconds = collective_seconds(run, on_gpu, device, dist)
            given = part if name == "all_gather" else whole
            rows.append(
                {
                    "collective": name,
                    "dtype": "bf16",
                    "bytes": given.numel() * 2,
                    "ranks": ranks,
                    "nodes": nodes,
                    "median_us": f"{seconds * 1e6:.4f}",
                }
            )
    if rank == 0:
        write(options.output, rows, [f"torch {torch.__version__}, {ranks} ranks on {nodes} nodes"])
    dist.destroy_process_group()


def collective_seconds(run: Callable[[], Any], on_gpu: bool, device: Any, dist: Any) -> float:
    """The slowest rank's median time of one collective."""
    for _ in range(3):
        run()
    times = []
    for _ in range(10):
        dist.barrier()
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            run()
        if on_gpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 10)
    slowest = torch.tensor(statistics.median(times), device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def main() -> None:
    options = arguments(__doc__ or "")
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        collectives(options)
        return
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    said = [
        f"torch {torch.__version__} on {name}, {'cold' if options.cold else 'warm'} L2",
        f"launch on the host: {launch_us(device):.2f} us",
        f"before: {state_of_gpu() or 'no driver tells clocks and power'}",
    ]
    run_all(
        cases(options.quick, options.dtypes.split(",")),
        timer(options, device),
        said,
        options.output,
    )


if __name__ == "__main__":
    main()
