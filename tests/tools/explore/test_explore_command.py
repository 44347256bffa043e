"""`flint explore` from end to end, on a small program: what it prints, writes, and how it is typed again."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flint
from flint.cli import app
from flint.tools.explore.answers.command import commands, swept
from flint.tools.explore.api import Answer
from flint.tools.explore.point import Point
from flint.tools.explore.space.sweep import parse_values
from flint.tools.explore.subject import Subject
from tests.machine_output import valid

MODEL = """
from typing import Literal

import flint
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P


@flint.entry(axes=("data", "model"))
def mlp(mesh, *, width: int = 256, wide: Literal["yes", "no"] = "yes"):
    def step(x, a, b):
        return ((jnp.tanh(x @ a) @ b) ** 2).sum()

    def array(*shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    inner = 4 * width if wide == "yes" else width
    x = array(64, width, spec=P("data", None))
    a = array(width, inner, spec=P(None, "model"))
    b = array(inner, width, spec=P("model", None))
    return flint.Step(jax.jit(step), (x, a, b))
"""


def _flint(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, list(arguments), prog_name="flint")
    assert found.exit_code in (0, 1, 2), found.output
    return found.exit_code, found.stdout, found.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model and a study of it: meshes of 8 devices, two bandwidths."""
    place = tmp_path_factory.mktemp("explored")
    (place / "mlp.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        code, out, err = _flint(
            "explore", "mlp.py", "--devices", "8", "-c", "h100-dgx", "-j", "1", "--overlap", "in-order",
            "--sweep", "cluster.nvlink.bandwidth=100GB/s,450GB/s", "--where", "data >= 2", "--study", "s.study",
            "--export", "points.csv", "--html", "page.html",
        )  # fmt: skip
    assert code == 0, err
    (place / "printed").write_text(out)
    return place


def test_what_is_printed(folder: Path) -> None:
    printed = (folder / "printed").read_text()
    assert "mlp.py: 12 points, by least step time (the default)" in printed
    for said in (
        "fixed: width=256",
        "where data >= 2",
        "wide: yes, no (declared)",
        "12 of 12 points fit",
    ):
        assert said in printed
    table = printed.split("\n\n")[1].split("\n")
    assert table[0].split()[:4] == ["devices", "mesh", "wide", "cluster.nvlink.bandwidth"]
    assert len(table) == 11
    assert len(list(csv.reader((folder / "points.csv").read_text().splitlines()))) == 13
    assert "<html" in (folder / "page.html").read_text()


def test_commands_typed_as_they_stand_give_the_first_row_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = Answer.load(folder / "s.study").best
    assert best is not None
    (tmp_path / "mlp.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    printed = (folder / "printed").read_text().rpartition("the first row again:\n")[2]
    lines = [line.strip() for line in printed.strip().split("\n")]
    assert [shlex.split(line)[:2] for line in lines] == [
        ["flint", name] for name in ("explore", "capture", "estimate")
    ]
    for line in lines[:-1]:
        code, out, err = _flint(*shlex.split(line)[1:])
        assert code == 0, err
    code, out, err = _flint(*shlex.split(lines[-1])[1:], "--json")
    estimated = json.loads(out)
    assert estimated["step_time_ns"] == pytest.approx(best.step_time_ns)
    assert estimated["classes"][0]["memory"]["peak_bytes"] <= best.memory_bytes


def test_a_study_is_shown_without_running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "mlp.py").rename(folder / "gone.py")
    try:
        code, out, _ = _flint(
            "explore", "--study", "s.study", "--json", "--objective", "time,memory", "--explain", "1,2",
            "--where", "memory <= 80GiB", "--against", "s.study",
        )  # fmt: skip
    finally:
        (folder / "gone.py").rename(folder / "mlp.py")
    found = valid(out, "flint.explore/1")
    assert code == 0
    assert found["points"] == 12 == len(found["rows"])
    assert found["objectives"] == ["time", "memory"] and not found["objective_is_default"]
    assert found["conditions"] == ["data >= 2", "memory <= 80GiB"]
    assert found["against"] == {
        "both": 12, "only_before": 0, "only_now": 0, "status": [], "changed": [],
        "best_before": found["rows"][0]["choices"],
    }  # fmt: skip
    first, second = (found["rows"][n]["values"]["time"] for n in (0, 1))
    delta = sum(after - before for before, after in found["explained"]["time"].values())
    assert delta == pytest.approx(second - first, abs=2)


def test_what_is_there_is_not_evaluated_again_in_python(folder: Path) -> None:
    seen: list[int] = []
    found = flint.explore(
        folder / "mlp.py", 8, "h100-dgx", jobs=1, where="data >= 2", study=folder / "s.study",
        sweep={"cluster.nvlink.bandwidth": ["100GB/s", "450GB/s"], "overlap": "in-order"},
        objective=["tokens_per_s_per_device"], progress=lambda p: seen.append(p.reused),
    )  # fmt: skip
    assert (found.study.reused, seen[-1]) == (12, 12)
    assert found.best is None, "the program has no tokens"
    assert found.to_arrow().num_rows == 12
    assert "tokens/s/device is not known" in str(found)
    assert "<pre>" in found._repr_html_()


def test_nothing_fits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    code, out, _ = _flint("explore", "--study", "s.study", "--where", "memory <= 1kB")
    assert code == 1
    assert "nothing fits" in out and "12 fit and are not ranked: memory <= 1kB" in out


def test_the_first_rows_are_simulated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(folder)
    code, out, err = _flint(
        "explore", "--study", "s.study", "--simulate", "1", "-o", str(tmp_path / "traces"), "--json"
    )
    assert code == 0, err
    (point,) = valid(out, "flint.explore/1")["simulated"]
    assert point["rules_ns"] > 0 and (tmp_path / "traces" / "1").is_dir()


def test_a_model_that_changed_since_is_not_simulated_beside_old_estimates(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "mlp.py").write_text(MODEL.replace("4 * width", "8 * width"))
    try:
        code, _, err = _flint(
            "explore", "--study", "s.study", "--simulate", "1", "-o", str(tmp_path / "t")
        )
    finally:
        (folder / "mlp.py").write_text(MODEL)
    assert code == 2 and "FL872" in err and "mlp.py changed" in err
    assert not (tmp_path / "t").exists()


def test_an_answer_is_printed_before_what_may_fail(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    code, out, err = _flint(
        "explore", "mlp.py", "--mesh", "data=8,model=1", "--sweep", "wide=yes", "-c", "h100-dgx", "-j", "1",
        "--explain", "1,2",
    )  # fmt: skip
    assert code == 2 and "FL874" in err
    assert "1 of 1 points fit" in out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--study", "s.study", "--objective", "speed"], "FL869"),
        (["--study", "s.study", "--objective", ""], "FL869"),
        (["--study", "s.study", "--export", "points.xlsx"], "FL870"),
        (["mlp.py", "--devices", "8", "-c", "h100-dgx", "--search", "tpi"], "FL873"),
        (["--study", "s.study", "--explain", "1,13"], "FL874"),
        (["--study", "s.study", "--explain", "1"], "FL874"),
        (["--study", "s.study", "--devices", "8"], "FL218"),
        (["--study", "s.study", "--overlap", "in-order"], "FL218"),
        (["--study", "s.study", "--simulate", "1"], "FL218"),
        (["--study", "s.study", "--html", "s.study"], "FL509"),
        (["--study", "s.study", "--against", "mlp.py"], "FL864"),
        (["mlp.py", "--devices", "8", "-c", "h100-dgx", "--html", "s.study"], "FL508"),
        (["--study", "s.study", "--html", "new", "--machine", "./new"], "FL509"),
        (["--study", "s.study", "--where", "heads == 8"], "FL861"),
        (["--study", "mlp.py"], "FL864"),
        ([], "FL860"),
        (["mlp.py", "--devices", "8"], "FL860"),
        (["mlp.py", "--devices", "8", "-c", "h100,h100-dgx"], "FL860"),
        (["mlp.py", "--devices", "eight", "-c", "h100-dgx"], "FL863"),
    ],
)  # fmt: skip
def test_bad_input_is_one_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: str
) -> None:
    monkeypatch.chdir(folder)
    before = (folder / "s.study").read_bytes()
    status, out, err = _flint("explore", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"error[{code}]") and err.count("error[") == 1
    assert (folder / "s.study").read_bytes() == before


def test_commands_of_scripts_and_pipelines() -> None:
    script = Subject("train.py", world=True, script_arguments=("--steps", "2"))
    point = Point(
        "data=8", "h100-dgx", (("batch-size", "4"),), estimate=(("stack", "pytorch-eager"),)
    )
    assert commands(script, point) == (
        "flint capture train.py --mesh data=8 --world --chip h100-dgx -o trace -- --steps 2 --batch-size=4",
        "flint estimate trace -c h100-dgx --stack pytorch-eager",
    )
    piped = Point(
        "pipe=2", "own.toml", (("a", "x y"),), (("microbatches", "4"), ("schedule", "1f1b"))
    )
    assert commands(Subject("m.py:f", pipeline=(("chunks", "2"),)), piped)[0] == (
        "flint capture m.py:f --mesh pipe=2 --set 'a=x y' --chunks 2 --microbatches 4 --schedule 1f1b -o trace"
    )


@pytest.mark.parametrize(
    "value", ["100GB/s", "1..3", "a,b", "", "a b", "2x", "data=nvlink,model=ib"]
)
def test_a_value_of_a_sweep_stays_one(value: str) -> None:
    assert parse_values(swept(value), "--sweep") == (value,)
