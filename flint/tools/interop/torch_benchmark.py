"""A recorded or captured step as a benchmark: the same kernels, collectives, order and streams.

    torchrun --nproc-per-node 8 benchmark.py            on GPUs
    torchrun --nproc-per-node 4 benchmark.py --device cpu --scale 0.01

It needs PyTorch and the files beside it, nothing else. It runs the step, and writes to --output what
was measured: `measured.RANK.et.json` and `comm_group.json` (all nodes with their times, for `flint
import`), `kernels.csv` and `collectives.csv` (each distinct one alone, for `flint calibrate`), `summary.json`.

Kernels run on shared buffers, so values mean nothing. What has no dimensions of its own (fused
element-wise kernels, copies, optimizers) moves as many bytes as it does, in a copy, an addition or a sum.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_TYPES = {
    "f64": torch.float64, "f32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
    "f16": torch.float16,
}  # fmt: skip
#: Collectives by Chakra's numbers.
_COLLECTIVES = {
    "all_reduce": 0,
    "all_gather": 2,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
}
#: What a line of the plan's steps is: kind, index into its table, stream, steps that it waits for.
Step = tuple[str, int, int, list[int]]


class SharedBuffers:
    """Memory that kernels read and write: one block for each, viewed in any type."""

    def __init__(self, read_bytes: int, written_bytes: int, device: str) -> None:
        self.device = device
        count = -(-max(read_bytes, 64) // 4)
        self._read = (torch.rand(count, device=device) * 0.1).view(torch.uint8)
        self._written = torch.zeros(
            -(-max(written_bytes, 64) // 8) * 8, dtype=torch.uint8, device=device
        )

    def read(self, dtype: Any, *shape: int, after: int = 0) -> Any:
        """A view of what is read, from `after` elements on, round again where there are not as many."""
        return _view(self._read, dtype, shape, after)

    def written(self, dtype: Any, *shape: int) -> Any:
        """A view of what is written."""
        return _view(self._written, dtype, shape, 0)


def _view(block: Any, dtype: Any, shape: tuple[int, ...], after: int) -> Any:
    count = 1
    for size in shape:
        count *= size
    whole = block[: len(block) // dtype.itemsize * dtype.itemsize].view(dtype)
    start = after if after + count <= len(whole) else 0
    if count <= len(whole):
        return whole[start : start + count].view(shape)
    return torch.zeros(shape, dtype=dtype, device=block.device)


def runner(kernel: dict[str, Any], scale: float, buffers: SharedBuffers) -> Callable[[], Any]:
    """What launches a kernel of the plan."""
    dtype = _TYPES.get(kernel["dtype"], torch.bfloat16)
    b, m, n, k = _sizes(kernel["dims"], kernel["kind"], scale)
    kind, f = kernel["kind"], torch.nn.functional
    if kind in ("gemm", "convolution") and min(b, m, n, k) > 0:
        left, right = buffers.read(dtype, b, m, k), buffers.read(dtype, b, k, n, after=b * m * k)
        out = buffers.written(dtype, b, m, n)
        return lambda: torch.bmm(left, right, out=out)
    if kind in ("attention", "attention_backward") and min(b, m, n, k) > 0:
        q, *kv = (buffers.read(dtype, 1, b, rows, k).clone() for rows in (m, n, n))
        causal = bool(kernel["causal"]) and m == n
        if kind == "attention":
            return lambda: f.scaled_dot_product_attention(q, *kv, is_causal=causal)
        leaves = [x.requires_grad_() for x in (q, *kv)]
        out = f.scaled_dot_product_attention(*leaves, is_causal=causal)
        given = torch.ones_like(out)
        return lambda: torch.autograd.grad(out, leaves, given, retain_graph=True)
    if kind in ("softmax", "norm", "reduction", "sort", "top_k") and m > 0 and k > 0:
        return _of_rows(kind, buffers.read(dtype, m, k))
    return _mover(int(kernel["read"] * scale), int(kernel["written"] * scale), buffers)


def _sizes(dims: list[int], kind: str, scale: float) -> tuple[int, int, int, int]:
    """The dimensions, the rows of a kernel made fewer where the machine is small."""
    b, m, n, k = dims
    if scale < 1 and kind.startswith("attention"):
        b = max(1, int(b * scale)) if b else 0
    elif scale < 1:
        m = max(1, int(m * scale)) if m else 0
    return b, m, n, k


def _of_rows(kind: str, x: Any) -> Callable[[], Any]:
    if kind == "softmax":
        return lambda: torch.softmax(x, -1)
    if kind == "norm":
        return lambda: torch.nn.functional.layer_norm(x, x.shape[1:])
    if kind == "reduction":
        return lambda: x.sum(-1)
    if kind == "sort":
        return lambda: torch.sort(x, -1)
    return lambda: torch.topk(x, min(8, x.shape[1]), -1)


def _mover(read: int, written: int, buffers: SharedBuffers) -> Callable[[], Any]:
    """What reads and writes so many bytes in one launch, in a second one where one cannot."""
    if written == 0:
        source = buffers.read(torch.float32, max(read // 4, 1))
        return lambda: source.sum()
    out = buffers.written(torch.uint8, written)
    if read >= 2 * written:
        one, other = (buffers.read(torch.uint8, written, after=i * written) for i in range(2))
        rest = buffers.read(torch.float32, (read - 2 * written) // 4)

        def added() -> None:
            torch.add(one, other, out=out)
            if len(rest):
                rest.sum()

        return added
    source = buffers.read(torch.uint8, min(read, written))
    beyond = out[len(source) :]

    def copied() -> None:
        if len(source):
            out[: len(source)].copy_(source)
        if len(beyond):
            beyond.zero_()

    return copied


class RankMessages:
    """The collectives and messages of this rank, started without waiting."""

    def __init__(
        self, plan: dict[str, Any], world: dict[str, Any], scale: float, device: str
    ) -> None:
        self.rank, self.device, self.scale = dist.get_rank(), device, scale
        self.table = plan["messages"]
        made = [dist.new_group(ranks) for ranks in world["groups"]]  # on all ranks in one order
        self.members = world["groups"]
        mine = [g for g, ranks in enumerate(self.members) if self.rank in ranks]
        self.group = {(*self.members[g],): made[g] for g in mine}
        self.number = {(*self.members[g],): g + 1 for g in mine}

    def ranks(self, index: int) -> tuple[int, ...]:
        """Who takes part with this rank; () where it does not."""
        found = next((g for g in self.table[index]["groups"] if self.rank in g), ())
        return tuple(found)

    def halves(self, index: int) -> Iterator[dict[str, Any]]:
        """What this rank sends and receives in a message, as nodes have it."""
        message, size = self.table[index], self.bytes(index)
        to, of = message["targets"][self.rank], message["sources"][self.rank]
        if message["what"] != "send" and of >= 0 and of != self.rank:
            yield {"NodeType": 6, "comm_src": of, "comm_dst": self.rank, "comm_size": size}
        if message["what"] != "recv" and to >= 0 and to != self.rank:
            yield {"NodeType": 5, "comm_src": self.rank, "comm_dst": to, "comm_size": size}

    def bytes(self, index: int) -> int:
        """What this rank puts in, a multiple of all members' elements."""
        members = max(len(self.ranks(index)), 1) * 4
        size = int(self.table[index]["bytes"] * self.scale)
        return max(-(-size // members), 1) * members

    def start(self, index: int) -> list[Any]:
        """Start it; what is given is to be waited for."""
        message = self.table[index]
        if message["what"] in ("permute", "send", "recv"):
            return self._message(message, index)
        ranks = self.ranks(index)
        if len(ranks) < 2:
            return []
        group, n, count = self.group[ranks], len(ranks), self.bytes(index) // 4
        x = torch.zeros(count, dtype=torch.float32, device=self.device)
        what: str = message["what"]
        if what == "all_reduce":
            return [dist.all_reduce(x, group=group, async_op=True)]
        if what == "broadcast":
            return [dist.broadcast(x, ranks[0], group=group, async_op=True)]
        if what == "all_gather":
            out = torch.empty(count * n, dtype=x.dtype, device=self.device)
            return [dist.all_gather_into_tensor(out, x, group=group, async_op=True)]
        if what == "reduce_scatter":
            out = torch.empty(count // n, dtype=x.dtype, device=self.device)
            return [dist.reduce_scatter_tensor(out, x, group=group, async_op=True)]
        return [dist.all_to_all_single(torch.empty_like(x), x, group=group, async_op=True)]

    def _message(self, message: dict[str, Any], index: int) -> list[Any]:
        to, of = message["targets"][self.rank], message["sources"][self.rank]
        count = self.bytes(index) // 4
        parts = []
        if message["what"] != "recv" and to >= 0 and to != self.rank:
            parts.append(dist.P2POp(dist.isend, torch.zeros(count, device=self.device), to))
        if message["what"] != "send" and of >= 0 and of != self.rank:
            parts.append(dist.P2POp(dist.irecv, torch.empty(count, device=self.device), of))
        return list(dist.batch_isend_irecv(parts)) if parts else []


class ReplayedStep:
    """The step of this rank."""

    def __init__(
        self, plan: dict[str, Any], world: dict[str, Any], scale: float, device: str
    ) -> None:
        self.plan, self.device, self.on_gpu = plan, device, device != "cpu"
        kernels = plan["kernels"]
        most = [max([int(k[key] * scale) for k in kernels] + [64]) for key in ("read", "written")]
        buffers = SharedBuffers(most[0], most[1], device)
        self.messages = RankMessages(plan, world, scale, device)
        self.kernels = [runner(k, scale, buffers) for k in kernels]
        names = range(len(plan["streams"])) if self.on_gpu else ()
        self.streams = [torch.cuda.Stream() for _ in names]

    def step(self, times: list[float] | None = None) -> None:
        """Run all, in order; `times` gets the seconds of each on the host, or of each on its stream."""
        pending: dict[int, list[Any]] = {}
        began: dict[int, float] = {}
        events: list[Any] = []
        for number, (what, index, stream, deps) in enumerate(self.plan["steps"]):
            for dep in deps:
                self._wait(dep, pending, began, times)
            if self.on_gpu:
                events.append(self._on_stream(what, index, stream, deps, events, pending))
                continue
            start = time.perf_counter()
            if what == "kernel":
                self.kernels[index]()
                if times is not None:
                    times[number] = time.perf_counter() - start
            else:
                began[number], pending[number] = start, self.messages.start(index)
        for number in list(pending):
            self._wait(number, pending, began, times)
        if self.on_gpu:
            torch.cuda.synchronize()
            if times is not None:
                times[:] = [a.elapsed_time(b) / 1e3 for a, b in events]

    def _wait(
        self,
        number: int,
        pending: dict[int, list[Any]],
        began: dict[int, float],
        times: list[float] | None,
    ) -> None:
        works = pending.pop(number, None)
        if works is None:
            return
        for work in works:
            work.wait()
        if times is not None and number in began:
            times[number] = time.perf_counter() - began[number]

    def _on_stream(
        self,
        what: str,
        index: int,
        stream: int,
        deps: list[int],
        events: list[Any],
        pending: dict[int, list[Any]],
    ) -> tuple[Any, Any]:
        """Launch on the stream of the plan, behind what it waits for."""
        on = self.streams[stream]
        for dep in deps:
            on.wait_event(events[dep][1])
        with torch.cuda.stream(on):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            if what == "kernel":
                self.kernels[index]()
            else:
                for work in self.messages.start(index):
                    work.wait()  # the stream waits, not the host
            ended.record()
        return begun, ended

    def alone(self, run: Callable[[], Any], seconds: float) -> float:
        """Seconds of one launch by itself: the median of as many as fit into the time."""
        found: list[float] = []
        run()
        end = time.perf_counter() + seconds
        while len(found) < 3 or (time.perf_counter() < end and len(found) < 1000):
            with self._timed(found):
                run()
        return statistics.median(found)

    @contextmanager
    def _timed(self, found: list[float]) -> Iterator[None]:
        if self.on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        yield
        if self.on_gpu:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)


def measured_nodes(
    plan: dict[str, Any], times: list[float], messages: RankMessages
) -> Iterator[dict[str, Any]]:
    """The steps with what they took, as Chakra's feeder reads them."""
    for number, (what, index, stream, deps) in enumerate(plan["steps"]):
        node = {
            "Id": number,
            "data_deps": deps,
            "runtime": round(times[number] * 1e6),
            "is_cpu_op": False,
        }
        node["stream"] = stream
        if what == "kernel":
            kernel = plan["kernels"][index]
            yield node | {"Name": kernel["name"], "NodeType": 4, "num_ops": kernel["flops"]}
            continue
        said = plan["messages"][index]["what"]
        ranks = messages.ranks(index)
        if said in _COLLECTIVES and len(ranks) > 1:
            kind = {"comm_type": _COLLECTIVES[said], "pg_name": str(messages.number[ranks])}
            yield node | kind | {"Name": said, "NodeType": 7, "comm_size": messages.bytes(index)}
        elif said not in _COLLECTIVES:
            for kind in messages.halves(index):
                first = kind["NodeType"] == 6 or said == "send"
                own = number if first else number + len(plan["steps"])
                yield node | kind | {"Id": own, "Name": said, "comm_tag": index}


def write_tables(folder: Path, benchmark: ReplayedStep, scale: float, seconds: float) -> None:
    """Each distinct kernel alone, and each distinct collective, as `flint calibrate` reads them."""
    rows = []
    for kernel, run in zip(benchmark.plan["kernels"], benchmark.kernels, strict=True):
        if kernel["dtype"] not in _TYPES:
            continue
        b, m, n, k = _sizes(kernel["dims"], kernel["kind"], scale)
        row = {"kind": kernel["kind"], "dtype": kernel["dtype"], "causal": int(kernel["causal"])}
        if kernel["kind"] == "gemm":
            row |= {"batch": b, "m": m, "n": n, "k": k}
        elif kernel["kind"].startswith("attention"):
            row |= {"batch": 1, "heads": b, "queries": m, "keys": n, "head_dim": k}
        elif kernel["kind"] in ("softmax", "norm", "reduction"):
            row |= {"rows": m, "columns": k}
        else:
            continue
        if min(v for v in row.values() if type(v) is int and v is not row["causal"]) > 0:
            rows.append(row | {"time_ns": round(1e9 * benchmark.alone(run, seconds))})
    found, seen = [], set()
    for index, message in enumerate(benchmark.plan["messages"]):
        ranks, size = benchmark.messages.ranks(index), benchmark.messages.bytes(index)
        key = (message["what"], ranks, size)
        if message["what"] not in _COLLECTIVES or len(ranks) < 2 or key in seen:
            continue
        seen.add(key)

        def run(index: int = index) -> None:
            for work in benchmark.messages.start(index):
                work.wait()

        times = list[float]()
        for _ in range(5):
            with benchmark._timed(times):
                run()
        row = {"collective": message["what"], "bytes": size, "ranks": len(ranks), "dtype": "f32"}
        found.append(row | {"time_ns": round(1e9 * statistics.median(times))})
    if dist.get_rank() == 0:
        _write_table(folder / "kernels.csv", rows)
        _write_table(folder / "collectives.csv", found)


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Run the step of this rank as often as asked for, and write what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=5, help="measured steps, after two others")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of rows and bytes, for small machines"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.02, help="for each kernel alone; 0: none"
    )
    parser.add_argument("--output", type=Path, default=Path("measured"))
    options = parser.parse_args()
    here = Path(__file__).parent
    world = json.loads((here / "world.json").read_text())
    dist.init_process_group("gloo" if options.device == "cpu" else "nccl")
    rank = dist.get_rank()
    if dist.get_world_size() != world["ranks"]:
        raise SystemExit(f"the step is of {world['ranks']} ranks: start as many processes")
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    else:
        torch.set_num_threads(1)
    plan = json.loads((here / f"class_{world['class_of_rank'][rank]}.json").read_text())
    benchmark = ReplayedStep(plan, world, options.scale, options.device)
    taken, times = [], [0.0] * len(plan["steps"])
    for number in range(options.steps + 2):
        dist.barrier()
        start = time.perf_counter()
        benchmark.step()
        if number >= 2:
            taken.append(time.perf_counter() - start)
    dist.barrier()
    benchmark.step(times)
    options.output.mkdir(parents=True, exist_ok=True)
    document = {
        "workload_graph": list(measured_nodes(plan, times, benchmark.messages)),
        "ngpus": world["ranks"],
    }
    (options.output / f"measured.{rank}.et.json").write_text(json.dumps(document))
    if options.seconds > 0:
        write_tables(options.output, benchmark, options.scale, options.seconds)
    slowest = torch.tensor([statistics.median(taken)], dtype=torch.float64, device=options.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if rank == 0:
        groups = {str(i + 1): ranks for i, ranks in enumerate(world["groups"])}
        (options.output / "comm_group.json").write_text(json.dumps(groups))
        summary = {
            "step_ns": round(float(slowest) * 1e9),
            "ranks": world["ranks"],
            "scale": options.scale,
        }
        (options.output / "summary.json").write_text(json.dumps(summary))
        print(f"{world['name']}: {float(slowest) * 1e3:.3f} ms a step, {world['ranks']} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
