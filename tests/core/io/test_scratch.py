"""Folders in TMPDIR go with their process, or with the next one."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flint.io.scratch import remove_leftovers, scratch_folder

HOLDER = """
import sys, time
from flint.io.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "caches").mkdir()
    (folder / "caches" / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_at_the_end(temporary: Path) -> None:
    with pytest.raises(KeyboardInterrupt), scratch_folder() as one, scratch_folder() as other:
        (one / "file").write_text("x")
        remove_leftovers()
        assert set(os.listdir(temporary)) == {one.name, other.name}
        raise KeyboardInterrupt
    assert os.listdir(temporary) == []


def test_what_a_killed_process_left_the_next_one_removes(temporary: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as holder:
        assert holder.stdout is not None
        left = Path(holder.stdout.readline().strip())
        with scratch_folder():
            assert (left / "caches" / "file").exists()  # its process lives
        holder.send_signal(signal.SIGKILL)
    assert left.exists()
    with scratch_folder() as folder:
        assert os.listdir(temporary) == [folder.name]


def test_folders_of_others_stay(temporary: Path) -> None:
    (temporary / "flint-run-20261122").mkdir()
    (temporary / "flint-run-20261122" / "results.csv").write_text("mine")
    (temporary / "flint-run-aaaaaaaa").write_text("a file")
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / ".flint-scratch").touch()
    (temporary / "flint-run-bbbbbbbb").symlink_to("elsewhere")
    (temporary / "flint-run-of-mine").mkdir()
    before = sorted(map(str, temporary.rglob("*")))
    remove_leftovers()
    assert sorted(map(str, temporary.rglob("*"))) == before


def test_a_folder_that_is_taken_for_a_leftover_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, []

    def made_and_once_removed(prefix: str) -> str:
        folder = make(prefix=prefix)
        made.append(folder)
        if len(made) == 1:
            remove_leftovers()  # what another process does between making and locking
            assert not os.path.exists(folder)
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_once_removed)
    with scratch_folder() as folder:
        assert [str(folder)] == made[1:]
