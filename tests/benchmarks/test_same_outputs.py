"""Recordings of outputs: what `compare` takes for a difference, and what it says of it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from benchmarks.same_outputs import INDEX, index
from benchmarks.same_outputs_compare import compare

OUTPUTS = {
    "estimate/h100-dgx/none.json": json.dumps({"json": {"step_time_ns": 10.0, "mfu": 0.5}}),
    "estimate/v5p/none.json": json.dumps({"json": {"step_time_ns": 20.0, "mfu": 0.5}}),
    "capture.txt": "program  a\nops  12\n",
    "workload.json": json.dumps({"programs": [{"rows": {"opcode": ["add"]}}]}),
    "traces/op/trace.0.et": b"\x02\x0a\x00\x07\x08\x01\x12\x03add",
}


def recording(place: Path, **changed: str | bytes | None) -> Path:
    """A recording of one case; names in `changed` are those of OUTPUTS with "_" for "/"."""
    place.mkdir()
    named = {n.replace("/", "_"): n for n in OUTPUTS}
    held = OUTPUTS | {named.get(n, n): content for n, content in changed.items()}
    with zipfile.ZipFile(place / "case.zip", "w") as archive:
        for name, content in held.items():
            if content is not None:
                archive.writestr(name, content)
    (place / INDEX).write_text(json.dumps({"commit": "c", "outputs": index(place)}))
    return place


def said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    allow: str = "",
    **changed: str | bytes | None,
) -> tuple[int, str]:
    """Status and text of a comparison of OUTPUTS with what changed."""
    (tmp_path / "allow.toml").write_text(allow)
    before, after = recording(tmp_path / "a"), recording(tmp_path / "b", **changed)
    status = compare(before, after, tmp_path / "allow.toml")
    return status, capsys.readouterr().out


ESTIMATES = {
    "estimate_h100-dgx_none.json": json.dumps({"json": {"step_time_ns": 11.0, "mfu": 0.4}}),
    "estimate_v5p_none.json": json.dumps({"json": {"step_time_ns": 22.0, "mfu": 0.4}}),
}


def test_equal_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = said(tmp_path, capsys)
    assert (status, text.splitlines()[-1]) == (
        0,
        "5 outputs compared, 0 differ and are not allowed to",
    )


def test_one_paragraph_for_one_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = said(tmp_path, capsys, **ESTIMATES)
    assert status == 1
    assert text.count("differ first at") == 1
    assert "estimate/*/*.json: 2 outputs of case differ first at json.step_time_ns" in text
    assert "    - 10.0\n    + 11.0\n" in text
    assert "  after / before there: 1.1 to 1.1\n  also in 2: json.mfu\n" in text


def test_reasons_allow_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allow = """
    [[allow]]
    outputs = "*/estimate/*"
    where = "json.*"
    reason = "launches are shorter"
    [[allow]]
    outputs = "*/capture.txt"
    reason = "old"
    """
    status, text = said(tmp_path, capsys, allow, **ESTIMATES)
    assert status == 0
    assert "allowed  2 outputs, */estimate/*, json.*: launches are shorter" in text
    assert "stale    nothing differs at */capture.txt, * (old): take the entry out" in text


def test_a_reason_for_one_place_does_not_allow_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allow = '[[allow]]\noutputs = "*"\nwhere = "json.mfu"\nreason = "r"\n'
    status, text = said(tmp_path, capsys, allow, **ESTIMATES)
    assert status == 1
    assert "2 outputs of case differ first at json.step_time_ns" in text


def test_columns_of_a_workload_may_be_added_but_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"programs": [{"rows": {"opcode": ["add"], "op_class": ["ADD"]}}]}
    status, text = said(tmp_path, capsys, **{"workload.json": json.dumps(more)})
    assert status == 0
    assert "new in 1 workloads, no difference: programs.*.rows.op_class" in text
    other = recording(tmp_path / "c", **{"workload.json": json.dumps(more).replace("add", "sub")})
    assert compare(tmp_path / "a", other, tmp_path / "allow.toml") == 1
    assert "case/workload.json  programs.0.rows.opcode.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"capture.txt": "program  a\nops  13\n"}, "line 2\n    - ops  12\n    + ops  13"),
        ({"capture.txt": None}, "(only before)"),
        ({"other.txt": "new"}, "(only after)"),
        (
            {"traces_op_trace.0.et": b"\x02\x0a\x00\x07\x08\x01\x12\x03sub"},
            "1.name\n    - add\n    + sub",
        ),
        ({"estimate_v5p_none.json": "refused\nFL704"}, '- {"json"'),
        (
            {"estimate_v5p_none.json": json.dumps({"json": {"mfu": 0.5, "step_time_ns": 20.0}})},
            "(order of keys, blanks or spelling of numbers)",
        ),
    ],
)
def test_differences_are_found(
    changed: dict[str, str | bytes | None],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, text = said(tmp_path, capsys, **changed)
    assert status == 1
    assert expected in text
