"""Traces of other writers (STAGE and the like) are read as their consumers read them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flint.backends.chakra import check
from flint.backends.chakra.schema import NodeType
from flint.cli import app
from tests.chakra_traces import coll, comp, node, put_traces, trace_bytes

PAIR = {"1": [0, 1]}


def many(**changes: Any) -> list[list[Any]]:
    return [[comp(i, **changes) for i in range(30)] for _ in range(2)]


def test_integer_booleans_are_one_note(tmp_path: Path) -> None:
    report = check(put_traces(tmp_path, many(is_cpu_op=("int32_val", 0))))
    assert report.ok and report.deadlock_examined
    assert report.notes == (
        "is_cpu_op is stored as int32_val, not bool_val (60 nodes); it is 0, as all feeders read",
    )


def test_a_true_integer_is_still_a_cpu_operation(tmp_path: Path) -> None:
    report = check(put_traces(tmp_path, many(is_cpu_op=("int32_val", 1))))
    assert report.counts == {"cpu-op": 60, "attribute-type": 1}


def test_one_file_is_checked_by_itself(tmp_path: Path) -> None:
    put_traces(tmp_path, [[comp(0)], [comp(0), comp(1, (7,))]])
    file = next(tmp_path.glob("*.1.et"))
    report = check(file)
    assert (report.ranks, report.partial, report.counts) == (1, True, {"unknown-dependency": 1})
    assert check(next(tmp_path.glob("*.0.et"))).ok
    other = file.rename(tmp_path / "mine.et")
    assert check(other).counts == {"unknown-dependency": 1}


def test_integers_that_one_feeder_converts_are_said_once(tmp_path: Path) -> None:
    report = check(put_traces(tmp_path, many(num_ops=("uint64_val", 7))))
    (finding,) = report.findings
    assert str(finding) == (
        "attribute-type rank 0 node 0: COMP_NODE 0 stores num_ops as uint64_val, not int64_val, "
        "and so do 59 other nodes; ASTRA-sim converts it, but the older feeder reads 0"
    )
    assert report.counts == {"attribute-type": 1}


def test_what_no_feeder_converts_is_said_of_each_node(tmp_path: Path) -> None:
    report = check(put_traces(tmp_path, many(num_ops=("double_val", 7.0))))
    assert report.counts == {"attribute-type": 60}


@pytest.mark.parametrize("roofline", [None, 0, 1])
def test_work_matters_to_the_roofline_only(roofline: int | None, tmp_path: Path) -> None:
    folder = put_traces(tmp_path, [[node(0, NodeType.COMP)], [comp(0, num_ops=0)]])
    if roofline is not None:
        (folder / "system.json").write_text(json.dumps({"roofline-enabled": roofline}))
    report = check(folder)
    missing = {"attribute-missing": 2} if roofline else {}
    zero = {} if roofline == 0 else {"zero-num-ops": 1}
    assert report.counts == missing | zero
    said = "num_ops is missing (1 node), which matters only with the roofline on"
    assert (said in report.notes) == (not roofline)


def grouped(folder: Path, name: str) -> Path:
    put_traces(folder, [[coll(0, "1")] for _ in range(2)])
    (folder / "comm_group.json").unlink()
    (folder / name).write_text(json.dumps(PAIR))
    return folder


@pytest.mark.parametrize("name", ["t.json", "t"])
def test_group_file_under_the_names_of_stage(name: str, tmp_path: Path) -> None:
    report = check(grouped(tmp_path, name))
    assert report.ok and report.deadlock_examined
    assert report.notes == (f"the groups come from {name}",)


def test_group_file_is_named(tmp_path: Path) -> None:
    folder = grouped(tmp_path, "w.json")
    named = CliRunner().invoke(app, ["check", str(folder), "--groups", str(folder / "w.json")])
    assert named.exit_code == 0 and named.stdout == "ok: 2 ranks, 2 nodes, 1 group\n"
    unnamed = CliRunner().invoke(app, ["check", str(folder)])
    assert unnamed.exit_code == 1
    assert unnamed.stdout == (
        "unknown-group rank 0 node 0: the traces name 1 group (1), but no file lists their "
        "members: there is no comm_group.json, t.json, nor another that --groups names\n"
        "1 finding in 2 ranks, 2 nodes, 0 groups: unknown-group 1\n"
        "note: collectives of 1 group were not matched: their members are unknown\n"
        "note: deadlock was not examined\n"
    )


def test_something_else_of_the_traces_name_is_no_group_file(tmp_path: Path) -> None:
    folder = grouped(tmp_path, "t")
    (folder / "t.json").write_text('{"traceEvents": []}')
    assert check(folder).notes == ("the groups come from t",)


def test_collectives_without_a_group_are_the_worlds_and_that_is_said(tmp_path: Path) -> None:
    report = check(put_traces(tmp_path, [[coll(0, "")] for _ in range(3)]))
    assert report.ok
    assert report.notes == (
        "3 collectives without a group are taken as collectives of all 3 ranks, as in ASTRA-sim",
    )


@pytest.mark.parametrize("name", ["t.1.et", "comm_group.json", "system.json", "network.yml"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    folder = put_traces(tmp_path, [[coll(0, "1")] for _ in range(2)], PAIR)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    result = CliRunner().invoke(app, ["check", str(folder)])
    assert result.exit_code == (1 if name.endswith(".et") else 2)
    assert "pipe" in result.output


def test_ranks_beyond_a_group_are_waited_for_in_vain(tmp_path: Path) -> None:
    """A group that lists a rank twice never meets: nobody comes twice."""
    report = check(put_traces(tmp_path, [[coll(0, "1")] for _ in range(2)], {"1": [0, 1, 1]}))
    assert [f.code for f in report.findings] == ["one-slot-deadlock"]


def test_a_rank_of_many_kinds_is_read_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds of records are forgotten between steps, and what was found of them is kept."""
    monkeypatch.setattr("flint.backends.chakra.reading.kinds._MOST_KINDS", 10)
    monkeypatch.setattr("flint.backends.chakra.reading.parser._STEP", 16)
    nodes = [comp(i, (i - 1,) if i else (), num_ops=i + 1, tensor_size=i) for i in range(100)]
    put_traces(tmp_path, [nodes])
    report = check(tmp_path)
    assert report.nodes == 100 and report.counts == {"zero-tensor-size": 1}
    assert report.findings[0].node == 0


def test_bytes_after_a_trace_are_no_trace(tmp_path: Path) -> None:
    folder = put_traces(tmp_path, [[comp(0)]])
    (folder / "t.0.et").write_bytes(trace_bytes([comp(0)]) + b"\x02\x08")
    assert [f.code for f in check(folder).findings] == ["unreadable"]
