"""Files and documents of the last release are read: `.flint` files give the totals that they gave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flint.ir.workload import Workload
from flint.tools.change.diff.snapshot import snapshot
from flint.tools.change.project.lock import load_lock
from flint.tracing import Trace
from tests.machine_output import assert_readable

RELEASES = sorted((Path(__file__).parent / "data").glob("release-*"))
FILES = [path for folder in RELEASES for path in sorted(folder.glob("*.flint"))]
DOCUMENTS = [path for folder in RELEASES for path in sorted(folder.glob("*.json"))]


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _said_again(old: Any, new: Any) -> bool:
    """Whether all of an old document is in a new one, which may say more."""
    if isinstance(old, dict):
        return all(key in new and _said_again(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return len(old) == len(new) and all(map(_said_again, old, new))
    return bool(old == new)


def test_there_are_files_of_a_release() -> None:
    assert {"jax.flint", "pipeline.flint", "torch.flint"} <= {p.name for p in FILES}


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_totals_are_those_of_then(path: Path) -> None:
    then = json.loads(path.with_suffix(".capture.json").read_text())["summary"]
    trace = Trace(Workload.load(path))
    now = json.loads(json.dumps(trace.summary().to_json()))
    assert _said_again(then, now)
    assert trace.estimate("h100-dgx").step_time_ns > 0


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_documents_have_no_field_that_is_gone(path: Path) -> None:
    pytest.importorskip("jsonschema", reason="validates documents")
    assert_readable(path.read_bytes())


@pytest.mark.parametrize("folder", RELEASES, ids=lambda p: p.name)
def test_locks_are_read_and_say_what_they_said(folder: Path) -> None:
    lock = load_lock(folder / "lock.json")
    assert lock is not None
    (locked,) = lock.captures.values()
    again = snapshot(Workload.load(folder / "jax.flint")).program
    # Whether arguments are donated was not in locks then.
    unsaid = tuple(replace(a, is_donated=None) for a in again.arguments)
    assert locked.program == replace(again, arguments=unsaid)


def test_a_field_that_is_gone_is_seen() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="validates documents")
    document = json.loads((RELEASES[0] / "check.json").read_text())
    with pytest.raises(jsonschema.ValidationError, match="was removed"):
        assert_readable(json.dumps({**document, "was removed": 1}))
    assert not _said_again({"a": [1]}, {"a": [2]}) and _said_again({"a": 1}, {"a": 1, "b": 2})
