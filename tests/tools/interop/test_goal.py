"""Traces as GOAL text for LogGOPSim and ATLAHS."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flint
from flint.backends.chakra.reading.reader import read
from flint.backends.chakra.schema import NodeType
from flint.cli import app
from flint.errors import FlintError
from flint.tools.interop.goal import goal_text
from tests.chakra_traces import node, put_traces, recv
from tests.jax_pipelines import MESH, pipeline
from tests.zoo import mixtures

_OPERATION = re.compile(r"l(\d+): (calc|send|recv) (\d+)(?:b (?:to|from) (\d+) tag (\d+))?")


def program(name: str) -> flint.Trace:
    if name == "pipeline":
        return flint.trace(pipeline(schedule="1f1b"), MESH)
    found = next(e for e in mixtures() if e.name == name)
    return flint.trace(found.step(), found.mesh)


@pytest.mark.parametrize("name", ["pipeline", "moe_all_to_all"])
def test_it_holds_the_kernels_messages_and_dependencies_of_the_traces(
    name: str, tmp_path: Path
) -> None:
    trace = program(name)
    trace.save(tmp_path, cluster="h100-dgx", groups="p2p")
    text, count = goal_text(tmp_path)
    head, *ranks = re.split(r"\nrank (?=\d+ \{)", text)
    assert head.split("\n")[1] == f"num_ranks {trace.mesh.size}" and len(ranks) == trace.mesh.size
    sent: Counter[tuple[int, ...]] = Counter()
    received: Counter[tuple[int, ...]] = Counter()
    operations = 0
    for rank, part in enumerate(ranks):
        nodes = read(tmp_path / f"trace.{rank}.et").nodes
        made = [m.groups() for m in map(_OPERATION.fullmatch, part.split("\n")) if m]
        operations += len(made)
        assert [int(number) for number, *_ in made] == [node.id for node in nodes]
        for _, kind, size, other, tag in made:
            if kind != "calc":
                ends = (rank, int(other)) if kind == "send" else (int(other), rank)
                (sent if kind == "send" else received)[*ends, int(tag), int(size)] += 1
        kernels = sum(n.duration_micros for n in nodes if n.type is NodeType.COMP)
        assert sum(int(size) for _, kind, size, *_ in made if kind == "calc") == 1000 * kernels
        waits = re.findall(r"^l(\d+) requires l(\d+)$", part, re.MULTILINE)
        assert Counter((int(a), int(b)) for a, b in waits) == Counter(
            (n.id, d) for n in nodes for d in (*n.data_deps, *n.ctrl_deps)
        )
        last_label = max(part.rfind(": calc"), part.rfind(": send"), part.rfind(": recv"))
        assert part.find(" requires ") > last_label  # labels first: a label has to be known
    assert sent == received and sent
    assert operations == count


def test_what_goal_does_not_have_is_refused(tmp_path: Path) -> None:
    trace = program("moe_all_to_all")
    trace.save(tmp_path / "collectives", cluster="h100-dgx")
    trace.save(tmp_path / "untimed", groups="p2p")
    trace.save(tmp_path / "one", cluster="h100-dgx", groups="p2p", ranks="0")
    said = {}
    for folder in ("collectives", "untimed", "one"):
        with pytest.raises(FlintError) as caught:
            goal_text(tmp_path / folder)
        assert caught.value.code == "FL613"
        said[folder] = str(caught.value)
    assert "is a collective" in said["collectives"]
    assert "no kernel has a duration" in said["untimed"]
    assert "all 8 ranks" in said["one"]


def test_a_message_without_its_other_end_is_an_error_of_the_trace(tmp_path: Path) -> None:
    half = node(1, NodeType.COMM_SEND, comm_size=8, comm_tag=0)
    put_traces(tmp_path, [[half], [recv(1, 1, 0)]])
    done = CliRunner().invoke(app, ["export", str(tmp_path), "--format", "goal"])
    assert done.exit_code == 2 and "FL707" in done.stderr and "comm_dst is missing" in done.stderr


def test_the_command_writes_one_file_and_replaces_only_its_own(tmp_path: Path) -> None:
    program("moe_all_to_all").save(tmp_path / "t", cluster="h100-dgx", groups="p2p")
    (tmp_path / "mine.goal").write_text("num_ranks 2\n")
    words = ["export", str(tmp_path / "t"), "--format", "goal", "-o"]
    run = CliRunner().invoke
    assert run(app, [*words, str(tmp_path / "step.goal")]).exit_code == 0
    assert run(app, [*words, str(tmp_path / "step.goal")]).exit_code == 0
    assert "FL508" in run(app, [*words, str(tmp_path / "mine.goal")]).stderr
    assert "FL218" in run(app, [*words, str(tmp_path / "a.goal"), "--rank", "1"]).stderr
    shown = run(app, words[:-1]).stdout
    assert shown.strip() == (tmp_path / "step.goal").read_text().strip()
    assert (tmp_path / "mine.goal").read_text() == "num_ranks 2\n"
