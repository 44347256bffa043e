"""docs/architecture.md names functions and folders that are there."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
WALKS = [w for w in PAGE.split("\n## ")[1:] if "| step |" in w]


def _functions(walk: str) -> list[str]:
    return re.findall(r"`(flint\.[\w.]+)`", walk)


@pytest.mark.parametrize("name", sorted({n for w in WALKS for n in _functions(w)}))
def test_a_named_function_is_there(name: str) -> None:
    if "torch_world" in name:
        pytest.importorskip("torch")
    assert callable(resolve_name(name))


def test_five_walks_of_at_most_seven_steps_each() -> None:
    assert len(WALKS) == 5
    assert all(2 < len(re.findall(r"^\| \d ", w, re.MULTILINE)) <= 7 for w in WALKS)


@pytest.mark.parametrize("folder", re.findall(r"^\| `([\w/]+)` \|", PAGE, re.MULTILINE))
def test_a_named_folder_is_there(folder: str) -> None:
    assert (ROOT / folder).is_dir()
