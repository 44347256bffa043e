"""Actions that wait for an import."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from flint.frontends.torch_world.runtime.patching import after_import


def test_an_action_runs_when_the_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[int] = []

    def note() -> None:
        seen.append(sys.modules["imported_late"].value)

    before = list(sys.meta_path)
    with after_import("imported_late", note):
        assert seen == []
        importlib.import_module("imported_late")
        assert seen == [1]
    with after_import("imported_late", note):
        assert seen == [1, 1]
    assert sys.meta_path == before
    del sys.modules["imported_late"]


def test_nothing_happens_without_the_import() -> None:
    before = list(sys.meta_path)
    with after_import("never_imported", lambda: pytest.fail("it was not imported")):
        pass
    assert sys.meta_path == before
