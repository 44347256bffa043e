"""Captures that fail, each in its own way: one error with the capture's name, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project_folders import files, flint

MODELS = {
    "raises": ("raise ValueError('no such thing')", "raises.py raised ValueError: no such thing"),
    "exits": ("import sys; sys.exit(0)", "exits.py raised SystemExit"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "the capture was ended by SIGKILL"),
    "aborts": ("import os; os.abort()", "the capture was ended by SIGABRT"),
    "prints": ("print('{}'); raise KeyError(3)", "prints.py raised KeyError: 3"),
    "no-entry": ("x = 1", "no-entry.py"),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    captures = ""
    for name, (text, _) in MODELS.items():
        (tmp_path / f"{name}.py").write_text(f"import flint; {text}")
        captures += f'[capture.{name}]\nmodel = "{name}.py"\nmesh = "4"\n'
    (tmp_path / "flint.toml").write_text(captures)
    return tmp_path


def test_each_failure_is_an_error_with_its_name(project: Path) -> None:
    before = files(project)
    for name, (_, said) in MODELS.items():
        result = flint("run", name)
        assert (result.exit_code, result.stdout) == (2, ""), name
        assert result.stderr.count("error[") == 1
        assert f": capture '{name}': " in result.stderr and said in result.stderr
    assert files(project) == before


def test_the_first_of_several_and_how_many_more(project: Path) -> None:
    result = flint("run", "raises", "killed", "-j", "2", "-v")
    assert result.exit_code == 2
    assert "capture 'raises': raises.py raised ValueError: no such thing (and 1 other capture failed)" in result.stderr  # fmt: skip
    assert 'raises.py", line 1, in <module>' in result.stderr, "-v prints the traceback"


def test_inputs_of_the_whole_repository_count(tmp_path: Path) -> None:
    """A project may be a folder of it, and import what is beside."""
    from flint.tools.change.project.captures import _repository

    (tmp_path / "perf").mkdir()
    assert _repository(tmp_path / "perf") == tmp_path / "perf"
    (tmp_path / ".git").mkdir()
    assert _repository(tmp_path / "perf") == tmp_path
