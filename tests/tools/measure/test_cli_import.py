"""`flint import` on the command line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flint import import_profiles
from flint.cli import app
from flint.ir.workload import Workload

DATA = Path(__file__).resolve().parents[3] / "benchmarks" / "data" / "kineto"
BERT = str(DATA / "h100_bert-small.json.gz")


def flint(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


def test_what_was_measured_is_printed() -> None:
    said = flint("import", BERT)
    for part in ("NVIDIA H100", "61 kernels", "100.0% of kernel time", "4.37 ms"):
        assert part in said


def test_json_is_one_document() -> None:
    document = json.loads(flint("import", BERT, "--json"))
    assert document["schema"] == "flint.import/1"
    assert document["imported"]["classes"][0]["kernels"] == 61
    assert document["workload"] is None


def test_a_file_of_its_own_is_written_anew_and_no_other(tmp_path: Path) -> None:
    output = tmp_path / "m.flint"
    flint("import", BERT, "-o", output, "-q")
    assert Workload.load(output).measured_by is not None
    before = output.read_bytes()
    flint("import", BERT, "-o", output, "-q")
    assert output.read_bytes() == before
    output.write_text("mine")
    assert "FL508" in flint("import", BERT, "-o", output, code=2)
    assert output.read_text() == "mine"


def test_traces_are_written_and_pass_their_check(tmp_path: Path) -> None:
    flint("import", BERT, "-o", tmp_path / "traces", "-q")
    flint("check", tmp_path / "traces")
    for simulated in (
        ("simulate", tmp_path / "traces", "--with", "astra-sim", "--binary", "/bin/true"),
        ("estimate", tmp_path / "traces", "-c", tmp_path / "traces/network.yml", "--overlap", "astra-sim"),
    ):  # fmt: skip
        said = flint(*simulated, code=2)
        assert "runs neither a network of one device" in said
        assert "flint estimate DIR -c CLUSTER" in said
    alone = json.loads(flint("estimate", tmp_path / "traces", "-c", "h100-dgx", "--json"))
    assert alone["step_time_ns"] == pytest.approx(4.366e6, rel=1e-3)


def test_a_written_workload_is_replayed(tmp_path: Path) -> None:
    output = tmp_path / "m.flint"
    flint("import", BERT, "-o", output, "-q")
    estimate = json.loads(flint("estimate", output, "-c", "h100-dgx", "--json"))
    assert estimate["step_time_ns"] == pytest.approx(4.366e6, rel=1e-3)


def test_a_step_that_is_not_there_is_refused() -> None:
    said = flint("import", BERT, "--step", 9, code=2)
    assert "FL811" in said
    assert "it has step 6" in said


def test_a_file_given_twice_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "again.json.gz"
    content = json.loads(gzip.decompress(Path(BERT).read_bytes()))
    content["distributedInfo"] = {"rank": 0, "world_size": 2, "backend": "nccl"}
    other.write_bytes(gzip.compress(json.dumps(content).encode()))
    assert "FL812" in flint("import", other, other, code=2)
    content["distributedInfo"] = {"rank": 1, "world_size": 4, "backend": "nccl"}
    third = tmp_path / "third.json.gz"
    third.write_bytes(gzip.compress(json.dumps(content).encode()))
    assert "FL813" in flint("import", other, third, code=2)


def test_of_several_ranks_a_line_each_and_the_summary_of_the_slowest() -> None:
    files = sorted((DATA.parent / "kineto_dlrm").glob("*.json.gz"))
    short = CliRunner().invoke(app, ["import", *map(str, files)]).stdout
    assert "program  profile, rank 4: the slowest\n" in short
    assert short.count("FLOPs per device") == 1
    long = CliRunner().invoke(app, ["import", "-v", *map(str, files)]).stdout
    assert long.count("FLOPs per device") == 8


def test_modules_are_scopes(tmp_path: Path) -> None:
    content = json.loads(gzip.decompress(Path(BERT).read_bytes()))
    mm = next(e for e in content["traceEvents"] if e.get("name") == "aten::addmm")
    for name in ("nn.Module: BertLayer_3", "<built-in function linear>", "model.py(3): forward"):
        event = {**mm, "cat": "python_function", "name": name, "args": {"Python id": 1}}
        content["traceEvents"].append(event)
    file = tmp_path / "modules.json"
    file.write_text(json.dumps(content))
    program = import_profiles(file).program
    assert {s for s in program.strings if "BertLayer" in s} == {"BertLayer_3"}
    assert int((program.scope == program.strings.index("BertLayer_3")).sum()) == 1
