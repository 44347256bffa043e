"""Surviving strings of files: an identity planted in any file of a directory of traces is found."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flint.backends.chakra.writing.encode import field_bytes, text_attribute, varint
from flint.backends.chakra.writing.writer import write
from flint.errors import FlintError
from flint.tools.share.leaks.files import TraceTexts, surviving_in_files, trace_content
from flint.tools.share.leaks.report import leaks_of
from flint.tools.share.leaks.strings import Place
from tests.leak_workloads import neutral_workload

NAME = "falcon7acme"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The traces of eight ranks without any name."""
    path = tmp_path / "shared"
    write(neutral_workload(), path)
    return path


def _record(body: bytes) -> bytes:
    return varint(len(body)) + body


def _node(name: bytes, *fields: bytes) -> bytes:
    """A record of node 9999 at the end of a file."""
    return _record(b"\x08" + varint(9999) + field_bytes(2, name) + b"\x18\x04" + b"".join(fields))


def _appended(name: str, data: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes() + data)

    return change


def _edited(name: str, before: bytes, after: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        data = path.read_bytes()
        assert before in data
        path.write_bytes(data.replace(before, after, 1))

    return change


def _in_json(name: str, *keys: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        inner = document
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = NAME
        (folder / name).write_text(json.dumps(document))

    return change


def _in_workload(folder: Path) -> None:
    planted = replace(neutral_workload(), metadata={"warnings": [f"of {NAME}"]})
    planted.save(folder / "workload.flint", force=True)


def _in_zip_comment(folder: Path) -> None:
    with zipfile.ZipFile(folder / "workload.flint", "a") as archive:
        archive.comment = NAME.encode()


def _between_files(folder: Path) -> None:
    """Bytes before the table of a zip's contents, which has its new place."""
    path = folder / "workload.flint"
    data = path.read_bytes()
    at = int.from_bytes(data[-6:-2], "little")
    moved = (at + len(NAME)).to_bytes(4, "little")
    path.write_bytes(data[:at] + NAME.encode() + data[at:-6] + moved + data[-2:])


def _compressed(folder: Path) -> None:
    path = folder / "trace.7.et"
    path.write_bytes(gzip.compress(path.read_bytes() + _node(NAME.encode())))


def _linked(folder: Path) -> None:
    (folder / "trace.0.et").unlink()
    (folder / f"{NAME}.et").write_bytes((folder / "trace.1.et").read_bytes())
    (folder / "trace.0.et").symlink_to(f"{NAME}.et")


PLANTED: list[tuple[Place, Callable[[Path], None]]] = [
    (Place.FILE_NAME, lambda f: (f / f"{NAME}.txt").write_text("")),
    (Place.FILE_NAME, lambda f: (f / NAME).mkdir()),
    (Place.FILE_NAME, lambda f: (f / "trace.3.et").rename(f / f"{NAME}.3.et")),
    (Place.FILE_NAME, _linked),
    (Place.TRACE_TEXT, _appended("trace.5.et", _node(f"COMP_NODE {NAME}".encode()))),
    (Place.TRACE_TEXT, _appended("trace.5.et", _node(b"COMP_NODE op.add " + NAME.encode()))),
    (
        Place.TRACE_TEXT,
        _appended("trace.2.et", _node(b"", field_bytes(10, text_attribute(NAME, "1")))),
    ),
    (
        Place.TRACE_TEXT,
        _appended("trace.2.et", _node(b"", field_bytes(10, text_attribute("pg_name", NAME)))),
    ),
    # fields that no reader asks for: inputs, an unknown field, the metadata record
    (Place.TRACE_TEXT, _appended("trace.2.et", _node(b"", field_bytes(8, NAME.encode())))),
    (Place.TRACE_TEXT, _appended("trace.2.et", _node(b"", field_bytes(99, NAME.encode())))),
    (Place.TRACE_TEXT, _edited("trace.4.et", b"axis0=2,ax", b"falcon=7,a")),
    # the same length as other ranks: only some bytes differ
    (Place.TRACE_TEXT, _edited("trace.1.et", b"sdy.all_reduce", NAME.encode() + b"ABC")),
    (Place.TRACE_TEXT, _compressed),
    (Place.FILE_TEXT, _in_json("manifest.json", "prefix")),
    (Place.FILE_TEXT, _in_json("manifest.json", "options", "cluster")),
    (Place.FILE_TEXT, _in_json("manifest.json", NAME)),
    (Place.FILE_TEXT, _in_json("comm_group.json", "1")),
    (Place.FILE_TEXT, _in_json("system.json", "scheduling-policy")),
    (Place.FILE_TEXT, _in_json("memory.json", "memory-type")),
    (Place.FILE_TEXT, _appended("README.txt", b"\ntraces of the " + NAME.encode() + b" team\n")),
    (Place.FILE_TEXT, _appended("network.yml", b"# cluster " + NAME.encode())),
    (Place.FILE_TEXT, _appended("system.json", b"// " + NAME.encode())),
    (Place.METADATA_VALUE, _in_workload),
    (Place.FILE_TEXT, _in_zip_comment),
    (Place.FILE_TEXT, _between_files),
]


def test_nothing_survives_in_files_without_names(folder: Path):
    """Flint's own words in README, networks, manifests and traces are no survivors."""
    assert surviving_in_files(folder) == ()
    assert surviving_in_files(folder / "workload.flint") == ()


@pytest.mark.parametrize(("place", "change"), PLANTED)
def test_a_planted_name_is_found(folder: Path, place: Place, change: Callable[[Path], None]):
    """With its place, and with the words of the original that it holds."""
    change(folder)
    program = neutral_workload().programs[0].with_rows(strings=("", NAME, "falcon"))
    original = replace(neutral_workload(), programs=(program, neutral_workload().programs[1]))
    found = [s for s in surviving_in_files(folder, original) if "falcon" in s.text]
    assert place in {s.place for s in found}
    assert all("falcon" in s.words for s in found)


def test_a_name_in_one_of_many_alike_traces_is_found(folder: Path):
    """Each rank's file is read, though those of a class are compared with the first alone."""
    for rank in range(8):
        path = folder / f"trace.{rank}.et"
        data = path.read_bytes()
        path.write_bytes(data.replace(b"stablehlo.dot", b"stablehlo.tip", 1))
        (found,) = surviving_in_files(folder) or (None,)
        if b"stablehlo.dot" in data:
            assert found is not None
            assert (found.place, found.where) == (Place.TRACE_TEXT, f"trace.{rank}.et")
        path.write_bytes(data)


def test_traces_that_differ_in_numbers_are_walked_once(folder: Path):
    """Groups and ranks differ between ranks of a class: their texts do not."""
    traces = TraceTexts()
    files = [(folder / f"trace.{rank}.et").read_bytes() for rank in range(8)]
    assert len(set(files)) == 5  # four ranks of one class, and those of the other are alike
    found = [bool(traces.of(data, "trace")) for data in files]
    assert found.count(True) == len({len(data) for data in files}) == 2


def test_every_text_of_a_trace_is_found(folder: Path):
    """Against the reader that knows the schema."""
    from flint.backends.chakra.reading.reader import read

    for rank in (0, 4):
        path = folder / f"trace.{rank}.et"
        trace = read(path)
        texts = {text for _, text in trace_content(path.read_bytes(), "trace").texts}
        assert {n.name for n in trace.nodes} <= texts
        assert {name for n in trace.nodes for name in n.attributes} <= texts


def test_the_report_searches_the_files_that_are_given_away(folder: Path):
    """A name in README.txt is reported beside the attacks."""
    workload = neutral_workload()
    assert not leaks_of(workload, files=folder).survivors
    _appended("README.txt", NAME.encode())(folder)
    assert not leaks_of(workload).survivors
    assert leaks_of(workload, files=folder).survivors[0].place is Place.FILE_TEXT


def test_what_cannot_be_read_is_refused(tmp_path: Path):
    """With the name of the file."""
    with pytest.raises(FlintError, match="FL932.*nothing"):
        surviving_in_files(tmp_path / "nothing")
