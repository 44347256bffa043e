"""`flint mcp` answers what users asked in public with the numbers of the command line."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")
import anyio
from mcp import Client, StdioServerParameters

from flint.errors import FlintError
from flint.tools.mcp.server import Printed, server_of
from flint.tools.mcp.tools import ANSWERS, MOST_ENTRIES, Tool, shortened
from tests.core.cli.test_cli_commands import _flint

ROOT = Path(__file__).resolve().parents[3]
MODEL = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import flint

def loss(w, x):
    for name in ("up", "down"):
        with jax.named_scope(name):
            x = jnp.tanh(x @ w[name])
    return jnp.mean(jnp.square(x.astype(jnp.float32)))

def step(w, x):
    return jax.tree.map(lambda p, g: p - g, w, jax.grad(loss)(w, x))

@flint.entry(axes=("data", "model"))
def train(mesh, *, width: int = 4096):
    def of(*shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))
    w = {"up": of(width, 4 * width, spec=("data", "model")), "down": of(4 * width, width, spec=("model", "data"))}
    return flint.Step(step, (w, of(64 * mesh.shape["data"], width, spec=("data", None))), donate_argnums=0)
"""
#: What was asked, the tool and what an agent gives it, what a user would type, and the field of both.
QUESTIONS = [
    line.split(" | ")
    for line in Path(__file__).with_name("questions.txt").read_text().splitlines()[1:]
]


async def in_this_process(arguments: Sequence[str]) -> Printed:
    done = _flint(*arguments)
    return Printed(done.exit_code, done.stdout, done.stderr)


def asked(calls: Sequence[tuple[str, Mapping[str, Any]]], *, allow_run: bool = True) -> list[Any]:
    """The results of some calls, by the protocol."""

    async def main() -> list[Any]:
        async with Client(server_of(allow_run=allow_run, run=in_this_process)) as client:
            return [await client.call_tool(name, dict(given)) for name, given in calls]

    return anyio.run(main)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model file, captures on 32 and 512 devices, and traces."""
    folder = tmp_path_factory.mktemp("mcp")
    (folder / "m.py").write_text(MODEL)
    found = {"m": str(folder / "m.py"), "t": str(folder / "t")}
    for name, mesh in (("a", "8x4"), ("b", "64x8")):
        done = _flint("capture", found["m"], "--mesh", mesh, "-o", str(folder / name))
        assert done.exit_code == 0, done.stderr
        found[name] = str(next((folder / name).glob("*.flint")))
    assert _flint("export", found["a"], "-f", "chakra", "-o", found["t"]).exit_code == 0
    return found


def test_thirty_questions_get_the_numbers_of_the_command_line(places: dict[str, str]) -> None:
    assert len(QUESTIONS) >= 30
    assert {tool for _, tool, *_ in QUESTIONS} | {"compare"} == set(ANSWERS)

    def given(text: str, field: str) -> dict[str, Any]:
        read = json.loads(text).items()
        placed = {k: v.format(**places) if isinstance(v, str) else v for k, v in read}
        return {**placed, "fields": [field]}

    calls = [(tool, given(text, field)) for _, tool, text, _, field in QUESTIONS]
    documents: dict[str, Any] = {}
    wrong: dict[str, object] = {}
    for (question, _, _, typed, field), result in zip(QUESTIONS, asked(calls), strict=True):
        if typed not in documents:
            done = _flint(*shlex.split(typed.format(**places)), "--json")
            documents[typed] = json.loads(done.stdout)
        steps = [int(k) if k.isdigit() else k for k in field.split(".")]
        expected = reduce(lambda v, k: v[k], steps, documents[typed])
        if result.structured_content != {field: expected} or expected in (None, [], {}):
            wrong[question] = result.content[0].text[:300], expected
    assert wrong == {}


def test_a_server_that_only_reads_refuses_to_run_and_to_write(places: dict[str, str]) -> None:
    m, a = places["m"], places["a"]
    estimated = {"path": a, "cluster": "h100-dgx"}
    calls = [
        ("capture", {"model": m, "mesh": "8"}),
        ("explore", {"model": m, "devices": 8}),
        ("diff", {"before": f"{m}:train", "after": a}),
        ("estimate", {**estimated, "perfetto": "x"}),
        ("estimate", {**estimated, "compare": "simulated"}),
        ("estimate", {"path": f"--perfetto={m}.x", "cluster": "h100-dgx"}),
        ("estimate", {"cluster": "h100-dgx"}),
        ("estimate", {**estimated, "fields": ["step_tim_ns"]}),
        ("estimate", {**estimated, "stack": "no-such"}),
        ("measure", {}),
    ]
    expected = ["FL730"] * 3 + ["FL731"] * 2 + ["FL301", "FL731", "FL731", "FL725", "FL731"]
    results = asked(calls, allow_run=False)
    assert [r.is_error for r in results] == [True] * len(calls)
    assert [r.content[0].text.partition("[")[2][:5] for r in results] == expected
    assert not list(Path(m).parent.glob("*.x"))


def test_long_lists_are_cut_and_counted() -> None:
    found = shortened({"a": {"b": list(range(100))}, "c": [1]})
    assert found["a"]["b"] == list(range(MOST_ENTRIES)) and found["c"] == [1]
    assert found["left_out"] == {"a.b": 60}


def test_values_cannot_become_options() -> None:
    line = Tool("capture", allow_run=True).command_line(
        {"model": "m.py", "world": True, "mesh": "8", "set": ["a=1", "b=-2"], "script_arguments": ["--x", "1"]}
    )  # fmt: skip
    options, arguments = line[: line.index("--")], line[line.index("--") + 1 :]
    assert options == ["capture", "--world", "--mesh=8", "--set=a=1", "--set=b=-2", "--json"]
    assert arguments == ["m.py", "--x", "1"]
    with pytest.raises(FlintError, match="takes no 'meshes'"):
        Tool("capture", allow_run=True).command_line({"model": "m.py", "meshes": "8"})
    line = Tool("estimate", allow_run=False).command_line({"path": "t.flint", "hints": False})
    assert "--no-hints" in line


@pytest.mark.cold
def test_a_client_starts_it_and_sees_eight_tools(places: dict[str, str]) -> None:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "flint", "mcp"], cwd=str(ROOT)
    )

    async def main() -> tuple[Any, Any]:
        async with Client(server) as client:
            given = {"path": places["t"], "fields": ["ok"]}
            return await client.list_tools(), await client.call_tool("check", given)

    listed, checked = anyio.run(main)
    tools = {t.name: t for t in listed.tools}
    assert list(tools) == list(ANSWERS)
    assert "cluster" in tools["estimate"].input_schema["properties"]
    assert "output" not in tools["estimate"].input_schema["properties"]
    assert (
        tools["estimate"].annotations.read_only_hint
        and not tools["capture"].annotations.read_only_hint
    )
    assert checked.structured_content == {"ok": True}
