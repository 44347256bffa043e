"""Spoilt measurements: logs of nccl-tests, its JSON, tables in CSV, loads of experts."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.bad.case import Case, Special
from benchmarks.bad.spoil import spoil_bytes, spoil_json, spoil_text

_CSV = """kind,m,n,k,dtype,batch,time_us,elements
gemm,4096,4096,4096,bf16,1,210,
gemm,4096,4096,1024,bf16,2,120.5,
gemm,128,4096,1024,f32,1,33,
"""
_CONFIGURED = """framework,op_name,kernel_source,gemm_dtype,m,n,k,latency
TRTLLM,gemm,default,bfloat16,4096,4096,4096,0.21
TRTLLM,gemm,default,fp8,1,4096,4096,0.0125
"""
_JSON = {
    "args": ["all_reduce_perf", "-b", "8"],
    "config": {"devices": [{"rank": r, "group": 0, "hostname": "a"} for r in range(8)]},
    "results": [
        {"size": s, "type": "float", "out_of_place": {"time": 30.5, "alg_bw": s / 3e4, "bus_bw": s * 7 / 12e4, "nwrong": 0}}
        for s in (1 << 20, 1 << 26)
    ],
}  # fmt: skip
_TASKS = [
    {"number_per_run": 2, "raw_times": [4e-4, 5e-4],
     "task_spec": {"label": "m=4096 n=4096 k=4096 dtype=bf16", "sub_label": "", "description": "mm"}}
]  # fmt: skip
_LOGS = Path(__file__).resolve().parents[2] / "tests/data/collective_logs"


def case(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt file of measurements, held against a cluster."""
    name = rng.choice(("log", "log", "ours.csv", "configured.csv", "nccl.json", "tasks.json"))
    documents = {"nccl.json": _JSON, "tasks.json": _TASKS}
    texts = {"ours.csv": _CSV, "configured.csv": _CONFIGURED}
    spoilt: bytes | Special
    if name in documents:
        change, spoilt = spoil_json(rng, documents[name])
    else:
        text = texts.get(name) or rng.choice(sorted(_LOGS.glob("*.log"))).read_text()
        if rng.random() < 0.2:
            change, spoilt = spoil_bytes(rng, text.encode())
        else:
            change, text = spoil_text(rng, text)
            spoilt = text.encode("utf-8", "surrogatepass")
    command = ("calibrate", name, "--base", "h100-dgx", "--check", "--json")
    return Case("measurements", number, f"{name}: {change}", {name: spoilt}, (command,))


def loads(rng: random.Random, number: int, bases: Path) -> Case:
    """Spoilt loads of experts."""
    rows = [[rng.randrange(1, 99) for _ in range(8)] for _ in range(3)]
    name = rng.choice(("loads.json", "loads.csv"))
    spoilt: bytes | Special
    if name == "loads.json":
        change, spoilt = spoil_json(rng, rows)
    else:
        change, text = spoil_text(rng, "\n".join(",".join(map(str, row)) for row in rows))
        spoilt = text.encode("utf-8", "surrogatepass")
    files: dict[str, bytes | Special] = {
        name: spoilt,
        "w.flint": (bases / "small.flint").read_bytes(),
    }
    command = (
        "estimate",
        "w.flint",
        "-c",
        "h100-dgx",
        "--unpriced",
        "zero",
        "--routing",
        name,
        "--json",
    )
    return Case("routings", number, f"{name}: {change}", files, (command,))
