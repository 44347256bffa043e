"""The likeliest mistakes of each front end: the first cause in 300 characters, where it is, what to do."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flint.cli.command_line import app

pytest.importorskip("jax")
pytest.importorskip("torch")
TABLE = Path(__file__).with_name("first_mistakes.txt").read_text(encoding="utf-8")


def _cases():
    for section in TABLE.split("\n== ")[1:]:
        head, *lines = section.rstrip().split("\n")
        frontend, _, file = head.rpartition(" ")
        program = "\n".join(line for line in lines if not line.startswith("-- "))
        for line in lines:
            if line.startswith("-- "):
                name, old, new, words, *more = line.removeprefix("-- ").split(" :: ")
                yield pytest.param(program, file, old, new, words, more, id=f"{frontend}: {name}")


def _said(program, file, old, new, options="--mesh 4x2", given=""):
    """What the command says of a program with one mistake; `given` is another file than the usual."""
    assert old in program
    kept = given if given.endswith((".onnx", ".txt")) else file
    Path(kept).write_text(program.replace(old, new.strip(), 1), encoding="utf-8")
    found = CliRunner().invoke(app, ["capture", given or file, *options.split()])
    assert (found.exit_code, found.stdout) == (2, ""), found.stderr
    return found.stderr[re.search(r"error.FL|Error: ", found.stderr).start() :].strip()


@pytest.mark.parametrize(("program", "file", "old", "new", "words", "more"), list(_cases()))
def test_the_first_screen(program, file, old, new, words, more, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = _said(program, file, old, new, *more)
    missing = [word for word in words.split(";") if word not in said]
    assert not missing and len(said) <= 300, said
    assert not re.search(r"0x[0-9a-f]{6}|\[CPU|backends:|tensors? without data", said), said


def test_an_option_with_one_value_is_given_once():
    """The last of two would silently be all that is explored. Flags, and what is listed, may repeat."""
    commands = (
        "explore x.py --mesh a=1 --mesh a=2",
        "capture x.py -m 8 -o a --output b",
        "capture x.py -m 8 -q -q --set a=1 --set b=2",
    )
    said = [CliRunner().invoke(app, command.split()) for command in commands]
    assert all(s.exit_code == 2 for s in said)
    assert ["takes one value, and is given 2 times" in s.stderr for s in said] == [
        True,
        True,
        False,
    ]


def test_every_front_end_has_twenty():
    counts = Counter(case.id.rpartition(":")[0] for case in _cases())
    assert len(counts) == 5 and min(counts.values()) >= 20
