"""Files that are whole or not there, and a command line that leaves nothing when it is ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flint.errors import FlintError
from flint.io.files import write_atomically

ENDED = """
import os, signal, sys
from pathlib import Path
from flint.io.files import write_atomically
def end(event, args):
    if event == "os.rename":
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(end)
write_atomically(Path(sys.argv[1]), b"new")
"""


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
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for place in (
        tmp_path / "file" / "below",
        tmp_path / "folder",
        tmp_path / "pipe",  # nobody reads it
        tmp_path / ("x" * 300),
        Path("/dev/full"),
    ):
        with pytest.raises(FlintError, match="FL502"):
            write_atomically(place, b"data")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "pipe"]


def test_closed_streams_are_no_place_for_results(tmp_path: Path) -> None:
    """A file of ours would get the number of a closed stream, and what is printed."""
    for closed in ("<&-", ">&-", "<&- >&- 2>&-"):
        command = f"'{sys.executable}' -m flint schedules 1f1b --svg drawing.svg {closed}"
        assert subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False).returncode == 0
        assert (tmp_path / "drawing.svg").read_text().endswith("</svg>\n")


def test_a_link_stays_and_a_mode_too(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    (tmp_path / "later").symlink_to("absent")
    write_atomically(tmp_path / "later", b"new")
    assert (tmp_path / "absent").read_bytes() == b"new"


def test_what_is_no_file_is_written_through(tmp_path: Path) -> None:
    """A pipe keeps being one, and what stdout is appended to keeps its beginning."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "pipe", b"data")
    assert os.read(reader, 9) == b"data" and (tmp_path / "pipe").is_fifo()
    os.close(reader)
    (tmp_path / "log").write_text("first ")
    script = "from pathlib import Path; from flint.io.files import write_atomically as w; "
    command = [sys.executable, "-c", script + "w(Path('/dev/stdout'), b'second')"]
    with (tmp_path / "log").open("ab") as log:
        subprocess.run(command, stdout=log, check=True)
    assert (tmp_path / "log").read_text() == "first second"
    write_atomically(Path("/dev/null"), b"data")
    assert Path("/dev/null").is_char_device()


def test_what_a_killed_writer_left_the_next_one_removes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    command = [sys.executable, "-c", ENDED, str(tmp_path / "file")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "file").read_text() == "old" and len(os.listdir(tmp_path)) == 3
    write_atomically(tmp_path / "file", b"newest")
    assert (tmp_path / "file").read_text() == "newest" and os.listdir(tmp_path) == ["file"]
