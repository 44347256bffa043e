"""flint.toml and `[tool.flint]`: what is read, and what is wrong with one, said once with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flint.errors import FlintError
from flint.tools.change.project.config import find_project, load_project
from tests.project_folders import PROJECT, files, flint

LOCK = '{"schema": "flint.lock/1", "captures": {}}\n'
PYPROJECT = (
    '[project]\nname = "x"\n\n[tool.flint.capture.train]\nmodel = "model.py"\nmesh = "4x2"\n'
)


def load(text: str, folder: Path, name: str = "flint.toml"):
    (folder / name).write_text(
        f"\ufeff{text}", "utf-8"
    )  # editors of Windows write a byte order mark
    return load_project(folder / name)


def test_defaults_bases_and_own_keys(tmp_path: Path) -> None:
    project = load(
        """
        clusters = ["h100-dgx"]
        budgets = { step-time = "+2%", memory = "+1%" }
        [capture.base]
        model = "model.py"
        set = { layers = 2, seq = 128, value = 3 }
        [capture.long]
        extends = "base"
        set = { seq = 32768, value = 4 }
        budgets = { memory = "+1GiB" }
        clusters = ["v5p", "net/ours.toml"]
        """,
        tmp_path,
    )
    base, long = project.captures["base"], project.captures["long"]
    assert (base.clusters, long.clusters) == (("h100-dgx",), ("v5p", "net/ours.toml"))
    assert long.model == "model.py"
    assert long.set == {"layers": 2, "seq": 32768, "value": 4}
    assert base.budgets == {"step-time": "+2%", "memory": "+1%"}
    assert long.budgets == {"step-time": "+2%", "memory": "+1GiB"}
    assert project.cluster("v5p") == "v5p"
    assert project.cluster("net/ours.toml") == str(tmp_path / "net" / "ours.toml")


def test_a_project_is_found_from_below_in_either_file(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "pyproject.toml").write_text('[project]\nname = "not ours"\n')
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    found = find_project(tmp_path / "src" / "deep")
    assert found == tmp_path / "pyproject.toml"
    assert load_project(found).captures["train"].mesh == "4x2"
    (tmp_path / "flint.toml").write_text(PROJECT)
    assert find_project(tmp_path / "src") == tmp_path / "flint.toml"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("medel = 1", "FL722", "unknown key 'capture.train.medel'; did you mean 'model'?"),
        ("world = 1", "FL722", "key 'capture.train.world' should be true or false, it is 1"),
        ('clusters = "v5p"', "FL722", "key 'capture.train.clusters' should be an array"),
        ("chunks = 0", "FL722", "key 'capture.train.chunks' should be greater than or equal to 1"),
        ('extends = "train"', "FL722", "captures extend each other: train -> train"),
        ('extends = "traim"', "FL722", "extends 'traim', which does not exist; did you mean 'train'?"),
        ("mesh = ", "FL722", "flint.toml is not a TOML file"),
        ('budgets = { step-tme = "+2%" }', "FL720", "'step-tme'; did you mean 'step-time'?"),
        ('budgets = { memory = "+2parsec" }', "FL720", "budget memory=+2parsec is not a limit"),
        ('budgets = { "flops:data" = "+0" }', "FL720", "not split by mesh axis"),
        ('traces = { outptu = "x" }', "FL722", "capture.train.traces.outptu'; did you mean 'output'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["run", "verify"])
def test_what_is_wrong_is_one_error_with_its_line(
    command: str, line: str, code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"flint.toml": PROJECT + line + "\n", "flint.lock": LOCK}.items():
        (tmp_path / name).write_text(text)
    before = files(tmp_path)
    result = flint(command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error[{code}]: ") and result.stderr.count("error[") == 1
    assert said in result.stderr
    assert f"flint.toml:{PROJECT.count(chr(10)) + 1}\n" in result.stderr
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("", "flint.toml has no captures", None),
        ('[capture.a]\nmesh = "4"\n', "key 'capture.a.model' is missing", 1),
        ('[capture.a]\nmodel="m.py"\nextends="b"\n[capture.b]\nextends="c"\n[capture.c]\nextends="a"\n',
         "captures extend each other: a -> b -> c -> a", 7),
        ('[capture."a/../b"]\nmodel="m.py"\n', "'a/../b' cannot be the name of a capture", 1),
        ('budgets = { kernel = "+1" }\n[capture.a]\nmodel="m.py"\n', "did you mean 'kernels'?", 1),
        ("capture = 3\n", "key 'capture' should be a table", 1),
        ("[capture]\na = 3\n", "key 'capture.a' should be a table", 2),
    ],
)  # fmt: skip
def test_whole_files_that_cannot_be_used(
    text: str, said: str, line: int | None, tmp_path: Path
) -> None:
    with pytest.raises(FlintError) as error:
        load(text, tmp_path)
    assert error.value.code in ("FL722", "FL720") and said in error.value.message
    path = str(tmp_path / "flint.toml")
    assert error.value.place == (path if line is None else f"{path}:{line}")


def test_lines_are_those_of_pyproject(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as error:
        load(PYPROJECT + "medel = 1\n", tmp_path, "pyproject.toml")
    assert error.value.place == f"{tmp_path / 'pyproject.toml'}:7"


def test_no_project_and_no_such_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    none = flint("run")
    assert none.exit_code == 2 and "there is no flint.toml here or in a folder" in none.stderr
    (tmp_path / "flint.toml").write_text(PROJECT)
    (tmp_path / "flint.lock").write_text(LOCK)
    for command in ("run", "verify"):
        other = flint(command, "trian")
        assert other.exit_code == 2
        assert "has no capture 'trian'; did you mean 'train'?" in other.stderr
    assert sorted(files(tmp_path)) == ["flint.lock", "flint.toml"]
