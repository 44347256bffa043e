"""The script of `flint calibrate --collect` runs without Flint, and its table is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flint.cli import app
from flint.tools.measure.calibration.calibrate import calibrate
from flint.tools.measure.calibration.collect import script_of


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_script_runs_here_and_its_table_is_read(tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework)
    path, table = tmp_path / "collect.py", tmp_path / "mine.csv"
    done = CliRunner().invoke(app, ["calibrate", "--collect", str(path), "--framework", framework])
    assert done.exit_code == 0 and path.read_text("utf-8") == script_of(framework)
    assert "import flint" not in path.read_text("utf-8")
    command = [sys.executable, str(path), "-o", str(table), "--device", "cpu", "--quick"]
    subprocess.run([*command, "--seconds", "0.01", "--dtypes", "f32"], check=True, cwd=tmp_path)
    found = calibrate(table, base="h100-dgx", check=True)
    assert found.sources[0].kernels == 9 and found.sources[0].left_out == {}
    assert {f.name for f in found.kernels} == {
        *("products", "attention", "softmax", "norms", "element-wise", "copies", "reductions")
    }
    again = CliRunner().invoke(app, ["calibrate", "--collect", str(path)])
    assert again.exit_code == 2 and "FL508" in again.output
