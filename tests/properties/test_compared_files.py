"""Lock files and saved estimates with anything in them: an error of the user's, or a comparison."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flint.errors import FlintError, Malformed
from flint.io.bounded import parse_json
from flint.io.documents import as_json
from flint.ir.workload import Workload
from flint.tools.change.diff import show
from flint.tools.change.diff.budgets import broken, parse_budgets
from flint.tools.change.diff.difference import Side, compare
from flint.tools.change.diff.document import document, snapshot_of_estimate
from flint.tools.change.diff.snapshot import Snapshot
from flint.tools.change.project.ci import junit, markdown
from flint.tools.change.project.lock import Lock, load_lock
from flint.tools.change.project.verify import Verdict
from flint.tracing import Trace
from tests.tools.change.test_compare import program, side

BUDGETS = parse_budgets("step-time=+1%,memory=+1MiB,bytes:data=+0,kernels=+5%,mfu=+1,traffic=1GiB")
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.lists(st.integers(-3, 3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(-3, 3), max_size=2),
)


@cache
def accepted() -> tuple[Snapshot, str, str]:
    """A snapshot, its lock file and its estimate as JSON."""
    found = side(program("a", "b", gathers=1), "h100-dgx").snapshot
    estimate = Trace(Workload.single(program("a", gathers=1))).estimate("h100-dgx").to_json()
    return found, Lock({"it": found}).to_bytes().decode(), json.dumps(estimate)


def places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield where
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()  # fmt: skip
    for key, entry in inside:
        yield from places(entry, (*where, key))


def spoilt(document_: Any, at: int, value: Any) -> Any:
    """The document with one entry replaced."""
    found = copy.deepcopy(document_)
    where = [w for w in places(found) if w]
    path = where[at % len(where)]
    inside = found
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return found


def read_again(document_: Any) -> Any:
    """As it is read from a file."""
    return parse_json(json.dumps(document_).encode())


def shown(before: Snapshot, after: Snapshot) -> None:
    """Everything that is printed of a comparison."""
    difference = compare(Side(before), Side(after))
    told = []
    with contextlib.suppress(FlintError):
        told = broken(difference, BUDGETS)
    show.text(difference, told, verbose=True)
    json.dumps(as_json(document(difference, told)))
    verdict = Verdict("it", "h100-dgx", difference, tuple(told), True)
    markdown([verdict])
    junit([verdict])


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0, 1e300])
def test_every_number_of_a_lock_file(value: float) -> None:
    document_ = json.loads(accepted()[1])
    where = [w for w in places(document_) if w]
    for at, path in enumerate(where):
        inside = document_
        for key in path:
            inside = inside[key]
        if isinstance(inside, (int, float)):
            lock_file(at, value)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, 10_000), values)
def test_lock_files(at: int, value: Any) -> None:
    lock_file(at, value)


def lock_file(at: int, value: Any) -> None:
    found, text, _ = accepted()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flint.lock"
        path.write_text(json.dumps(spoilt(json.loads(text), at, value)))
        try:
            lock = load_lock(path)
        except FlintError as error:
            assert error.code == "FL723"
            return
    assert lock is not None
    for snapshot in lock.captures.values():
        shown(snapshot, found)
        shown(found, snapshot)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, 10_000), values)
def test_saved_estimates(at: int, value: Any) -> None:
    found, _, text = accepted()
    try:
        saved = snapshot_of_estimate(read_again(spoilt(json.loads(text), at, value)))
    except Malformed:
        return  # what `flint diff` reports as FL304
    shown(saved, found)
    shown(found, saved)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 20_000), st.binary(max_size=3))
def test_bytes_of_lock_files(at: int, new: bytes) -> None:
    _, text, _ = accepted()
    data = text.encode()
    at %= len(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flint.lock"
        path.write_bytes(data[:at] + new + data[at + 1 :])
        with contextlib.suppress(FlintError):
            load_lock(path)


def test_the_file_is_written_as_it_was_read() -> None:
    found, text, _ = accepted()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flint.lock"
        path.write_text(text)
        lock = load_lock(path)
        assert lock is not None and lock.captures == {"it": found}
        assert not lock.save(path)
        path.write_text(text.replace("flint.lock/1", "flint.lock/2"))
        with pytest.raises(FlintError, match="this flint reads 'flint.lock/1'"):
            load_lock(path)
