"""A slice of `benchmarks.bad_inputs`: readers refuse spoilt files with a code, or believe them.

The whole generator runs in .ci/run: more kinds of input, whole commands, limits of memory and time.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.bad import clusters, flint_files, profiles, stored, traces
from benchmarks.bad.bases import store, write_profiles
from benchmarks.bad.calls import CALLS
from benchmarks.bad.case import Case
from benchmarks.bad.running import write_files
from benchmarks.bad.sound import wrong_number
from flint import import_profiles
from flint.backends.chakra import check, write
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.workload import Workload
from tests.properties.test_invariants import sample

CASES = 15
Maker = Callable[[random.Random, int, Path], Case]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The good files, from a program that no compiler made."""
    folder = tmp_path_factory.mktemp("bases")
    workload = Workload.single(sample(), {"name": "sample"})
    workload.save(folder / "small.flint")
    for name in ("plain", "pipeline"):
        write(workload, folder / name)
    store(folder)
    write_profiles(folder)
    return folder


def code_of(error: FlintError) -> str:
    """The code; the message says something."""
    assert error.message and "\x1b" not in str(error)
    return error.code


def cases(make: Maker, bases: Path, tmp_path: Path) -> Iterator[tuple[Case, Path]]:
    """Cases of one kind with their files in a folder; a failure shows the case's number."""
    for number in range(CASES):
        place = tmp_path / str(number)
        place.mkdir()
        case = make(random.Random(f"slice {number}"), number, bases)
        write_files(place, case)
        print(case.number, case.change)
        yield case, place


def test_spoilt_workloads(bases: Path, tmp_path: Path) -> None:
    accepted = 0
    for _, place in cases(flint_files.case, bases, tmp_path):
        try:
            found = Workload.load(place / "w.flint")
        except FlintError as error:
            assert code_of(error) in ("FL301", "FL304")
        else:
            accepted += 1
            assert Workload.from_bytes(found.to_bytes()).to_bytes() == found.to_bytes()
    assert 0 < accepted < CASES / 2


def test_spoilt_traces(bases: Path, tmp_path: Path) -> None:
    good = 0
    for _, place in cases(traces.case, bases, tmp_path):
        try:
            good += check(place / "t").ok
        except FlintError as error:
            assert code_of(error)[:3] in ("FL5", "FL6", "FL7")
    assert good < CASES


def test_spoilt_clusters(bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for case, place in cases(clusters.case, bases, tmp_path):
        monkeypatch.chdir(place)
        try:
            load_cluster(case.commands[0][-1])
        except FlintError as error:
            assert code_of(error) in ("FL701", "FL702", "FL706")


@pytest.mark.parametrize("make", [stored.study, stored.lock, stored.simulator])
def test_spoilt_files_of_our_own(make: Maker, bases: Path, tmp_path: Path) -> None:
    for case, place in cases(make, bases, tmp_path):
        for name, path in case.commands:
            try:
                document = CALLS[name](str(place / path))
            except FlintError as error:
                assert code_of(error) in ("FL864", "FL723", "FL301", "FL865")
                break
            assert not wrong_number(json.loads(json.dumps(document, default=str)))


@pytest.mark.long
@pytest.mark.parametrize("make", [profiles.nsight, profiles.xplane, profiles.kineto])
def test_spoilt_profiles(make: Maker, bases: Path, tmp_path: Path) -> None:
    read = 0
    for case, place in cases(make, bases, tmp_path):
        try:
            found = import_profiles(place / case.commands[0][1])
        except FlintError as error:
            assert code_of(error)[:3] == "FL8"
        else:
            read += 1
            found.workload.verify()
    assert 0 < read < CASES


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"a": [{"bytes": -1}]}, "bytes is -1"),
        ({"step_time_ns": float("nan")}, "step_time_ns is nan"),
        ({"mfu": 7.5}, "mfu is 7.5"),
        ({"step_time_ns": 5, "classes": [{"end_ns": 9}]}, "a part takes"),
        ({"peak_bytes": 5, "breakdown": {"weights": 9}}, "a kind of memory"),
        ({"low_ns": 2, "high_ns": 1}, "an interval"),
        ({"step_time_ns": 5, "mfu": 0.5, "difference_ns": -3, "classes": [{"end_ns": 5}]}, ""),
    ],
)
def test_the_generator_looks_at_what_was_accepted(document: object, said: str) -> None:
    found = wrong_number(document)
    assert found.startswith(said) and bool(found) == bool(said)
