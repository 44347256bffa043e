"""Files from before a capture stay as they are, whatever the program does to them."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flint.errors import FlintError
from flint.io import kept_files
from flint.io.kept_files import KeptFiles

OLD = "of a real run"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program runs, with files of an hour ago."""
    for name in ("log.txt", "out/step-1/state.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(OLD)
        os.utime(tmp_path / name, (time.time() - 3600,) * 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def append() -> None:
    with open("log.txt", "a") as file:
        file.write(" more")
    assert Path("log.txt").read_text() == f"{OLD} more"


def overwrite() -> None:
    Path("log.txt").write_text("new")
    assert Path("log.txt").read_text() == "new"
    with io.open("log.txt") as file:  # noqa: UP020 - another name of it
        assert file.read() == "new"


def change_in_place() -> None:
    with open("log.txt", "r+") as file:
        assert file.read() == OLD
        file.seek(0)
        file.write("xx")
    assert Path("log.txt").read_text() == f"xx{OLD[2:]}"


def replace() -> None:
    Path("log.tmp").write_text("new")
    os.replace("log.tmp", "log.txt")
    assert Path("log.txt").read_text() == "new" and not Path("log.tmp").exists()


def overwrite_and_delete() -> None:
    overwrite()
    Path("log.txt").unlink()


def overwrite_and_replace() -> None:
    overwrite()
    replace()


ACTIONS: dict[Callable[[], object], str] = {
    append: "log.txt was not changed",
    overwrite: "log.txt was not changed",
    change_in_place: "log.txt was not changed",
    replace: "log.txt was not changed",
    overwrite_and_delete: "log.txt was not deleted",
    overwrite_and_replace: "log.txt was not changed",
    lambda: os.remove("log.txt"): "log.txt was not deleted",
    lambda: shutil.copyfile("out/step-1/state.json", "log.txt"): "log.txt was not changed",
    lambda: shutil.move("log.txt", "log.1"): "log.txt was not renamed",
    lambda: os.rename("out", "other"): "out was not renamed",
    lambda: shutil.rmtree("out"): "out was not deleted",
    lambda: shutil.rmtree(Path("out") / "step-1"): "step-1 was not deleted",
}


@pytest.mark.parametrize("action", ACTIONS)
def test_an_older_file_stays_and_is_named(folder: Path, action: Callable[[], object]) -> None:
    said: list[str] = []
    before = builtins.open, io.open, os.remove, os.unlink, os.rename, os.replace, shutil.rmtree
    with KeptFiles(said.append, time.time()).guarded():
        action()
    assert f"{ACTIONS[action]}, because it is older than this capture" in said
    assert (folder / "log.txt").read_text() == OLD
    assert (folder / "out" / "step-1" / "state.json").read_text() == OLD
    after = builtins.open, io.open, os.remove, os.unlink, os.rename, os.replace, shutil.rmtree
    assert after == before


def test_a_file_from_before_the_clock_was_set_back_stays(folder: Path) -> None:
    said: list[str] = []
    os.utime("log.txt", (time.time() + 1e5,) * 2)
    with KeptFiles(said.append, time.time()).guarded():
        overwrite()
    assert said and (folder / "log.txt").read_text() == OLD


def test_what_the_program_makes_is_its_own(folder: Path) -> None:
    said: list[str] = []
    with KeptFiles(said.append, time.time() - 60).guarded():
        (folder / "run").mkdir()
        Path("run/a").write_text("1")
        Path("run/a").write_text("2")
        os.rename("run/a", "run/b")
        Path("kept").write_text("3")
        os.replace("kept", "made")
        shutil.rmtree("run")
    assert not said and not (folder / "run").exists()
    assert (folder / "made").read_text() == "3"


def test_a_file_that_is_too_large_to_copy_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "_COPIED_BYTES", 4)
    with (
        KeptFiles(lambda said: None, time.time()).guarded(),
        pytest.raises(FlintError, match=r"log.txt is older .* too large to copy \(13 bytes\)"),
    ):
        open("log.txt", "r+")  # noqa: SIM115
    assert (folder / "log.txt").read_text() == OLD
