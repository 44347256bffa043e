"""Signals at any moment: what is written is old or new, nothing else stays, no child lives on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flint.io.locks import Endings
from flint.io.process_tree import below, kill_below
from flint.io.processes import Child, Patience, kill_group

#: Forks a writer again and again, ends it at a random moment, and prints what it leaves.
LOOP = """
import os, random, signal, sys, tempfile, time
from pathlib import Path
from flint.backends.chakra.writing.output import replaced_directory
from flint.cli.signals import take_signals
from flint.io.files import write_atomically
from flint.io.scratch import scratch_folder

def write(place):
    while True:
        write_atomically(place / "file", b"new" * 100)
        write_atomically(place / "a" / "b" / "file", b"new")
        os.remove(place / "a" / "b" / "file")
        os.rmdir(place / "a" / "b")
        os.rmdir(place / "a")
        with scratch_folder() as folder:
            (folder / "part").touch()
        with replaced_directory(place / "out") as working:
            (working / "part").touch()
            os.remove(working / "part")

place, number, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(number)
if number != signal.SIGKILL:
    signal.signal(number, signal.SIG_DFL)  # under nohup it is inherited as ignored
(place / "file").write_bytes(b"old")
tempfile.gettempdir()  # Python tries the folder with a file: not in a process that SIGKILL ends
for _ in range(count):
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        take_signals()
        write(place)
    time.sleep(chance.uniform(0.001, 0.02))
    os.kill(pid, number)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = {p.relative_to(place).as_posix() for p in place.rglob("*")} - {"file", "out", "tmp"}
    empty = {"a", "a/b", "a/b/file"}  # where it was ended between these lines
    if number == signal.SIGKILL:
        continue
    if left - empty or status not in (128 + number, -number) or (place / "file").read_bytes() == b"":
        print(sorted(left), status)
    for name in ("a/b/file",):
        (place / name).unlink(missing_ok=True)
write_atomically(place / "file", b"new")
with scratch_folder(), replaced_directory(place / "out"):
    pass
print(sorted(p.relative_to(place).as_posix() for p in place.rglob(".*")), os.listdir(place / "tmp"))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"])
def test_a_writer_that_is_ended_at_a_random_moment_leaves_nothing(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "tmp").mkdir()
    number = str(int(getattr(signal, name)))
    done = subprocess.run(
        [sys.executable, "-c", LOOP, str(tmp_path), number, "40"],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert done.stdout == "[] []\n"


def test_a_signal_waits_for_what_may_not_be_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    found = Endings()
    with found.whole():
        with found.whole():
            assert found.is_later(15)
        assert not raised
    assert raised == [15] and not found.is_later(15)


def test_what_was_begun_is_undone_from_the_last_to_the_first() -> None:
    found, done = Endings(), list[str]()

    def broken() -> None:
        done.append("broken")
        raise OSError("broken")

    with (
        pytest.raises(OSError, match="broken"),
        found.undoing(lambda: done.append("first")),
        found.undoing(broken),
        found.undoing(lambda: done.append("last")),
    ):
        found.end()
        assert done == ["last", "broken", "first"]
    assert done[3:] == ["last", "broken", "first"]
    found.end()
    assert len(done) == 6


FORK = """
import os, signal, sys
from flint.cli.signals import take_signals
from flint.io.locks import locked
from pathlib import Path
take_signals()
with locked(Path(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.path.exists(sys.argv[1]))
"""


def test_a_process_that_the_user_forks_undoes_nothing(tmp_path: Path) -> None:
    """Pools of the user's code end their workers with SIGTERM."""
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path / "lock")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "-15 True\n"


#: Starts a process in a session of its own, and one whose parent has ended; prints their numbers.
SETSID = """
import os, signal, subprocess, sys, time
from flint.io.processes import begin_child
begin_child()
sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
kept = subprocess.Popen(sleep, start_new_session=True, env={})
script = "import subprocess,sys; print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True).pid)"
orphan = subprocess.run([sys.executable, "-c", script, *sleep], capture_output=True, text=True, check=True)
print(kept.pid, orphan.stdout.strip(), flush=True)
time.sleep(100)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def require_ended(pids: list[int]) -> None:
    end = time.monotonic() + 20
    while any(map(is_alive, pids)):
        assert time.monotonic() < end, pids
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="parents are not known")
@pytest.mark.parametrize("how", ["limit", "end", "parent"])
def test_what_left_its_group_ends_with_the_child(how: str) -> None:
    starter = [sys.executable, "-c", SETSID]
    if how == "parent":
        script = (
            "import sys, time; from flint.io.processes import Child\n"
            f"Child({starter!r})\ntime.sleep(100)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
        ) as parent:
            assert parent.stdout is not None
            pids = list(map(int, parent.stdout.readline().split()))
            parent.kill()
            require_ended(pids)
        return
    child = Child(starter, stdout=subprocess.PIPE, text=True)
    try:
        assert child.process.stdout is not None
        pids = list(map(int, child.process.stdout.readline().split()))
        assert len(pids) == 2 and all(map(is_alive, pids))
        if how == "limit":
            with child.watched(Patience(total_seconds=0.2)) as watch:
                child.process.wait(timeout=30)
            assert watch.reason
            require_ended(pids)
    finally:
        child.end()
    require_ended(pids)


def test_only_what_is_below_is_killed() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
    with subprocess.Popen(sleep) as one, subprocess.Popen(sleep) as other:
        assert {one.pid, other.pid} <= set(below(os.getpid()))
        kill_group(one.pid)
        kill_below(one.pid)
        assert one.wait(timeout=20) == -signal.SIGKILL and other.poll() is None
        other.kill()
