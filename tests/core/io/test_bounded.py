"""What is read is a regular file, and no larger in memory than such a file can be."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from flint.backends.chakra.reading.trace_files import find_traces
from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, gunzip, is_directory, parse_json, read_bounded


def refused(path: Path, kind: FileKind = FileKind.SIMULATOR) -> str:
    with pytest.raises(FlintError) as caught:
        read_bounded(path, kind, "FL301")
    assert caught.value.code == "FL301"
    return caught.value.message


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    assert read_bounded(path, FileKind.SIMULATOR, "FL301") == b"content"


def test_what_is_no_regular_file_is_refused_and_nobody_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe").endswith("it is a pipe, not a regular file")
    assert refused(tmp_path).endswith("it is a directory, not a regular file")
    assert refused(Path("/dev/zero")).endswith("it is a device, not a regular file")


@pytest.mark.parametrize("name", ["absent", "x" * 300, "a\0b"])
def test_a_name_that_the_system_refuses(name: str, tmp_path: Path) -> None:
    assert refused(tmp_path / name).startswith("cannot read ")
    assert not is_directory(tmp_path / name)


def test_a_file_larger_than_its_kind_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 1 << 40)  # sparse
    assert "it has 1,099,511,627,776 bytes: a file of a simulator has at most" in refused(path)


def test_gzip_stops_at_the_limit_over_all_its_streams() -> None:
    stream = gzip.compress(bytes(1000))
    assert gunzip(stream * 3, 3000) == bytes(3000)
    for limit in (2999, 999):
        with pytest.raises(Malformed, match=f"unpacks to more than {limit:,} bytes"):
            gunzip(stream * 3, limit)
    with pytest.raises(Malformed, match="gzip stream is broken"):
        gunzip(stream[:-9], 3000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[" * 200_000, "nested too deeply"),
        (b"[" + b"[]," * (1 << 23), "bytes of memory, more than any such file needs"),
        (b'{"a": 1, "a": 2}', "the key 'a' appears twice"),
        (b"[NaN]", "NaN is not a JSON number"),
        (b"[1" + b"0" * 5000 + b"]", "limit"),
        (b"\xff", "utf-8"),
        (b"{", "Expecting"),
    ],
)
def test_what_is_no_json(text: bytes, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        parse_json(text)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["x.99999999999999999999.et"], "has a rank that no system has"),
        (["x." + "9" * 200 + ".et"], "has a rank that no system has"),
        (["x.7.et", "x.007.et"], "has two traces of rank 7: x.007.et, x.7.et"),
        (["x.\u0663.et"], "there are no Chakra traces"),
    ],
)
def test_ranks_in_names_of_files(names: list[str], said: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(FlintError) as caught:
        find_traces(tmp_path)
    assert caught.value.code == "FL601" and said in caught.value.message


@pytest.mark.parametrize("count", ["4, 0", "9" * 5000, "4096, 4096, 4"])
def test_counts_of_a_network_that_no_system_has(count: str, tmp_path: Path) -> None:
    (tmp_path / "x.0.et").touch()
    (tmp_path / "network.yml").write_text(f"npus_count: [ {count} ]\n")
    with pytest.raises(FlintError) as caught:
        find_traces(tmp_path)
    assert caught.value.code == "FL706"


@pytest.mark.parametrize(
    "text",
    ['{"1": [4294967296]}', '{"1": [0], "1": [1]}', '{"\u0663": [0]}', '{"1": [1' + "0" * 5000],
)
def test_groups_that_no_system_has(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.0.et").touch()
    (tmp_path / "comm_group.json").write_text(text)
    with pytest.raises(FlintError) as caught:
        find_traces(tmp_path)
    assert caught.value.code == "FL605"
