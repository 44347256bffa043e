"""Who imports whom in the product, also inside functions and for types alone."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[2]
grimp = pytest.importorskip("grimp")  # comes with import-linter, of the extra dev


def test_no_layer_imports_a_higher_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract is in pyproject.toml."""
    from importlinter import cli

    monkeypatch.chdir(ROOT)
    assert cli.lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


def test_there_are_no_circles() -> None:
    graph = grimp.build_graph("flint", cache_dir=None)
    imports = nx.DiGraph(
        (importer, imported)
        for importer in graph.modules - {"flint"}  # which names what users import
        for imported in graph.find_modules_directly_imported_by(importer)
    )
    assert [sorted(c) for c in nx.strongly_connected_components(imports) if len(c) > 1] == []


def test_the_core_names_no_tool() -> None:
    """But for `flint/__init__.py`, which names what users import, for type checkers."""
    graph = grimp.build_graph("flint", cache_dir=None)
    core = {m for m in graph.modules if m != "flint" and not m.startswith("flint.tools")}
    found = {m: graph.find_modules_directly_imported_by(m) for m in core}
    assert {
        (m, i) for m, imported in found.items() for i in imported if i.startswith("flint.tools")
    } == set()
