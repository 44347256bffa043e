"""Forks that tests get for child processes are to programs what processes started anew are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from tests import warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")

#: A model that tells where it is before it waits, or ends as it is told.
MODEL = """
import os, sys, flint
print(os.getcwd(), sys.argv[1:], os.environ.get("FLINT_WORD"), os.getpgid(0) == os.getpid(),
      os.getppid(), sys.path[0], file=sys.stderr, flush=True)
{end}
"""
STARTED = {"cold": warm._COLD, "warm": warm.Popen}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "flint", *map(str, arguments)]


def was_forked(process: subprocess.Popen[Any]) -> bool:
    """Whether a process that lives is a fork of a server: its command line is the server's."""
    return b"warm.py" in Path(f"/proc/{process.pid}/cmdline").read_bytes()


def lives(pid: str) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def started(kind: str, folder: Path, end: str, **options: Any) -> subprocess.Popen[str]:
    (folder / "model.py").write_text(MODEL.format(end=end))
    environment = {**os.environ, "FLINT_WORD": "said", "PYTHONPATH": str(warm.ROOT)}
    made: subprocess.Popen[str] = STARTED[kind](
        command("capture", "model.py", "--mesh", "4x2"), cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip
    return made


@pytest.mark.parametrize("kind", STARTED)
def test_what_a_program_sees_and_how_it_ends(kind: str, tmp_path: Path) -> None:
    process = started(kind, tmp_path, "sys.exit(7)", process_group=0)
    out, err = process.communicate(timeout=120)
    told, *said = err.splitlines()
    arguments = ["capture", "model.py", "--mesh", "4x2"]
    assert told == f"{tmp_path} {arguments} said True {os.getpid()} {tmp_path}"
    assert (process.returncode, out) == (2, "")
    assert said[0].startswith("error[FL203]") and "SystemExit: 7" in said[0]


@pytest.mark.parametrize("kind", STARTED)
def test_a_signal_ends_it_as_it_would(kind: str, tmp_path: Path) -> None:
    with started(kind, tmp_path, "import time; time.sleep(100)", stdin=subprocess.DEVNULL) as one:
        assert one.stderr is not None
        assert f"said False {os.getpid()}" in one.stderr.readline()
        assert was_forked(one) is (kind == "warm")
        one.kill()
        assert one.wait(timeout=30) == -signal.SIGKILL


def test_children_of_commands_are_forks_too_and_end_with_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time, torch\nopen('pids', 'w').write(f'{os.getpid()} {os.getppid()}')\n"
        "os.rename('pids', 'told')\ntime.sleep(100)\n"
    )
    with warm.Popen(
        command("capture", "train.py", "--mesh", "2", "--world"), cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        while not (tmp_path / "told").exists():
            assert process.poll() is None
            time.sleep(0.02)
        rank, recorder = (tmp_path / "told").read_text().split()
        status = Path(f"/proc/{recorder}/status").read_text()
        assert f"PPid:\t{process.pid}\n" in status
        assert b"warm.py" in Path(f"/proc/{recorder}/cmdline").read_bytes()
        process.terminate()
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 30
    while any(lives(pid) for pid in (rank, recorder)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def tells_and_waits(out: Any, back: Any, given: int) -> None:
    """Say what a process of multiprocessing is, and end as it is told."""
    out.put((os.getpid(), os.getppid(), os.environ.get("FLINT_WORD"), given))
    sys.exit(back.get())


def test_what_multiprocessing_spawns_is_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLINT_WORD", "said")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=tells_and_waits, args=(theirs, ours, 7))
    process.start()
    assert theirs.get() == (process.pid, os.getpid(), "said", 7)
    assert b"warm.py" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    ours.put(5)
    process.join(timeout=30)
    assert process.exitcode == 5


@pytest.mark.parametrize(
    ("change", "forks"),
    [
        ({}, True),
        ({"env": {"NO_COLOR": "1"}}, True),
        ({"env": {"JAX_PLATFORMS": "cpu"}}, False),
        ({"env": {"XLA_FLAGS": "--xla_dump_to=x"}}, False),
        ({"env": {"PYTHONHASHSEED": "3"}}, False),
        ({"file": "numpy.py"}, False),
        ({"file": "jax"}, False),
        ({"file": "mine.py"}, True),
        ({"start_new_session": True}, False),
        ({"preexec_fn": os.getpid}, False),
    ],
)
@pytest.mark.filterwarnings("ignore")  # JAX warns of preexec_fn where it has run before
def test_what_a_fork_cannot_show_is_started_anew(
    change: dict[str, Any], forks: bool, tmp_path: Path
) -> None:
    options = {k: v for k, v in change.items() if k not in ("env", "file")}
    if "file" in change:
        (tmp_path / change["file"]).touch()
    process = warm.Popen(
        command("clusters", "list"), cwd=tmp_path, env={**os.environ, **change.get("env", {})},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options,
    )  # fmt: skip
    os.kill(process.pid, signal.SIGSTOP)
    assert was_forked(process) is forks
    process.kill()
    process.communicate()
