"""The manifest says what every file is, and is believed only as it was written."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from flint.backends.chakra import write
from flint.backends.chakra.manifest import (
    NAME,
    Listed,
    Manifest,
    OldManifest,
    matches,
    ranks_text,
    read_manifest,
)
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.program import Kind
from flint.ir.workload import Workload
from tests.chakra_traces import layered_program
from tests.program_rows import ProgramBuilder

KEPT = Path(__file__).parents[2] / "compat" / "data" / "manifest-2026-11-21.json"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("manifest") / "out"
    write(Workload.single(layered_program()), out)
    return out


def beside(data: bytes, folder: Path) -> Manifest | OldManifest | None:
    (folder / NAME).write_bytes(data)
    return read_manifest(folder)


def test_every_file_is_listed_as_it_is(written: Path) -> None:
    found = read_manifest(written)
    assert isinstance(found, Manifest)
    assert sorted(found.listing) == sorted(set(os.listdir(written)) - {NAME})
    for name, listed in found.listing.items():
        data = (written / name).read_bytes()
        assert listed.size_bytes == len(data) and listed.digest is not None
        assert matches(listed, [data[:9], data[9:]])
        for bit in (0, 8 * len(data) - 1):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            assert not matches(listed, [changed])
    assert "trace.8.et" not in found.listing and "trace.01.et" not in found.listing


def test_ranks_of_equal_bytes_are_stated_once(tmp_path: Path) -> None:
    b = ProgramBuilder(Mesh.parse("data=512,model=2"))
    b.add("stablehlo.add", Kind.COMPUTE, flops=1, result_bytes=4, operand_bytes=8)
    workload = Workload.single(b.build())
    report = write(workload, tmp_path / "out", groups="dims", link=True)
    found = read_manifest(tmp_path / "out")
    assert isinstance(found, Manifest)
    assert [t.ranks for t in found.traces] == ["0-1023"] and report.ranks == 1024
    assert (tmp_path / "out" / NAME).stat().st_size < 3000
    assert len(found.listing) == 1030


def test_ranks_text() -> None:
    assert ranks_text([5]) == "5"
    assert ranks_text([3, 0, 1, 7, 8]) == "0-1,3,7-8"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ranks": 9}, "ranks or trace_bytes"),
        ({"trace_bytes": 1}, "ranks or trace_bytes"),
        ({"prefix": "../x"}, "prefix"),
        ({"prefix": ".x"}, "prefix"),
        ({"mesh": {"data": 4}}, "the mesh has no rank 7"),
        ({"mesh": {"data": -4}}, "mesh.data"),
        ({"mesh": {"data": 1 << 24, "model": 1 << 24}}, "that many devices"),
        ({"mesh": {"a": "x"}}, "mesh.a"),
        ({"traces": [{"ranks": "0-99999999999", "size_bytes": 1, "digest": "x"}]}, "traces"),
        ({"files": "all"}, "files"),
        ({"files": [3]}, "files"),
        ({"files": [{"name": "a"}]}, "files.size_bytes"),
        ({f"k{i}": 1 for i in range(99)}, "more than 64 keys"),
        ({"more": 1}, "more"),
        ({"options": None}, "options"),
        ({"mesh": {"model": 4, "data": 2}}, "it was changed"),
        ({"sha256": "0" * 64}, "it was changed"),
    ],
)
def test_what_no_writer_says_is_refused(
    written: Path, tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    document = json.loads((written / NAME).read_bytes())
    with pytest.raises(FlintError, match="FL606") as caught:
        beside(json.dumps({**document, **change}).encode(), tmp_path)
    assert why in caught.value.message


@pytest.mark.parametrize(
    ("ranks", "why"),
    [("0-3,3-7", "not ascending"), ("7-0", "not ascending"), ("0-7,", "neither"), ("", "neither")],
)
def test_ranks_that_are_none(written: Path, tmp_path: Path, ranks: str, why: str) -> None:
    document = json.loads((written / NAME).read_bytes())
    document["traces"] = [{**document["traces"][0], "ranks": ranks}]
    with pytest.raises(FlintError, match=why):
        beside(json.dumps(document).encode(), tmp_path)


def test_a_rank_is_named_once(written: Path, tmp_path: Path) -> None:
    document = json.loads((written / NAME).read_bytes())
    document["traces"].append(document["traces"][0])
    with pytest.raises(FlintError, match="rank 0 is named twice"):
        beside(json.dumps(document).encode(), tmp_path)


def test_no_flipped_bit_is_believed(written: Path, tmp_path: Path) -> None:
    data = (written / NAME).read_bytes()
    whole = beside(data, tmp_path)
    chosen = random.Random(0).sample(range(8 * len(data)), 400)
    for bit in chosen:
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = beside(bytes(changed), tmp_path)
        except FlintError as error:
            assert error.code == "FL606"
        else:  # the schema, so that it is no manifest of ours, or a space
            assert found in (None, whole), bit


def test_no_cut_is_believed(written: Path, tmp_path: Path) -> None:
    data = (written / NAME).read_bytes()
    for size in (60, 200, len(data) // 2, len(data) - 4):
        with pytest.raises(FlintError, match="FL606"):
            beside(data[:size], tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b"[1]",
        b'{"manifest_version": 3, "name": "web extension"}',
        b'{"schema": "someone.else/1"}',
        b"[" * 100_000,
    ],
)
def test_a_manifest_of_another_program_is_none(data: bytes, tmp_path: Path) -> None:
    assert beside(data, tmp_path) is None


def test_only_a_regular_file_of_fair_size_is_read(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(FlintError, match="FL606"):
        read_manifest(tmp_path)
    os.remove(tmp_path / NAME)
    with (tmp_path / NAME).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FlintError, match="FL606"):
        read_manifest(tmp_path)


def test_one_of_november_2026_is_still_read(tmp_path: Path) -> None:
    found = beside(KEPT.read_bytes(), tmp_path)
    assert isinstance(found, OldManifest)
    assert found.listing["network.yml"] == found.listing["trace.3.et"] == Listed(None, None)
    digest = found.listing["trace.0.et"].digest
    assert digest is not None and digest.startswith("sha256:")
    assert "notes.txt" not in found.listing and len(found.listing) == 14
