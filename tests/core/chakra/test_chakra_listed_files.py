"""What changed since Flint wrote it is found, whatever the change means."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flint.backends.chakra import CheckReport, check, write
from flint.backends.chakra.manifest import OLD_SCHEMA
from flint.ir.workload import Workload
from tests.chakra_traces import layered_program


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write(Workload.single(layered_program(layers=1)), tmp_path / "out")
    return tmp_path / "out"


def codes(report: CheckReport) -> list[tuple[str, int]]:
    return [(f.code, f.rank) for f in report.findings]


def test_all_files_are_compared(out: Path) -> None:
    report = check(out)
    assert report.ok and report.notes == ()
    assert report.compared_files == len(os.listdir(out)) - 1  # all but the manifest


def test_every_flipped_bit_of_a_trace_is_found(out: Path) -> None:
    path = out / "trace.3.et"
    good = path.read_bytes()
    for at in range(0, len(good), 97):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        assert ("changed-file", 3) in codes(check(out)), at


def test_a_changed_number_is_found(out: Path) -> None:
    """More operations hang nothing, so that nothing else in a check would notice."""
    path = out / "trace.0.et"
    data = path.read_bytes()
    assert data.count(b"num_opsH\x80\x20") == 1  # 4096 as a varint
    path.write_bytes(data.replace(b"num_opsH\x80\x20", b"num_opsH\x80\x40"))
    (finding,) = check(out).findings
    assert str(finding) == ("changed-file rank 0: trace.0.et has other bytes than were written")


@pytest.mark.parametrize("name", ["workload.flint", "network.yml", "system.json", "README.txt"])
def test_other_files_are_compared_too(name: str, out: Path) -> None:
    with (out / name).open("ab") as file:
        file.write(b" ")
    (finding,) = check(out).findings
    assert finding.code == "changed-file" and finding.sentence.startswith(f"{name} has ")
    (out / name).unlink()
    (finding,) = check(out).findings
    assert (finding.code, finding.sentence) == (
        "missing-file",
        f"{name} is in the manifest but not here",
    )


def test_a_file_that_became_something_else_is_changed(out: Path) -> None:
    (out / "README.txt").unlink()
    os.mkfifo(out / "README.txt")
    (finding,) = check(out).findings
    assert finding.code == "changed-file" and "pipe" in finding.sentence


def test_a_link_to_another_rank_is_a_change(out: Path) -> None:
    path = out / "trace.2.et"
    path.unlink()
    os.link(out / "trace.0.et", path)  # rank 2 now has the messages of rank 0
    found = codes(check(out))
    assert ("changed-file", 2) in found and ("changed-file", 0) not in found
    assert ("wrong-rank", 2) in found


def test_files_that_nobody_listed_are_a_note(out: Path) -> None:
    (out / "notes \x1b[2J.md").write_text("mine")
    report = check(out)
    assert report.ok
    assert report.notes == ("1 file is not in the manifest: notes \\x1b[2J.md",)


def test_missing_trace_of_some_ranks(tmp_path: Path) -> None:
    write(Workload.single(layered_program(layers=1)), tmp_path / "out", ranks="0,3-5")
    (tmp_path / "out" / "trace.4.et").unlink()
    report = check(tmp_path / "out")
    assert report.partial and codes(report) == [("missing-file", -1)]


def test_old_manifest_says_that_nothing_could_be_compared(out: Path) -> None:
    old = {
        "schema": OLD_SCHEMA,
        "mesh": {"data": 4, "model": 2},
        "prefix": "trace",
        "options": {"ranks": "all"},
        "ranks": 8,
        "trace_bytes": 0,
        "files": sorted(
            p.name for p in out.iterdir() if not p.name.endswith((".et", "manifest.json"))
        ),
        "classes": [],
    }
    (out / "manifest.json").write_text(json.dumps(old))
    (out / "README.txt").write_text("other")
    report = check(out)
    assert report.ok and report.compared_files == 0
    assert report.notes == (
        "the manifest is from an older Flint, without digests: changes cannot be detected",
    )
