"""A genuine execution trace and profile of one run on a CPU, with kernels put in, for tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "execution_trace"
#: Operators of the small model that would launch a kernel on a GPU.
LAUNCHING = ("aten::addmm", "aten::mm", "aten::clamp_min", "aten::sum", "aten::add_")

Document = dict[str, Any]


def load(name: str) -> Document:
    """One of the two files."""
    found: Document = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
    return found


def write(path: Path, document: object) -> Path:
    """A document as JSON."""
    path.write_text(json.dumps(document))
    return path


def with_kernels(kineto: Document) -> Document:
    """The genuine profile with a launch and a kernel put in for each of the launching operators."""
    base = kineto["traceEvents"][0]["ts"]
    events, at = [], base
    operators = [e for e in kineto["traceEvents"] if e["name"] in LAUNCHING]
    for number, e in enumerate(sorted(operators, key=lambda e: e["ts"]), start=1):
        start = e["ts"] + e["dur"] / 2
        at = max(at, start + 3)
        ids = {"correlation": number, "External id": e["args"]["External id"]}
        events.append(
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
             "ts": start, "dur": 1, "args": ids}
        )  # fmt: skip
        events.append(
            {"ph": "X", "cat": "kernel", "name": f"kernel of {e['name']}", "pid": 0, "tid": 7,
             "ts": at, "dur": 5, "args": {**ids, "device": 0, "stream": 7}}
        )  # fmt: skip
        at += 5
    return {**kineto, "traceEvents": kineto["traceEvents"] + events}


def pair(folder: Path) -> tuple[Path, Path]:
    """Both files, the profile with kernels."""
    host = write(folder / "host.json", load("host"))
    return host, write(folder / "kineto.json", with_kernels(load("kineto")))


def linked(schema: str = "1.1.1-chakra.0.0.4") -> Document:
    """The pair as Chakra's linker writes it: times on operators, kernels with their arguments."""
    trace, kineto = load("host"), with_kernels(load("kineto"))
    of_record = {e["args"]["Record function id"]: e for e in kineto["traceEvents"] if e.get("cat") == "cpu_op"}  # fmt: skip
    kernels = {e["args"]["External id"]: e for e in kineto["traceEvents"] if e.get("cat") == "kernel"}  # fmt: skip
    added = []
    free = max(n["id"] for n in trace["nodes"]) + 1
    for node in trace["nodes"]:
        attributes = {a["name"]: a["value"] for a in node["attrs"]}
        event = of_record.get(attributes.get("rf_id"))
        if event is None or attributes["scope"] == 7:
            continue
        times = {
            "ts": event["ts"],
            "inclusive_dur": event["dur"],
            "exclusive_dur": event["dur"] / 2,
        }
        node.update(times)
        kernel = kernels.get(event["args"]["External id"])
        if kernel is not None:
            own = {"ts": kernel["ts"], "inclusive_dur": 5, "exclusive_dur": 5, "stream": 7}
            name = (
                "ncclDevKernel_AllReduce_Sum_f32"
                if kernel["name"].endswith("add_")
                else kernel["name"]
            )
            said = {"id": free, "name": name, "ctrl_deps": node["id"], "cat": "kernel", "ph": "X"}
            added.append({**node, **own, **said})
            free += 1
    world = json.dumps([{"pg_name": "0", "group_size": 4, "ranks": []}])
    said_of = [a for a in trace["nodes"][0]["attrs"] if a["name"] != "rf_id"]
    said_of.append({"name": "rf_id", "value": 1 << 40})
    groups = {"id": free, "name": "## process_group:init ##", "ctrl_deps": 1, "attrs": said_of,
              "inputs": {"values": [world], "shapes": [[]], "types": ["String"]},
              "outputs": {"values": [], "shapes": [], "types": []}}  # fmt: skip
    nodes = sorted([*trace["nodes"], *added, groups], key=lambda n: n["id"])
    return {**trace, "schema": schema, "nodes": nodes}
