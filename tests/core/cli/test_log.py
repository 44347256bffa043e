"""The log on stderr, its levels, what it costs when nobody asks, and the stage shown on a terminal."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flint.cli import app
from flint.ir.workload import Workload
from flint.log import STAGES, stage
from flint.tracing import Trace

FLINT = Path(__file__).parents[2] / "compat" / "data" / "release-0.1" / "jax.flint"
LINE = re.compile(r"(debug|info ) +\d+\.\d\d s  [a-z_.]+: .+")


def estimated(*options: str, level: str = "") -> tuple[list[str], str]:
    """Lines on stderr, and stdout, of an estimate."""
    command = ["estimate", str(FLINT), "-c", "h100-dgx", *options]
    found = CliRunner().invoke(app, command, env={"FLINT_LOG": level})
    assert found.exit_code == 0, found.output
    return found.stderr.splitlines(), found.stdout


def test_levels_are_on_stderr_and_change_nothing_on_stdout() -> None:
    nothing, result = estimated("--json")
    assert nothing == []
    counts = []
    for options, level in ((("-v",), ""), ((), "INFO"), (("-vv",), ""), (("-v",), "debug")):
        lines, same = estimated("--json", *options, level=level)
        assert same == result
        assert all(map(LINE.fullmatch, lines)), lines
        counts.append(len(lines))
    assert 0 < counts[0] == counts[1] < counts[2] == counts[3]
    assert estimated("--json", level="off")[0] == estimated("--json", level="warning")[0] == []


def test_it_says_what_was_chosen_and_how_long_stages_took() -> None:
    text = "\n".join(estimated("-vv")[0])
    assert "on h100-dgx: kernels as xla-gpu launches them (stack xla)" in text
    assert re.search(r"jax.flint: \d+ bytes, 1 programs of \d+ rows", text)
    assert re.search(r"stage: simulate took 0\.\d{3} s", text)
    assert re.search(r"fuse-chains: \d+ rows became \d+", text)


def test_a_level_that_there_is_not_is_an_error() -> None:
    found = CliRunner().invoke(app, ["clusters", "list"], env={"FLINT_LOG": "debig"})
    assert (found.exit_code, found.stdout) == (2, "")
    assert "error[FL217]" in found.stderr and "did you mean 'debug'?" in found.stderr


def test_nothing_is_left_behind_and_nothing_is_made_when_it_is_off() -> None:
    logger = logging.getLogger("flint")
    before = logger.level, list(logger.handlers), logger.propagate
    estimated("-vv")
    assert (logger.level, logger.handlers, logger.propagate) == before
    assert not STAGES.isEnabledFor(logging.INFO)


def test_in_python_it_is_the_standard_log(caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace(Workload.load(FLINT))
    with caplog.at_level("INFO", "flint"):
        trace.estimate("h100-dgx")
    assert any(r.name == "flint.stage" and "simulate took" in r.message for r in caplog.records)


def test_a_stage_that_fails_ends_and_takes_no_time() -> None:
    seconds: dict[str, float] = {}
    with pytest.raises(ValueError), stage("broken", seconds):
        raise ValueError
    with stage("whole", seconds):
        pass
    assert list(seconds) == ["whole_seconds"]


SLOW = """
import sys, time
from flint.cli.progress import stages_shown
from flint.log import stage
with stages_shown(quiet={quiet}, after_seconds={after}):
    with stage("capture"), stage("trace"):
        time.sleep(0.6)
"""


def drawn(quiet: bool, after: float) -> str:
    """What a process writes to its terminal."""
    ours, theirs = pty.openpty()
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "80"}
    code = SLOW.format(quiet=quiet, after=after)
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment)
    os.close(theirs)
    found = b""
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:  # Linux says so when the other end is closed
            break
        if not more:
            break
        found += more
    os.close(ours)
    assert process.wait() == 0
    return found.decode()


def test_the_stage_is_shown_on_a_terminal_after_a_while() -> None:
    text = drawn(quiet=False, after=0.1)
    assert "capture: trace" in text
    assert text.endswith("\x1b[2K") and "\x1b[?25l" not in text  # it goes; the cursor stays


def test_nothing_is_drawn_before_that_or_for_the_quiet() -> None:
    assert drawn(quiet=False, after=30) == drawn(quiet=True, after=0) == ""


def test_a_capture_says_its_stages(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="captures a JAX program")
    (tmp_path / "model.py").write_text(
        "import jax\ndef f(x): return x @ x\n"
        "def args(mesh): return (jax.ShapeDtypeStruct((8, 8), 'float32'),)\n"
    )
    model = str(tmp_path / "model.py")
    command = ["capture", f"{model}:f", "--args", f"{model}:args", "-m", "2x2", "-v"]
    text = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "trace")]).stderr
    stages = re.findall(r"stage: (\w+) took", text)
    assert stages == ["trace", "lower", "capture", "partition", "write"]
    assert re.search(r"worker: partition answered after [\d.]+ s: \d+ bytes to it", text)
