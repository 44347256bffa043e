"""A rank of a `Truth` as PyTorch's profiler would have written it: Kineto's JSON.

Operators with shapes, launches, kernels with streams and correlation, events between streams, and
collectives with their metadata. A collective's kernel begins when its own rank comes to it, so that
it holds the wait for others. The clock of each rank is off by a constant.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ground_truth import DEVICE, Truth
from flint.backends.cost.simulate.timeline import ClassTimeline, previous_on
from flint.ir.dims import ProductDims
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Program, Row

_TYPES = {
    "bfloat16": "c10::BFloat16", "float32": "float", "int64": "long int", "bool": "bool",
    "float16": "c10::Half", "int32": "int",
}  # fmt: skip
_COMM_TYPES = {"bfloat16": "BFloat16", "float32": "Float", "int64": "Long", "float16": "Half"}
_NUMBERS = {"bfloat16": "15", "float32": "6", "int64": "4", "bool": "11", "float16": "5"}
_ITEM = {"bfloat16": 2, "float32": 4, "int64": 8, "bool": 1, "float16": 2, "int32": 4}
_COLLECTIVES = {
    Collective.ALL_REDUCE: ("allreduce", "AllReduce"),
    Collective.ALL_GATHER: ("_allgather_base", "AllGather"),
    Collective.REDUCE_SCATTER: ("_reduce_scatter_base", "ReduceScatter"),
    Collective.ALL_TO_ALL: ("all_to_all", "SendRecv"),
    Collective.BROADCAST: ("broadcast", "Broadcast"),
}
Event = dict[str, Any]
_Tensors = list[tuple[tuple[int, ...], str]]


def write(truth: Truth, folder: Path, *, skew_us: float = 300.0, seed: int = 1) -> list[Path]:
    """One file for each rank; gives their paths."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, track in enumerate(truth.timeline.classes):
        shift = 1e4 + skew_us * float(random.uniform(-1, 1))
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": DEVICE, "totalGlobalMem": 85018279936}],
            "distributedInfo": {
                "backend": "nccl", "rank": rank, "world_size": len(truth.timeline.classes),
            },
            "baseTimeNanoseconds": 10**18,
            "traceEvents": list(_Rank(track, rank, shift).events()),
        }  # fmt: skip
        paths.append(folder / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(document))
    return paths


class _Rank:
    def __init__(self, track: ClassTimeline, rank: int, shift_us: float) -> None:
        self.track, self.rank, self.shift = track, rank, shift_us
        self.program = track.work.program
        self.row = track.work.nodes.row.tolist()
        self.stream = track.work.stream[track.work.nodes.row].tolist()
        self.calls = _call_times(track)
        self.previous = previous_on(track.work.stream[track.work.nodes.row])
        self.correlation = 0
        self.recorded: dict[int, int] = {}

    def events(self) -> Iterator[Event]:
        """The step: an annotation, then each node in order of its launch."""
        end = float(self.track.total_ns) / 1e3
        begin = float(self.calls.min()) / 1e3 - 5
        yield self.span("user_annotation", "ProfilerStep#5", begin, end - begin, 1, {})
        order = np.lexsort((np.arange(len(self.row)), self.calls))
        for node in order.tolist():
            yield from self.node(node)

    def span(
        self, cat: str, name: str, ts: float, dur: float, tid: int, args: dict[str, Any]
    ) -> Event:
        return {
            "ph": "X", "cat": cat, "name": name, "pid": 0 if cat == "kernel" else 1, "tid": tid,
            "ts": round(ts + self.shift, 3), "dur": round(dur, 3), "args": args,
        }  # fmt: skip

    def next(self) -> int:
        self.correlation += 1
        return self.correlation

    def node(self, node: int) -> Iterator[Event]:
        row = self.program.row(self.row[node])
        at, external = float(self.calls[node]) / 1e3, self.next()
        sends = row.kind is not Kind.COMPUTE
        name = "record_param_comms" if sends else f"aten::{row.opcode.partition('.')[2]}"
        name = name.partition("[")[0]
        args = comm_args(row, self.program, self.rank) if sends else arguments(row, self.program)
        yield self.span("cpu_op", name, at - 0.9, 1.0, 1, {"External id": external, **args})
        for dep in self.track.work.nodes.dependencies(node).tolist():
            if self.stream[dep] != self.stream[node]:
                yield from self.wait(node, dep, at)
        launch = self.next()
        call = {"External id": external, "correlation": launch}
        yield self.span("cuda_runtime", "cudaLaunchKernel", at - 0.1, 0.1, 1, call)
        own = self.next()
        self.recorded[node] = own
        yield self.span(
            "cuda_runtime", "cudaEventRecord", at + 0.001, 0.01, 1, {"correlation": own}
        )
        start = self.begin(node) if sends else float(self.track.start_ns[node]) / 1e3
        took = float(self.track.end_ns[node]) / 1e3 - start
        device = {
            "External id": external, "correlation": launch, "device": 0,
            "stream": 7 + self.stream[node], **(args if sends else {}),
        }  # fmt: skip
        kernel = f"ncclDevKernel_{_COLLECTIVES[row.collective][1]}" if sends else "kernel"
        yield self.span("kernel", kernel, start, took, 7 + self.stream[node], device)

    def wait(self, node: int, dep: int, at: float) -> Iterator[Event]:
        """An event of another stream, that this one waits for."""
        number = self.next()
        yield self.span(
            "cuda_runtime", "cudaStreamWaitEvent", at - 0.5, 0.01, 1, {"correlation": number}
        )
        args = {
            "stream": 7 + self.stream[node], "wait_on_stream": 7 + self.stream[dep],
            "wait_on_cuda_event_record_corr_id": self.recorded[dep], "correlation": number,
            "cuda_sync_kind": "Stream Wait Event", "device": 0,
        }  # fmt: skip
        yield self.span("cuda_sync", "Stream Wait Event", at - 0.5, 0.01, 7, args)

    def begin(self, node: int) -> float:
        """When this rank comes to a collective."""
        waits = [*self.track.work.nodes.dependencies(node).tolist(), self.previous[node]]
        ready = max((float(self.track.end_ns[w]) for w in waits if w >= 0), default=0.0)
        return max(ready, float(self.calls[node])) / 1e3


def _call_times(track: ClassTimeline) -> np.ndarray[Any, np.dtype[np.float64]]:
    """When the host launches each node: as often as it can, never after the node begins."""
    work = track.work
    launched = (np.arange(len(work.nodes.row)) + 1) * max(work.launch_ns, 500.0)
    calls = np.minimum(launched, track.start_ns)
    return np.minimum.accumulate(calls[::-1])[::-1]


def comm_args(row: Row, program: Program, rank: int) -> dict[str, Any]:
    """The metadata of a collective; sizes are in elements."""
    assert row.group is not None
    members = next(g.tolist() for g in row.group.members(program.mesh) if rank in g)
    into = row.comm_bytes // _ITEM[row.dtype]
    out = row.result_bytes // _ITEM[row.dtype]
    return {
        "Collective name": _COLLECTIVES[row.collective][0], "In msg nelems": into,
        "Out msg nelems": out, "Group size": len(members), "dtype": _COMM_TYPES[row.dtype],
        "Process Group Name": str(members), "Process Group Ranks": str(members),
    }  # fmt: skip


def arguments(row: Row, program: Program) -> dict[str, Any]:
    """Shapes, types and scalars of an operator's call, as far as its row says them."""
    read = [
        (program.shapes[program.shape[d]], program.dtypes[program.dtype[d]])
        for d in row.deps
        if program.kind[d] != Kind.COLLECTIVE or len(row.deps) == 1
    ]
    if row.op is OpClass.CONCATENATE:
        return _list(row, read)
    if row.opcode.startswith(("aten._foreach", "aten._fused_adam")):
        return _lists(row)
    tensors, scalars = _given(row, read)
    return {
        "Input Dims": [list(s) for s, _ in tensors] + [[] for _ in scalars],
        "Input type": [_TYPES.get(t, "float") for _, t in tensors] + ["Scalar"] * len(scalars),
        "Concrete Inputs": [""] * len(tensors) + scalars,
    }


def _list(row: Row, read: _Tensors) -> dict[str, Any]:
    """Parts along the first dimension in which they differ from the whole."""
    part = next((s for s, _ in read if len(s) == len(row.shape) and s != row.shape), row.shape)
    at = next((i for i, (a, b) in enumerate(zip(part, row.shape, strict=True)) if a != b), 0)
    parts = [list(part)] * max(row.shape[at] // part[at], 1) if part[at:] else [list(part)]
    return {
        "Input Dims": [parts, []],
        "Input type": [f"TensorList[{_TYPES[row.dtype]}]", "Scalar"],
        "Concrete Inputs": ["", str(at)],
    }


def _lists(row: Row) -> dict[str, Any]:
    """Tensors of all that is written, as one each."""
    updates = row.op is OpClass.OPTIMIZER
    written = row.result_bytes // _ITEM[row.dtype] // (3 if updates else 1)
    read = "float32" if row.op is OpClass.COPY else row.dtype
    types = [row.dtype, *[read] * (3 if updates else 1)]
    return {
        "Input Dims": [[[written]] for _ in types],
        "Input type": [f"TensorList[{_TYPES[t]}]" for t in types],
        "Concrete Inputs": ["" for _ in types],
    }


def _given(row: Row, read: _Tensors) -> tuple[_Tensors, list[str]]:
    batch, m, n, k = ProductDims.of(np.array([row.dims]))
    b, m_, n_, k_ = (int(x[0]) for x in (batch, m, n, k))
    own = (row.shape, row.dtype)
    if row.op is OpClass.MATMUL:
        lead = (b,) if len(row.shape) == 3 else ()
        return [((*lead, m_, k_), row.dtype), ((*lead, k_, n_), row.dtype)], []
    if row.op is OpClass.ATTENTION:
        return [t for t in read if len(t[0]) == 4][:3], ["0.0", "True"]
    if row.op is OpClass.ATTENTION_BACKWARD:
        q, key, value = [t for t in read if len(t[0]) == 4][:3]
        others = [q, *[((), "float32")] * 5]
        return [q, q, key, value, *others], ["0.0", "True"]
    if row.op is OpClass.NORM:
        return [own, own] if "backward" in row.opcode else [own], [f"[{row.shape[-1]}]"]
    if row.op is OpClass.CONVERT:
        source = next((t for t in read if t[0] == row.shape), own)
        return [source], [_NUMBERS.get(row.dtype, "6")]
    if row.op is OpClass.REDUCE:
        size = m_ * k_
        whole = next((t for t in read if np.prod(t[0]) == size), ((m_, k_), row.dtype))
        return [whole], ["[-1]", str(len(row.shape) == len(whole[0]))] if row.shape else []
    same = [t for t in read if t[0] == row.shape] or [own]
    return same[:2], []
