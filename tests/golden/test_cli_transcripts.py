"""Transcripts of the command line: what a user types, sees on both streams, and the exit code."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from flint.cli import app
from tests.recorded import recorded_version_only

pytest.importorskip("jax", reason="captures a JAX program")

MODEL = '''"""Two layers, tensor parallel, weights sharded over data."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint


def loss(params, x):
    def layer(x, w):
        with jax.named_scope("mlp"):
            return jnp.tanh(x @ w["up"]) @ w["down"], None

    with jax.named_scope("layers"):
        x, _ = jax.lax.scan(layer, x, params)
    return jnp.sum(x * x)


@flint.entry(axes=("data", "model"))
def train(mesh, width: int = 64, depth: int = 3):
    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, P(*spec)))

    params = {
        "up": array((depth, width, 4 * width), None, "data", "model"),
        "down": array((depth, 4 * width, width), None, "model", "data"),
    }
    return flint.Step(jax.grad(loss), (params, array((4096, width), "data")))


@flint.entry(axes=("data", "model"))
def broken(mesh):
    return flint.Step(jax.grad(loss), (undefined_name,))


def plain(x, y):
    return x @ y


def plain_args(mesh):
    square = jax.ShapeDtypeStruct((8, 8), "float32")
    return square, square
'''

#: Transcript name: commands, run one after the other in one directory.
TRANSCRIPTS = {
    "capture": ["capture model.py:train --mesh 4x2 -o trace", "check trace"],
    "capture_summary_only": ["capture model.py:train --mesh data=4,model=2 --set width=128"],
    "capture_plain_function": ["capture model.py:plain --args model.py:plain_args --mesh 4x2"],
    "capture_one_rank": [
        "capture model.py:train --mesh 4x2 --ranks classes --groups dims -q -o one"
    ],
    "explain": [
        "capture model.py:train --mesh 4x2 -o trace",
        "explain trace",
        "explain trace --collective 0",
        "explain trace/workload.flint --scope mlp",
    ],
    "explain_errors": [
        "capture model.py:train --mesh 4x2 -o trace",
        "explain trace --collective 99",
        "explain trace --scope mpl",
        "explain trace --collective 1 --list",
        "explain trace --rank 8",
        "explain model.py",
        "explain nowhere",
    ],
    "export": [
        "capture model.py:plain --args model.py:plain_args --mesh 4x2 -o trace",
        "export trace --format dot",
        "export trace -f json -o graph.json --json",
        "export trace -f graphml -o missing/graph.graphml",
        "export trace --json",
    ],
    "input_errors": [
        "capture model.py --mesh 4x2",
        "capture model.py:tran --mesh 4x2",
        "capture model.py:plain --mesh 4x2",
        "capture model.py:broken --mesh 4x2",
        "capture model.py:train",
        "capture model.py:train --mesh 4x2x2",
        "capture model.py:train --mesh 4xtwo",
        "capture model.py:train --mesh 3x2",
        "capture model.py:train --mesh data=4,tensor=2",
        "capture model.py:train --mesh 4x2 --set widht=3",
        "capture model.py:train --mesh 4x2 --set width=many",
        "capture model.py:train --mesh 4x2 --set width",
        "capture model.py:train --mesh 4x2 --trip-count loop=x",
        "capture model.py:train --mesh 4x2 --ranks 9 -o trace",
        "capture nowhere.py --mesh 4x2",
        "capture void.py --mesh 4x2",
        "capture . --mesh 4x2",
        "capture notes.md --mesh 4x2",
        "capture broken.mlir:main --mesh 4x2",
        "capture broken.mlir --mesh 4x2",
        "capture syntax.py --mesh 4x2",
    ],
    "check_finds": [
        "capture model.py:train --mesh 4x2 -o trace",
        "!remove trace/trace.3.et",
        "check trace",
        "check trace --json",
        "check nowhere",
    ],
}


@pytest.fixture
def directory(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "void.py").write_text("")
    (tmp_path / "notes.md").write_text("# notes\n")
    (tmp_path / "broken.mlir").write_text("module { func.func }\n")
    (tmp_path / "syntax.py").write_text("x = 1\ndef f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def _run(line, directory):
    if line.startswith("!remove "):
        (directory / line.split()[1]).unlink()
        return f"$ rm {line.split()[1]}\n"
    result = CliRunner().invoke(app, shlex.split(line), prog_name="flint")
    shown = [f"$ flint {line}".rstrip(), *result.stdout.splitlines()]
    shown += [f"2> {text}".rstrip() for text in result.stderr.splitlines()]
    return "\n".join([*shown, f"exit {result.exit_code}", ""])


#: Rows of a derivative: versions of JAX calculate some of them in other places.
RECORDED = {"explain"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=recorded_version_only) if n in RECORDED else n for n in TRANSCRIPTS],
)
def test_transcript(name, directory, golden):
    text = "\n".join(_run(line, directory) for line in TRANSCRIPTS[name])
    assert str(directory) not in text
    text = re.sub(r"(?m)^time    .*$", "time    (not compared)", text)
    golden(f"cli/{name}.txt", re.sub(r"[0-9.]+ \w+ of traces", "(size) of traces", text))


def test_two_runs_give_the_same_bytes(directory):
    runner = CliRunner()
    for out in ("one", "two"):
        line = ["capture", "model.py:train", "--mesh", "4x2", "-o", out]
        assert runner.invoke(app, line).exit_code == 0
    files = sorted(p.name for p in (directory / "one").iterdir())
    assert files == sorted(p.name for p in (directory / "two").iterdir())
    different = [
        f
        for f in files
        if (directory / "one" / f).read_bytes() != (directory / "two" / f).read_bytes()
    ]
    assert not different
