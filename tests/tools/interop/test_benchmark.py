"""A step as a script for torchrun: the same kernels, collectives and bytes, and no Flint in it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flint
from flint.backends.chakra.reading.reader import read
from flint.backends.chakra.schema import NodeType
from flint.errors import FlintError
from flint.ir.program import Kind
from flint.tools.interop.benchmark import write_benchmark
from tests.estimates import zoo
from tests.jax_pipelines import MESH, pipeline
from tests.measured_programs import one_rank


def program(name: str) -> flint.Trace:
    if name == "pipeline":
        return flint.trace(pipeline(schedule="1f1b"), MESH)
    return flint.Trace(one_rank()) if name == "recorded" else zoo(name)


@pytest.mark.parametrize("name", ["pipeline", "llama_tp", "recorded"])
def test_kernels_and_bytes_are_those_of_the_traces(name: str, tmp_path: Path) -> None:
    trace = program(name)
    write_benchmark(trace.workload, tmp_path / "b")
    trace.save(tmp_path / "t")
    world = json.loads((tmp_path / "b" / "world.json").read_text())
    assert world["ranks"] == trace.mesh.size
    for rank, number in enumerate(world["class_of_rank"]):
        plan = json.loads((tmp_path / "b" / f"class_{number}.json").read_text())
        nodes = list(read(tmp_path / "t" / f"trace.{rank}.et").nodes)
        coll = [n.attributes["comm_size"][1] for n in nodes if n.type is NodeType.COMM_COLL]
        told = [
            plan["messages"][index]["bytes"]
            for what, index, *_ in plan["steps"]
            if what == "message" and plan["messages"][index]["groups"]
        ]
        assert sum(told) == sum(coll)
        flops = sum(
            plan["kernels"][i]["flops"] for what, i, *_ in plan["steps"] if what == "kernel"
        )
        ops = [n.attributes["num_ops"][1] for n in nodes if n.type is NodeType.COMP]
        assert flops <= sum(ops) <= flops + len(ops)  # a node has one at least
        for at, (_, _, _, deps) in enumerate(plan["steps"]):
            assert all(d < at for d in deps)


def test_the_script_needs_torch_alone(tmp_path: Path) -> None:
    write_benchmark(program("recorded").workload, tmp_path)
    tree = ast.parse((tmp_path / "benchmark.py").read_text())
    names = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    names |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    others = {n.partition(".")[0] for n in names} - set(sys.stdlib_module_names)
    assert others == {"torch"}


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    workload = program("recorded").workload
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FlintError) as caught:
        write_benchmark(workload, tmp_path)
    assert caught.value.code == "FL958"
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    write_benchmark(workload, tmp_path / "new")
    write_benchmark(workload, tmp_path / "new")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "benchmark.py").write_text("print('mine')")
    with pytest.raises(FlintError) as caught:
        write_benchmark(workload, tmp_path / "mine")
    assert caught.value.code == "FL508"
    assert [p.read_text() for p in (tmp_path / "mine").iterdir()] == ["print('mine')"]


def test_a_step_without_kernels_is_refused(tmp_path: Path) -> None:
    from flint.ir.workload import Workload
    from tests.program_rows import ProgramBuilder

    empty = Workload.single(ProgramBuilder(zoo("llama_tp").mesh).build())
    with pytest.raises(FlintError) as caught:
        write_benchmark(empty, tmp_path)
    assert caught.value.code == "FL959"


@pytest.mark.long
def test_it_runs_and_measures_what_import_and_calibrate_read(tmp_path: Path) -> None:
    folder, python = tmp_path / "b", sys.executable
    write_benchmark(zoo("llama_tp").workload, folder)
    run = [python, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-port", "0"]
    words = ["benchmark.py", "--device", "cpu", "--steps", "1", "--seconds", "0.001"]
    done = subprocess.run(
        [*run, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", *words],
        cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "4 ranks" in done.stdout
    files = sorted((folder / "measured").glob("measured.*.et.json"))
    measured = flint.import_profiles(*files)
    assert measured.mesh.size == 4
    told = _collectives(measured), _collectives(zoo("llama_tp"))
    assert told[0] == told[1]
    found = flint.calibrate(folder / "measured" / "kernels.csv", base="h100-dgx", check=True)
    assert "products" in str(found)


def _collectives(trace: Any) -> int:
    program = trace.workload.programs[0]
    return int(np.sum(program.trips[program.kind == Kind.COLLECTIVE]))
