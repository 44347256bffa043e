"""The tutorial, the how-tos and the notebooks do what they say."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from tests.documentation.snippets import ROOT, Snippet, run_page, snippets
from tests.long import long_but

PAGES = [ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("page", long_but([PAGES[0]], PAGES), ids=lambda p: p.stem)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="captures JAX programs")
    if page.stem == "pytorch":
        pytest.importorskip("torch", reason="records a PyTorch program")
    run_page(page, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_prints_what_it_shows(path: Path) -> None:
    pytest.importorskip("jax", reason="captures JAX programs")
    space: dict[str, object] = {}
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        if cell["cell_type"] != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), space)  # noqa: S102
        shown = "".join(line for output in cell["outputs"] for line in output["text"])
        assert printed.getvalue() == shown, f"cell {number}"


def test_blocks_are_found() -> None:
    page = (
        '```python title="a.py"\nx = 1\n```\n\n```sh exit=2\nfalse\n```\n\n```text\n  said  this\n```\n'
        "```sh no-run\nrm -rf x\n```\n```json\n{}\n```\n"
    )
    assert snippets(page) == [
        Snippet("python", ' title="a.py"', "x = 1\n"),
        Snippet("sh", " exit=2", "false\n", ["said  this"]),
    ]
    assert [(s.file, s.status) for s in snippets(page)] == [("a.py", 0), ("", 2)]


@pytest.mark.parametrize(
    ("block", "wrong"),
    [
        ("```sh\nexit 3\n```\n", "exit 3"),
        ("```sh\necho one two\n```\n```text\none three\n```\n", "does not print"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
    ],
)
def test_a_page_that_is_wrong_is_found_out(block: str, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(block)
    with pytest.raises(AssertionError, match=wrong):
        run_page(tmp_path / "page.md", tmp_path)
