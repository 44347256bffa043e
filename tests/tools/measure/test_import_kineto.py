"""Profiles of real runs as workloads: every kernel is there, and the rows play back as they ran."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flint
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program

DATA = Path(__file__).resolve().parents[3] / "benchmarks" / "data" / "kineto"
FILES = sorted(p.name.removesuffix(".json.gz") for p in DATA.glob("*.json.gz"))
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@pytest.fixture(scope="module")
def traces() -> dict[str, flint.Trace]:
    return {name: flint.import_profiles(DATA / f"{name}.json.gz") for name in FILES}


def events(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.json.gz") as file:
        return iter(json.load(file)["traceEvents"])


def on_device(program: Program) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray((program.kind >= Kind.COMPUTE) & (program.op != OpClass.HOST))


def launched_in_step(name: str, number: int) -> list[dict[str, Any]]:
    """An independent reading: activities whose call is inside of the step's annotation."""
    found = [e for e in events(name) if e.get("ph") == "X"]
    steps = [e for e in found if e["cat"] == "user_annotation" and is_step(e["name"], number)]
    calls = {
        e["args"]["correlation"]: e
        for e in found
        if e["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    ran = [e for e in found if e["cat"] in DEVICE]
    if not steps:
        return ran
    begin, end = steps[0]["ts"], steps[0]["ts"] + steps[0]["dur"]
    return [
        e
        for e in ran
        if (call := calls.get(e["args"]["correlation"])) and begin <= call["ts"] < end
    ]


def is_step(name: str, number: int) -> bool:
    return name == f"ProfilerStep#{number}" or name.startswith("execute_")


@pytest.mark.parametrize("name", FILES)
def test_kernels_and_their_times_are_those_of_the_file(
    name: str, traces: dict[str, flint.Trace]
) -> None:
    number = 16 if "resnet" in name else 6
    program = traces[name].program
    raw = launched_in_step(name, number)
    rows = on_device(program)
    assert int(rows.sum()) == len(raw)
    counts: dict[int, int] = defaultdict(int)
    for event in raw:
        counts[event["args"]["stream"]] += 1
    by_lane: dict[str, int] = defaultdict(int)
    for stream in program.stream[rows].tolist():
        by_lane[program.streams[stream].split(" (")[0]] += 1
    assert sorted(by_lane.values()) == sorted(counts.values())
    total_ns = sum(e["dur"] for e in raw) * 1e3
    assert int(program.measured_ns[rows].sum()) == pytest.approx(total_ns, abs=len(raw))


@pytest.mark.parametrize("name", FILES)
def test_rows_play_back_at_their_measured_times(name: str, traces: dict[str, flint.Trace]) -> None:
    number = 16 if "resnet" in name else 6
    program = traces[name].program
    begin, end = played(program)
    rows = np.flatnonzero(on_device(program))
    raw = sorted(launched_in_step(name, number), key=lambda e: (e["ts"], e["dur"]))
    measured = np.array([e["ts"] for e in raw]) * 1e3
    order = rows[np.lexsort((program.measured_ns[rows], begin[rows]))]
    if "sglang" in name:  # its first ran before the step, while the device had other things to do
        order, measured = order[1:], measured[1:]
    starts = begin[order] - begin[order][0]
    assert (
        np.abs(starts - (measured - measured[0])).max() <= 1300
    )  # 1 us; times of 1e12 us are written to 1/4 us
    by = traces[name].workload.measured_by
    assert by is not None
    assert end[rows].max() == pytest.approx(by.classes[0].span_ns, rel=1e-4)


def played(program: Program) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Start and end of each row: after its dependencies, and after the row before it on its stream."""
    begin, end = np.zeros(len(program)), np.zeros(len(program))
    last: dict[int, float] = {}
    for row in range(len(program)):
        stream = int(program.stream[row])
        ready = max((end[d] for d in program.dependencies(row)), default=0.0)
        begin[row] = max(ready, last.get(stream, 0.0))
        end[row] = last[stream] = begin[row] + program.measured_ns[row]
    return begin, end


@pytest.mark.parametrize("name", FILES)
def test_workloads_verify_and_survive_a_file(
    name: str, traces: dict[str, flint.Trace], tmp_path: Path
) -> None:
    workload = traces[name].workload
    workload.verify()
    workload.save(tmp_path / "m.flint")
    again = flint.Workload.load(tmp_path / "m.flint")
    assert again.to_bytes() == workload.to_bytes()
    assert again.measured_by == workload.measured_by


@pytest.mark.parametrize(
    "name", [n for n in FILES if not n.startswith(("b200", "mi300x_sglang"))]
)  # fmt: skip
def test_work_is_known_of_nearly_all_kernel_time(name: str, traces: dict[str, flint.Trace]) -> None:
    from flint.tools.measure.imported import Imported

    assert Imported.of(traces[name].workload).classes[0].known_share > 0.99


def test_products_of_qwen_are_those_of_its_configuration(traces: dict[str, flint.Trace]) -> None:
    """24 layers, 1,024 wide, 2,816 inside, 16 sequences of 559 tokens. The head multiplies the last
    token alone (not there: the model was run without it), and rotary embeddings are one product."""
    tokens, hidden, inner = 16 * 559, 1024, 2816
    projections = 3 * (2 * tokens * hidden * hidden + tokens * hidden)  # with biases
    layer = projections + 2 * tokens * hidden * hidden + 3 * 2 * tokens * hidden * inner
    rotary = 2 * 32 * 559
    for name in ("h100_qwen1.5-0.5b", "mi300x_qwen1.5-0.5b"):
        program = traces[name].program
        products = int(program.flops[program.op == OpClass.MATMUL].sum())
        layers = (products - rotary) / layer
        assert layers == 24


def test_attention_of_qwen_has_its_mask_and_sizes(traces: dict[str, flint.Trace]) -> None:
    program = traces["h100_qwen1.5-0.5b"].program
    rows = np.flatnonzero(program.op == OpClass.ATTENTION)
    assert len(rows) == 24
    heads, queries, keys, size = program.dims[rows[0]].tolist()
    assert (heads * queries, keys, size) == (16 * 16 * 559, 559, 64)


def test_copies_to_the_host_and_waits_for_them_are_rows(traces: dict[str, flint.Trace]) -> None:
    program = traces["h100_bert-small"].program
    copies = np.flatnonzero(program.op == OpClass.TO_HOST)
    assert program.result_bytes[copies].tolist() == [1]
    waits = [i for i in range(len(program)) if program.row(i).opcode == "host.wait"]
    assert any(set(program.dependencies(w).tolist()) & set(copies.tolist()) for w in waits)


def test_collectives_have_bytes_and_a_group(traces: dict[str, flint.Trace]) -> None:
    trace = traces["mi300x_resnet_train_rank0of8"]
    rows = np.flatnonzero(trace.program.kind == Kind.COLLECTIVE)
    reduced = [r for r in map(trace.program.row, rows) if r.opcode == "c10d.allreduce_"]
    assert sum(r.comm_bytes for r in reduced) == 2 * 11_689_512  # bf16 gradients of ResNet-18
    assert {str(r.group) for r in reduced} == {"world"}


def test_training_has_phases(traces: dict[str, flint.Trace]) -> None:
    program = traces["mi300x_resnet_train_rank0of8"].program
    phases = {program.row(i).phase.name for i in np.flatnonzero(on_device(program))}
    assert {"FORWARD", "BACKWARD", "REMAT", "OPTIMIZER"} <= phases


def test_kernels_of_a_graph_share_a_launch_and_have_no_work(traces: dict[str, flint.Trace]) -> None:
    program = traces["mi300x_sglang_qwen3-8b_decode"].program
    rows = [program.row(i) for i in np.flatnonzero(on_device(program))]
    graph = [r for r in rows if r.opcode == "kernel"]
    assert len(graph) > 500
    assert all(r.flags & Flag.UNPRICED for r in graph if r.op is not OpClass.COPY)
    launches = {d for r in graph for d in r.deps if program.row(d).opcode == "host.launch"}
    assert len(launches) < 10


def test_what_was_launched_before_the_step_is_left_out_and_said(
    traces: dict[str, flint.Trace],
) -> None:
    said = " ".join(traces["h100_qwen1.5-0.5b"].warnings)
    assert "509 kernels (13.742 ms)" in said


def test_nothing_of_the_machine_is_kept(traces: dict[str, flint.Trace]) -> None:
    for trace in traces.values():
        text = json.dumps(trace.workload.metadata) + " ".join(trace.workload.programs[0].strings)
        assert ".json" not in text
        assert "/home" not in text
