"""Names of others reach a terminal, a table and a graph file without their control characters."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from flint.backends.summary.graph import FORMATS
from flint.cli import console
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.program import Kind, RegionKind
from flint.text import Column, one_line, printable, printable_json, text_table
from tests.program_rows import ProgramBuilder

NAME = "w\x1b[31m\x00\x9b2J\u202e\ud800\n<&\"'\\[/red]é"


def test_what_is_escaped() -> None:
    assert printable(NAME) == "w\\x1b[31m\\x00\\x9b2J\\u202e\\ud800\n<&\"'\\[/red]é"
    assert one_line("a\tb\nc") == "a\\tb\\nc"
    document = json.dumps({"name": NAME}, ensure_ascii=False)
    assert json.loads(printable_json(document)) == {"name": NAME}
    assert printable_json(document).encode("utf-8").isascii() is False


def test_an_error_names_what_it_refuses_safely() -> None:
    text = str(FlintError("FL101", NAME, place=NAME, help="yes"))
    assert "\x1b" not in text and text.count("\\x1b") == 2


def test_a_cell_stays_one_line() -> None:
    assert text_table([Column("name")], [[NAME]]).count("\n") == 1


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_graphs_are_well_formed_whatever_names_are(form: str) -> None:
    b = ProgramBuilder(Mesh(("data",), (2,)))
    b.add("parameter", Kind.PARAMETER, name=NAME, scope=NAME, location=NAME, dtype="f32")
    b.begin_region(RegionKind.LOOP, 2, name=NAME)
    b.add("stablehlo.add", deps=[0], cause=NAME)
    b.end_region()
    text = FORMATS[form](b.build())
    assert not any(c in text for c in "\x00\x1b\x9b\u202e\ud800")
    if form == "graphml":
        names = [d.text for d in ElementTree.fromstring(text).iter() if "w\\x1b" in str(d.text)]
        assert len(names) >= 4
    if form == "json":
        assert json.loads(text)["nodes"][0]["name"] == NAME


def test_a_terminal_gets_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.table import Table
    from rich.text import Text

    def form() -> Table:
        table = Table()
        table.add_column("name")
        table.add_row(NAME.replace("\ud800", ""))
        return table

    monkeypatch.setattr(console, "is_terminal", lambda stream: True)
    monkeypatch.setenv("NO_COLOR", "1")
    console.print_result("", form)
    console.print_result("", lambda: Text("x\x1b[2J\nplain"))
    out = capsys.readouterr().out
    assert "\\x1b[31m" in out and "[/red]" in out and "\\x1b[2J" in out
    assert "\x1b[31m" not in out and "\x1b[2J" not in out
