"""Files from before a capture stay as they are, whatever the program does to them."""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import io
import os
import shutil
import sqlite3
import sys
import tarfile
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from flint.errors import FlintError
from flint.io import kept_files
from flint.io.kept_files import KeptFiles
from tests.long import long_but

OLD = "of a real run"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program runs, with files of an hour ago."""
    for name in ("log.txt", "out/step-1/state.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(OLD)
        os.utime(tmp_path / name, (time.time() - 3600,) * 2)
    monkeypatch.chdir(tmp_path)
    os.symlink("out/step-1", "latest")
    os.utime("latest", (time.time() - 3600,) * 2, follow_symlinks=False)
    connection = sqlite3.connect("runs.db")
    connection.execute("create table runs as select 1 as id")
    connection.commit()
    connection.close()
    os.utime("runs.db", (time.time() - 3600,) * 2)
    return tmp_path


def unharmed(folder: Path) -> bool:
    """Whether all is as the last run left it."""
    with contextlib.closing(sqlite3.connect(folder / "runs.db")) as connection:
        rows = connection.execute("select * from runs").fetchall()
    texts = {(folder / name).read_text() for name in ("log.txt", "out/step-1/state.json")}
    return texts == {OLD} and rows == [(1,)] and os.readlink(folder / "latest") == "out/step-1"


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


def change_by_descriptor() -> None:
    handle = os.open("log.txt", os.O_WRONLY | os.O_TRUNC | os.O_CREAT)
    os.write(handle, b"new")
    os.close(handle)
    assert Path("log.txt").read_text() == "new" and os.path.getsize("log.txt") == 3


def link_to_another() -> None:
    os.unlink("latest")
    os.symlink("out", "latest")


def replace_link() -> None:
    os.symlink("out", "latest.tmp")
    os.replace("latest.tmp", "latest")


def delete_from_database() -> None:
    connection = sqlite3.connect("runs.db")
    connection.execute("delete from runs")
    connection.commit()
    connection.close()


def delete_and_make_again() -> None:
    shutil.rmtree("out")
    os.makedirs("out")
    os.remove("log.txt")
    with open("log.txt", "x") as file:
        file.write("new")
    assert Path("log.txt").read_text() == "new"


def touch_and_overwrite() -> None:
    Path("log.txt").touch()
    overwrite()


ACTIONS: dict[Callable[[], object], str] = {
    append: "log.txt was not changed",
    overwrite: "log.txt was not changed",
    change_in_place: "log.txt was not changed",
    replace: "log.txt was not changed",
    overwrite_and_delete: "log.txt was not deleted",
    overwrite_and_replace: "log.txt was not changed",
    change_by_descriptor: "log.txt was not changed",
    link_to_another: "latest was not deleted",
    replace_link: "latest was not changed",
    delete_from_database: "runs.db was not changed",
    delete_and_make_again: "out was not deleted",
    touch_and_overwrite: "log.txt was not changed",
    lambda: tarfile.open("log.txt", "w").close(): "log.txt was not changed",
    lambda: os.truncate("log.txt", 0): "log.txt was not changed",
    lambda: os.remove("log.txt"): "log.txt was not deleted",
    lambda: shutil.copyfile("out/step-1/state.json", "log.txt"): "log.txt was not changed",
    lambda: shutil.move("log.txt", "log.1"): "log.txt was not renamed",
    lambda: os.rename("out", "other"): "out was not renamed",
    lambda: shutil.rmtree("out"): "out was not deleted",
    lambda: shutil.rmtree(Path("out") / "step-1"): "step-1 was not deleted",
}


@pytest.mark.parametrize("action", long_but(list(ACTIONS)[:12:2], ACTIONS))
def test_an_older_file_stays_and_is_named(folder: Path, action: Callable[[], object]) -> None:
    said: list[str] = []
    before = vars(builtins) | vars(io) | vars(os) | vars(shutil)
    with KeptFiles(said.append, time.time()).guarded():
        action()
    assert f"{ACTIONS[action]}, because it is older than this capture" in said
    assert unharmed(folder)
    assert vars(builtins) | vars(io) | vars(os) | vars(shutil) == before


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


def test_copies_of_older_files_are_the_programs_own(folder: Path) -> None:
    """shutil gives them the time of what they are copies of."""
    os.chmod("log.txt", 0o640)
    os.utime("log.txt", (time.time() - 3600,) * 2)
    said: list[str] = []
    with KeptFiles(said.append, time.time()).guarded():
        shutil.copytree("out", "code", symlinks=True)
        shutil.copy2("latest", "code/latest", follow_symlinks=False)
        shutil.copy2("log.txt", "code/log.txt")
        shutil.move("code", "snapshot")
        Path("snapshot/log.txt").write_text("new")
        os.link("log.txt", "name.txt")
        Path("name.txt").write_text("new")
    assert said == ["name.txt was not changed, because it is older than this capture"]
    assert unharmed(folder) and os.readlink("snapshot/latest") == "out/step-1"
    assert (folder / "snapshot/log.txt").read_text() == "new"
    assert (folder / "snapshot/log.txt").stat().st_mode & 0o777 == 0o640
    assert (folder / "snapshot/step-1/state.json").read_text() == OLD


@pytest.mark.long
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


def test_a_change_that_nothing_stands_for_is_refused(folder: Path) -> None:
    said: list[str] = []
    handle = os.open("out/step-1", os.O_RDONLY)
    with KeptFiles(said.append, time.time()).guarded():
        for change in (
            lambda: io.FileIO("log.txt", "w"),
            lambda: sqlite3.Connection("runs.db"),
            lambda: os.unlink("state.json", dir_fd=handle),
            lambda: os.rename("state.json", "lost", src_dir_fd=handle),
        ):
            with pytest.raises(FlintError, match=r"is older than this capture.*cannot be given"):
                change()
        with open("log.txt") as file, io.FileIO("made", "w"):
            assert file.read() == OLD
    os.close(handle)
    assert unharmed(folder) and len(said) == 4 and (folder / "made").exists()


def test_modules_that_were_looked_through_get_their_stand_ins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, original = types.ModuleType("theirs"), builtins.open
    monkeypatch.setitem(sys.modules, "theirs", module)

    def run() -> None:
        module.before = original  # type: ignore[attr-defined]
        kept_files.look_through_modules()
        for bound in (["before"], ["before", "since"]):
            setattr(module, bound[-1], original)
            with KeptFiles(lambda said: None, time.time()).guarded():
                assert {getattr(module, name) for name in bound} == {builtins.open} != {original}
            assert {getattr(module, name) for name in bound} == {original}

    contextvars.copy_context().run(run)


def test_a_file_that_is_not_written_is_found(folder: Path) -> None:
    kept = KeptFiles(lambda said: None, time.time() - 60)
    before = sorted(os.listdir())
    with kept.guarded():
        os.mkdir("run")
        kept.unwritten("run/model.pt", b"123")
        kept.unwritten("sharded", None)
        assert os.path.exists("run/model.pt") and os.path.getsize("run/model.pt") == 3
        assert os.listdir("run") == ["model.pt"] == [p.name for p in Path("run").glob("*.pt")]
        assert os.listdir("sharded") == [".metadata"] and "sharded" in os.listdir()
        os.rename("run", "step")
        assert Path("step/model.pt").read_bytes() == b"123" and not os.path.exists("run/model.pt")
        os.replace("step/model.pt", "best.pt")
        assert os.listdir("step") == [] and os.path.isfile("best.pt")
        os.remove("best.pt")
        shutil.rmtree("sharded")
        assert not os.path.exists("best.pt") and not os.path.exists("sharded")
    assert sorted(os.listdir()) == sorted([*before, "step"])
