"""The communication of a step for nccl-tests and for PARAM's comm_replay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict, deque
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flint
from flint.errors import FlintError
from flint.tools.interop.benchmark import write_benchmark
from flint.tools.interop.nccl_tests import _split
from tests.jax_pipelines import MESH, pipeline
from tests.measured_programs import one_rank
from tests.zoo import hand_written, mixtures, transformers


def program(name: str) -> flint.Trace:
    if name == "pipeline":
        return flint.trace(pipeline(schedule="1f1b"), MESH)
    if name == "recorded":
        return flint.Trace(one_rank())
    examples = chain(transformers(), mixtures(), hand_written())
    found = next(e for e in examples if e.name == name)
    return flint.trace(found.step(), found.mesh)


def plans(trace: flint.Trace, folder: Path) -> tuple[list[dict[str, Any]], list[int]]:
    write_benchmark(trace.workload, folder)
    world = json.loads((folder / "world.json").read_text())
    files = sorted(folder.glob("class_*.json"), key=lambda f: int(f.stem.split("_")[1]))
    return [json.loads(f.read_text()) for f in files], world["class_of_rank"]


def groups_by(split: str, ranks: int) -> set[tuple[int, ...]]:
    """What nccl-tests makes of NCCL_TESTS_SPLIT (src/common.cu): a color of each rank."""
    name, value = split.split()
    colors = defaultdict(list)
    for rank in range(ranks):
        color = {"DIV": rank // int(value), "MOD": rank % int(value), "AND": rank & int(value)}
        colors[color[name]].append(rank)
    return {tuple(each) for each in colors.values()}


@pytest.mark.parametrize("name", ["pipeline", "llama_3_axes", "moe_all_to_all", "recorded"])
def test_nccl_tests_run_the_bytes_of_the_step_in_its_groups(name: str, tmp_path: Path) -> None:
    trace = program(name)
    told: Counter[tuple[str, int]] = Counter()
    wanted: Counter[tuple[str, int]] = Counter()
    groups_of: dict[tuple[str, int], list[set[tuple[int, ...]]]] = defaultdict(list)
    for plan in plans(trace, tmp_path / "torch")[0]:
        counted = Counter(index for what, index, *_ in plan["steps"] if what == "message")
        for index, count in counted.items():
            message = plan["messages"][index]
            size = message["bytes"]
            if groups := [g for g in message["groups"] if len(g) > 1]:
                size *= len(groups[0]) if message["what"] == "all_gather" else 1
                key = (message["what"].replace("all_to_all", "alltoall"), size)
                wanted[key] += count
                groups_of[key].append({tuple(sorted(each)) for each in groups})
    write_benchmark(trace.workload, tmp_path / "nccl", "nccl-tests")
    lines = (tmp_path / "nccl" / "run.sh").read_text().splitlines()
    for line in (line for line in lines if line.startswith("run ")):
        split, rest = line.removeprefix('run "').split('" ')
        kind, size, _, _, count = rest.split()
        told[kind, int(size)] += int(count)
        made = groups_by(split, trace.mesh.size)
        assert any(groups <= made for groups in groups_of[kind, int(size)])
    assert set(told) == set(wanted)
    if name != "pipeline":  # of its stages, those that run a collective most often count
        assert told == wanted


def test_the_script_runs_each_program_with_its_own_file(tmp_path: Path) -> None:
    workload = program("llama_fsdp_tp_sp").workload
    named = {**workload.metadata, "name": "a\nexit 7\r\nexit 8"}  # a name is never run
    write_benchmark(replace(workload, metadata=named), tmp_path, "nccl-tests")
    for name in ("all_reduce", "all_gather", "reduce_scatter", "alltoall"):
        fake = tmp_path / f"{name}_perf"
        fake.write_text('#!/bin/sh\necho "$NCCL_TESTS_SPLIT: $0 $@"\n')
        fake.chmod(0o755)
    variables = {"MPIRUN": "env LAUNCHED=1", "BIN": str(tmp_path), "PATH": "/usr/bin:/bin"}
    run = ["sh", str(tmp_path / "run.sh")]
    done = subprocess.run(
        run, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [x for x in (tmp_path / "run.sh").read_text().splitlines() if x.startswith("run ")]
    said = done.stdout.splitlines()
    assert len(said) == len(lines) > 3
    files = [line.rpartition(" ")[2] for line in said]
    assert len(set(files)) == len(files) and files[0].startswith("measured/1.")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_a_split_gives_the_groups_of_its_axes(sizes: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))
    ranks = int(np.prod(sizes))
    inner = int(np.prod([sizes[axis] for axis in axes]))
    kept = [axis for axis in range(len(sizes)) if axis not in axes]
    table = np.arange(ranks).reshape(sizes).transpose([*kept, *sorted(axes)]).reshape(-1, inner)
    if inner == 1:
        return
    split = _split(table.tolist(), ranks)
    if split is None:  # a middle axis, or a size that is no power of two
        assert len(sizes) == 3 and not all(size in (1, 2, 4) for size in sizes)
    else:
        assert groups_by(split, ranks) == {tuple(sorted(each)) for each in table.tolist()}


def records(path: Path) -> list[dict[str, Any]]:
    """Communication of a trace, as comm_replay takes it."""
    nodes = json.loads(path.read_text())["nodes"]
    assert [n["id"] for n in nodes] == list(range(2, len(nodes) + 2))
    told = json.loads(
        next(n for n in nodes if "process_group:init" in n["name"])["inputs"]["values"][0]
    )
    groups = {pg["pg_name"]: pg["ranks"] for pg in told}
    found = []
    for node in (n for n in nodes if n["name"] == "record_param_comms"):
        attrs = {a["name"]: a["value"] for a in node["attrs"]}
        request, _, peer, *_ = node["inputs"]["values"]
        ranks = groups[attrs["pg_name"]]
        found.append(attrs | {"request": request, "peer": ranks[peer], "ranks": tuple(ranks)})
    return found


SIZES = {"Float": 4, "BFloat16": 2, "Byte": 1, "Int": 4, "Half": 2, "Long": 8}


@pytest.mark.parametrize(
    "name", ["pipeline", "moe_all_to_all", "ring_attention_dp", "llama_3_axes", "recorded"]
)
def test_param_replays_the_bytes_of_each_rank_and_ends(name: str, tmp_path: Path) -> None:
    trace = program(name)
    write_benchmark(trace.workload, tmp_path / "param", "param")
    told, class_of = plans(trace, tmp_path / "torch")
    ranks = [records(tmp_path / "param" / f"rank-{r}.json") for r in range(trace.mesh.size)]
    for rank, made in enumerate(ranks):
        plan = told[class_of[rank]]
        sent = sum(SIZES[r["dtype"]] * r["in_msg_nelems"] for r in made if len(r["ranks"]) > 1)
        sent -= sum(
            SIZES[r["dtype"]] * r["in_msg_nelems"] for r in made if r["collective_name"] == "recv"
        )
        wanted = 0
        for message in (plan["messages"][i] for what, i, *_ in plan["steps"] if what == "message"):
            whole = any(len(g) > 1 and rank in g for g in message["groups"])
            sends = message["what"] in ("send", "permute") and message["targets"][rank] >= 0
            wanted += message["bytes"] * (whole or sends)
        assert sent == wanted
    replay(ranks)


def replay(ranks: list[list[dict[str, Any]]]) -> None:
    """Run what each rank calls: collectives meet, receives and their waits match sends in order."""
    todo = [deque(each) for each in ranks]
    sent: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    asked: list[dict[int, tuple[int, int]]] = [{} for _ in ranks]
    moved = True
    while moved:
        moved = False
        for rank, calls in enumerate(todo):
            while calls and _runs(calls[0], rank, todo, sent, asked):
                moved = True
    assert not any(todo), [each[0] for each in todo if each]
    assert not any(sent.values())


def _runs(call: dict[str, Any], rank: int, todo: Any, sent: Any, asked: Any) -> bool:
    name, (request, _) = call["collective_name"], call["request"]
    if name == "send":
        sent[rank, call["peer"]].append(call["in_msg_nelems"])
    elif name == "recv":
        asked[rank][request] = (call["peer"], call["out_msg_nelems"])
    elif name == "wait":
        if request in asked[rank]:
            source, size = asked[rank][request]
            if not sent[source, rank]:
                return False
            assert sent[source, rank].popleft() == size
    else:
        heads = [todo[r][0] if todo[r] else None for r in call["ranks"]]
        keys = ("collective_name", "ranks", "in_msg_nelems", "out_msg_nelems", "dtype")
        if any(head is None or any(head[k] != call[k] for k in keys) for head in heads):
            return False
        for other in call["ranks"]:
            todo[other].popleft()
        return True
    todo[rank].popleft()
    return True


@pytest.mark.parametrize("runner", ["torch", "nccl-tests", "param"])
def test_nothing_needs_pytorch(runner: str, tmp_path: Path) -> None:
    (tmp_path / "w.flint").write_bytes(program("moe_all_to_all").workload.to_bytes())
    words = ["export", str(tmp_path / "w.flint"), "--benchmark", runner, "-o", str(tmp_path / "b")]
    code = f"import sys; sys.modules['torch'] = None; sys.argv[1:] = {words!r}\n"
    code += "from flint.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "b").iterdir())


def test_no_part_of_another_step_stays(tmp_path: Path) -> None:
    write_benchmark(program("moe_all_to_all").workload, tmp_path, "param")
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "mine").write_text("1")
    write_benchmark(program("recorded").workload, tmp_path, "nccl-tests")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["measured", "run.sh"]
    alone = flint.trace(lambda x: x @ x, {"data": 1}, np.zeros((8, 8), np.float32))
    with pytest.raises(FlintError):
        write_benchmark(alone.workload, tmp_path, "param")
    assert (tmp_path / "run.sh").exists() and (tmp_path / "measured" / "mine").exists()


@pytest.mark.parametrize("runner", ["nccl-tests", "param"])
def test_a_step_without_communication_is_refused(runner: str, tmp_path: Path) -> None:
    alone = flint.trace(lambda x: x @ x, {"data": 1}, np.zeros((8, 8), np.float32))
    with pytest.raises(FlintError) as caught:
        write_benchmark(alone.workload, tmp_path / "b", runner)
    assert caught.value.code == "FL959"
    assert not (tmp_path / "b").exists()
