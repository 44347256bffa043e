"""`flint diff` as it is typed: files, revisions, budgets, exit status."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flint.cli import app
from flint.ir.workload import Workload
from flint.tracing import Trace
from tests.tools.change.test_compare import program

MODEL = """
import jax, jax.numpy as jnp, flint
from jax.sharding import NamedSharding, PartitionSpec as P
from sizes import HIDDEN

def step(w, x):
    return jnp.tanh(x @ w)

@flint.entry(axes=("data", "model"))
def entry(mesh):
    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, P(*spec)))
    return flint.Step(step, (array((HIDDEN, 64), None, "model"), array((32, HIDDEN), "data")))
"""


def flint(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["diff", *arguments], prog_name="flint")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two captures and an estimate of each."""
    monkeypatch.chdir(tmp_path)
    for name, p in {"a": program("w"), "b": program("w", gathers=1)}.items():
        workload = Workload.single(p, {"name": "by hand"})
        workload.save(f"{name}.flint")
        Path(f"{name}.json").write_text(json.dumps(Trace(workload).estimate("h100-dgx").to_json()))
    return tmp_path


def test_differences_are_a_result_and_no_failure(files: Path) -> None:
    result = flint("a.flint", "b.flint")
    assert result.exit_code == 0 and result.stdout.startswith(
        "changed: by hand on data=4 x model=2"
    )
    assert flint("a.flint", "b.flint", "--exit-code").exit_code == 1
    assert flint("a.flint", "a.flint", "--exit-code").exit_code == 0


def test_budgets_decide_the_exit_status(files: Path) -> None:
    over = flint(
        "a.flint", "b.flint", "-c", "h100-dgx", "--fail-over", "bytes=+0,flops=+0", "--json"
    )
    assert over.exit_code == 1
    (broken,) = json.loads(over.stdout)["broken"]
    assert (broken["budget"], broken["before"], broken["after"]) == ("bytes", 0, 65536)
    assert broken["worst"]["source"] == "m.py:30"
    assert flint("a.flint", "b.flint", "--fail-over", "bytes=+1MiB").exit_code == 0


def test_saved_estimates_are_sides(files: Path) -> None:
    result = flint("a.json", "b.json", "--fail-over", "step-time=+1%")
    assert result.exit_code == 1 and "over budget: step time" in result.stdout
    assert flint("a.json", "a.json").stdout == "equal: by hand\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.flint"], "error[FL218]: there is nothing to compare with"),
        (["a.flint", "b.flint", "--mesh", "8"], "error[FL218]: --mesh is for models"),
        (["a.json", "b.flint", "--set", "x=1"], "error[FL218]: --set is for models"),
        (["a.flint", "c.flint"], "error[FL301]: cannot read c.flint"),
        (
            ["a.flint", "captured"],
            "error[FL301]: cannot read captured: it is neither a capture nor a model",
        ),
        (["a.flint", "broken.json"], "error[FL304]: broken.json is not what flint estimate --json"),
        (["a.flint", "other.json"], "error[FL304]: other.json is not what"),
        (["a.flint", "--rev", "HEAD"], "error[FL218]: a.flint is a capture: --rev is for models"),
        (["m.py", "--rev", "HEAD", "--mesh", "2"], "error[FL724]: git: "),
        (["a.flint", "b.flint", "--fail-over", "flop=+1"], "error[FL720]: unknown budget 'flop'"),
        (["a.flint", "b.flint", "-c", "h1000"], "error[FL702]"),
    ],
)
def test_bad_sides_are_one_error(files: Path, arguments: list[str], said: str) -> None:
    Path("broken.json").write_text("{")
    Path("other.json").write_text('{"schema": "flint.summary/1"}')
    Path("m.py").write_text(MODEL)
    before = {p: p.read_bytes() for p in files.iterdir()}
    result = flint(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr and result.stderr.count("error[") == 1
    assert {p: p.read_bytes() for p in files.iterdir()} == before


def git(*arguments: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *own, *arguments], check=True, capture_output=True)


@pytest.mark.long
def test_a_revision_is_captured_with_its_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("sizes.py").write_text("HIDDEN = 128\n")
    git("init", "-q", ".")
    git("add", ".")
    git("commit", "-qm", "one")
    Path("sizes.py").write_text("HIDDEN = 256\n")
    result = flint("model.py", "--rev", "HEAD", "--mesh", "4x2")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[1].startswith("shape: 128 -> 256 in w, x")
    monkeypatch.chdir(tmp_path.parent)
    again = flint(str(tmp_path / "model.py"), "--rev", "HEAD", "--mesh", "4x2")
    assert again.stdout.splitlines()[1:] == result.stdout.splitlines()[1:], again.stderr
    monkeypatch.chdir(tmp_path)
    assert Path("sizes.py").read_text() == "HIDDEN = 256\n"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == [
        *(".git", "model.py", "sizes.py")
    ]


def test_a_trace_compares_itself() -> None:
    a, b = (Trace(Workload.single(program("w", gathers=n))) for n in (0, 1))
    found = a.diff(b, "h100-dgx")
    assert str(found).startswith("changed: program on data=4 x model=2, step time ")
    assert [str(x) for x in found.broken("collectives:data=+0")] == [
        "collectives over data 0 -> 1 (new), budget collectives:data=+0"
    ]
    assert found.to_json()["schema"] == "flint.diff/1"
    assert found.to_markdown().count("\n") < 60
