"""How a command ends, whatever the user's code does and whenever Ctrl-C comes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("jax")
from flint.cli import app

ROOT = Path(__file__).resolve().parents[3]
MODEL = """
import os, subprocess, sys
import jax, jax.numpy as jnp, flint
from jax.sharding import PartitionSpec as P

class Stop(BaseException): pass

def stop():
    raise Stop("enough")

{imported}
def fn(x):
    {traced}
    return (x @ x.T).sum()

@flint.entry(axes=("data", "model"))
def step(mesh):
    {entered}
    return flint.Step(fn, (jax.ShapeDtypeStruct((64, 64), jnp.float32),), in_shardings=(P("data"),))
"""
ENDS = {
    "sys.exit(0)": "SystemExit: 0",
    "sys.exit()": "SystemExit",
    "os._exit(0)": "SystemExit: os._exit(0)",
    "os.execv('/bin/true', ['true'])": "SystemExit: os.execv('/bin/true', ['true'])",
    "stop()": "Stop: enough",
}


def _model(folder, **code):
    path = folder / "model.py"
    path.write_text(MODEL.format(**{"imported": "", "traced": "pass", "entered": "pass"} | code))
    return path


def _command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "flint", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        **options,
    )


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("where", ["imported", "entered", "traced"])
def test_user_code_that_ends_the_process_is_an_error(tmp_path, where, end):
    path = _model(tmp_path, **{where: end})
    real = os._exit, os.execv
    done = CliRunner().invoke(app, ["capture", str(path), "--mesh", "4x2", "--json"])
    assert (done.exit_code, done.stdout) == (2, "")
    head, place, *_ = done.stderr.splitlines()
    assert head.startswith("error[FL203]: ") and ENDS[end] in head
    assert place.startswith("  --> model.py:")
    assert (os._exit, os.execv) == real


def test_compiled_code_that_calls_exit_is_an_error(tmp_path):
    path = _model(tmp_path, imported="import ctypes; ctypes.CDLL(None).exit(0)")
    process = _command("capture", path, "--mesh", "4x2")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert "error[FL203]: compiled code of the model called exit()" in err


def test_stdout_is_one_document_whatever_the_user_code_prints(tmp_path):
    noise = (
        "os.write(1, b'one\\n'); subprocess.run(['echo', 'two']); print('three')\n"
        "import atexit; atexit.register(print, 'five')\n"
    )
    path = _model(tmp_path, imported=noise, traced="os.system('echo four')")
    process = _command("capture", path, "--mesh", "4x2", "--json")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert json.loads(out)["schema"] == "flint.capture/1"
    assert set(err.split()) >= {"one", "two", "three", "four", "five"}


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_process_that_the_user_code_forks_may_end(tmp_path):
    fork = "pid = os.fork()\nif pid == 0: os._exit(7)\nassert os.waitpid(pid, 0)[1] == 7 << 8"
    path = _model(tmp_path, imported=fork)
    done = CliRunner().invoke(app, ["capture", str(path), "--mesh", "4x2"])
    assert done.exit_code == 0, done.stderr


def _group_is_gone(group):
    """Whether no process of a session is left, those of other groups in it included."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == group and fields[0] != "Z":
            return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_is_one_line(tmp_path, number):
    """From the imports of compiled code to the end; all started at once, stopped one after another."""
    path = _model(tmp_path)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    name = "interrupted" if number == signal.SIGINT else "terminated"
    # What runs in the background of a shell has SIGINT ignored, and Python leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["TMPDIR"], kept = str(temporary), os.environ.get("TMPDIR")
    try:
        for delay in (0.0, 0.15, 0.3, 0.5, 0.8, 1.2):
            process = _command("capture", path, "--mesh", "4x2", "-v", start_new_session=True)
            _wait_until_taken(process)
            time.sleep(delay)
            os.killpg(process.pid, number)
            out, err = process.communicate(timeout=60)
            # The log, and what was warned before the signal came, are not what the end says.
            said = [
                line for line in err.splitlines() if not line.startswith(("info ", "warning: "))
            ]
            ended = (process.returncode, said) == (128 + number, [name]) and not out
            assert ended or (process.returncode == 0 and out), (delay, process.returncode, err)
            deadline = time.monotonic() + 10
            while not _group_is_gone(process.pid):
                assert time.monotonic() < deadline, "a child is left"
                time.sleep(0.05)
    finally:
        signal.signal(signal.SIGINT, before)
        os.environ.pop("TMPDIR") if kept is None else os.environ.update(TMPDIR=kept)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("imported", ["flint.io.processes", "flint.io.process_tree", "ctypes"])
def test_a_signal_within_an_import_that_the_handler_uses_is_one_line(tmp_path, imported):
    """The module is in `sys.modules` then, and half of it is missing."""
    hook = (
        "import signal, sys\n"
        "class Hook:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {imported!r} and signal.getsignal(15) is not signal.SIG_DFL:\n"
        "            sys.meta_path.remove(self); print('in it', file=sys.stderr)\n"
        "            signal.raise_signal(signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Hook())\n"
        "from flint.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", hook, "capture", str(_model(tmp_path)), "--mesh", "4x2"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout) == (143, "in it\nterminated\n", "")


def _wait_until_taken(process):
    """Until the process answers SIGINT itself: before, Python starts, and does as Python does."""
    caught, deadline = 0, time.monotonic() + 60
    wanted = 1 << (signal.SIGTERM - 1)  # SIGINT is caught by Python from its start
    while not caught & wanted:
        assert time.monotonic() < deadline and process.poll() is None
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(next(s for s in status.splitlines() if s.startswith("SigCgt")).split()[1], 16)
        time.sleep(0.002)
