"""Which source files are the user's, and which are Flint's own."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import flint
from flint.io.user_places import is_users
from flint.passes.locations import TRACERS

SOURCES = sorted(
    path
    for root in map(Path, flint.__path__)
    for part in ("", "frontends", "passes", "backends")
    for path in (root / part).rglob("*.py")
    if part or path.is_relative_to(Path(flint.__file__).parent)
)


def test_no_file_of_flint_is_the_users(tmp_path: Path) -> None:
    assert len(SOURCES) > 300
    assert [p for p in SOURCES if is_users(str(p))] == []
    assert is_users(str(tmp_path / "frontends" / "model.py"))


def test_the_standard_library_is_not_the_users() -> None:
    assert not is_users(inspect.getfile(inspect))
    assert not is_users(re.__file__)
    assert not is_users("<string>")


def test_files_that_call_jax_are_where_locations_look_for_them() -> None:
    lowers = re.compile(r"\.lower\((\n|\*\*)")  # a program, and no text
    calls = [p for p in SOURCES if lowers.search(p.read_text(encoding="utf-8"))]
    assert {t for t in TRACERS for p in calls if p.as_posix().endswith(t)} == set(TRACERS)


def test_a_program_of_the_users_has_places_whatever_its_name(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib", reason="locations are MLIR's")
    from jaxlib.mlir import ir

    from flint.passes.locations import decode_location
    from flint.passes.mlir import make_context

    with make_context():
        ours = ir.Location.file(f"/site/flint{TRACERS[0]}", 7, 1)
        theirs = ir.Location.file(str(tmp_path / "program.py"), 7, 1)
        assert decode_location(ours)[1] == ""
        assert decode_location(theirs)[1] == "program.py:7"
