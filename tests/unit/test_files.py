"""Directories that are whole or not there, whatever ends the process that writes them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flint.errors import FlintError
from flint.files import directory_atomically, write_atomically

SLOW_WRITER = """
import sys, time
from pathlib import Path
from flint.files import directory_atomically
with directory_atomically(Path(sys.argv[1])) as working:
    (working / "manifest.json").write_text("{}")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_directory_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with directory_atomically(target) as working:
        (working / "manifest.json").write_text("{}")
        assert not target.exists()
    assert os.listdir(target) == ["manifest.json"]
    assert os.listdir(tmp_path) == ["out"]


def test_what_raises_leaves_the_old_directory(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with directory_atomically(target) as working:
        (working / "manifest.json").write_text("old")
    with pytest.raises(KeyboardInterrupt), directory_atomically(target) as working:
        (working / "manifest.json").write_text("new")
        raise KeyboardInterrupt
    assert (target / "manifest.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_someone_elses_directory_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(FlintError, match="not written by Flint"), directory_atomically(tmp_path):
        raise AssertionError("not reached")
    assert (tmp_path / "mine").read_text() == "keep"


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "out"
    command = [sys.executable, "-c", SLOW_WRITER, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with directory_atomically(target) as working:  # the other one lives: hands off
            (working / "manifest.json").write_text("{}")
        assert len(os.listdir(tmp_path)) == 2
        child.send_signal(signal.SIGKILL)
    assert len(os.listdir(tmp_path)) == 2
    with directory_atomically(target) as working:
        (working / "manifest.json").write_text("{}")
    assert os.listdir(tmp_path) == ["out"]


def test_sigterm_on_the_command_line_leaves_nothing(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "import time, flint\n"
        "@flint.entry(axes=('data',))\n"
        "def step(mesh):\n"
        "    print('started', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "flint", "capture", str(model), "--mesh", "8"]
    with subprocess.Popen(
        [*command, "-o", str(tmp_path / "out")], stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stderr is not None
        while "started" not in child.stderr.readline():
            time.sleep(0.01)
        child.terminate()
        assert child.wait(timeout=30) == 143
    assert set(os.listdir(tmp_path)) - {"__pycache__"} == {"model.py"}


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FlintError, match="FL502"):
        write_atomically(tmp_path / "file" / "below", b"data")
    assert os.listdir(tmp_path) == ["file"]
