"""What the site is made of, without mkdocs: pages that are generated, and links between pages."""

from __future__ import annotations

import importlib.util
import json
from types import ModuleType

import flint
from flint.schemas.catalog import read_schema, schema_names
from tests.documentation.snippets import ROOT


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "_site" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MADE, LINKS = _module("made"), _module("links")


def test_links_lead_to_where_pages_are_in_the_site() -> None:
    page = LINKS.Links(ROOT, "docs/howto/jax.md", "howto/jax.md")
    assert page.rewritten("[a](../kernels.md#x) and [b](../../README.md)") == (
        "[a](../kernels.md#x) and [b](../index.md)"
    )
    assert page.rewritten("[`m`](../../examples/llama_jax.py)") == "`m` (`examples/llama_jax.py`)"
    assert page.rewritten("[e](../../examples/README.md)") == "[e](../examples.md)"
    assert page.rewritten("[w](https://a.org/b)") == "[w](https://a.org/b)"
    assert page.rewritten("```\n[a](../kernels.md)\n```") == "```\n[a](../kernels.md)\n```"
    assert page.broken == []
    page.rewritten("[gone](../nowhere.md)")
    assert page.broken == ["docs/nowhere.md"]
    home = LINKS.Links(ROOT, "README.md", "index.md")
    assert home.rewritten("[p](docs/kernels.md) ![x](docs/pictures/gpipe.svg)") == (
        "[p](kernels.md) ![x](pictures/gpipe.svg)"
    )


def test_every_command_option_and_name_is_on_a_page() -> None:
    commands, python = MADE.commands_page(), MADE.python_page()
    for words in ("## flint capture", "## flint clusters show", "--fail-over", "--trip-count"):
        assert words in commands
    assert all(f".{name}\n" in python for name in flint.__all__)


def test_every_field_of_every_document_is_on_its_page() -> None:
    assert len(MADE.document_pages()) == len(schema_names())
    for name in schema_names():
        page = MADE.document_page(name)
        schema = read_schema(name)
        for part in (schema, *schema.get("$defs", {}).values()):
            for field in part.get("properties", {}):
                assert f"| `{field}` |" in page, f"{name}: {field}"
        assert "any" not in {cell.strip() for row in page.splitlines() for cell in row.split("|")}


def test_notebooks_are_on_a_page_with_what_they_print() -> None:
    page = MADE.notebooks_page(ROOT)
    for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            assert "".join(cell["source"]).removeprefix("# ") in page
