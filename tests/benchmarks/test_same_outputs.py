"""Outputs of two checkouts: what is taken for a difference, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.same_outputs import compare

OUTPUTS = {
    "case/estimate/h100-dgx/none.json": b'{\n  "step_time_ns": 10.0,\n  "mfu": 0.5\n}\n',
    "case/estimate/v5p/none.json": b'{\n  "step_time_ns": 20.0,\n  "mfu": 0.5\n}\n',
    "case/capture.txt": b"program  a\nops  12\ntime  1.5 s\nin OUT/case\n",
    "case/kernel/trace.0.et": b"\x02\x0a\x00\x80add",
    "case/kernel/workload.flint": b"any",
}


def said(
    place: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, bytes | None]
) -> tuple[int, str]:
    """Number of differences and text of a comparison of OUTPUTS with what changed."""
    for side, files in (("before", OUTPUTS), ("after", OUTPUTS | changed)):
        for name, content in files.items():
            if content is not None:
                path = place / side / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.replace(b"OUT", str(place / side).encode()))
    found = compare(place / "before", place / "after")
    return found, capsys.readouterr().out


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"case/capture.txt": b"program  a\nops  12\ntime  9.5 s\nin OUT/case\n"},
        {"case/kernel/workload.flint": b"other"},
    ],
)
def test_times_folders_and_kept_workloads_are_no_difference(
    changed: dict[str, bytes | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(tmp_path, capsys, changed) == (0, "\n4 files compared, 0 differ\n")


def test_one_paragraph_for_one_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slower: dict[str, bytes | None] = {
        name: content.replace(b"0.0,", b"1.0,")
        for name, content in OUTPUTS.items()
        if name.startswith("case/estimate")
    }
    found, text = said(tmp_path, capsys, slower)
    assert found == 2
    assert "estimate/.json: 2 files\n  case/estimate/h100-dgx/none.json\n" in text
    assert '    -   "step_time_ns": 10.0,\n    +   "step_time_ns": 11.0,\n' in text


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"case/capture.txt": b"program  a\nops  13\n"}, "    - ops  12\n    + ops  13\n"),
        ({"case/capture.txt": b"program  a\n"}, "    - ops  12\n    + (end)\n"),
        ({"case/capture.txt": None}, "    - (there)\n    + (absent)\n"),
        ({"case/other.txt": b"new"}, "    - (absent)\n    + (there)\n"),
        ({"case/kernel/trace.0.et": b"\x02\x0a\x00\x80sub"}, "    - 7 bytes, at 4 b'add'\n"),
        ({"case/estimate/v5p/none.json": b"exit 2\nFL704\n"}, "    - {\n    + exit 2\n"),
    ],
)
def test_differences_are_found(
    changed: dict[str, bytes | None],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, text = said(tmp_path, capsys, changed)
    assert found == 1
    assert expected in text
