"""A package of somebody else adds a chip family, a stand-in and a command: examples/plugin, as a wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flint.backends.chakra.reading.captured import load_workload

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "examples" / "plugin"
SCRIPT = """
import torch
import torch.distributed as dist
from fused_norm import rms_norm

dist.init_process_group("nccl")
model = torch.nn.Linear(64, 64, bias=False, device="cuda")
weight = torch.ones(64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.ones(8, 64, device="cuda")
    model(rms_norm(x, weight)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
pytestmark = [pytest.mark.long, pytest.mark.cold]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages with the plugin in it."""
    work = tmp_path_factory.mktemp("plugin")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    offline = ["--no-deps", "--no-build-isolation"]
    shutil.copytree(PLUGIN, work / "source")  # builds leave files beside their sources
    subprocess.run([*pip, "wheel", *offline, "-w", str(work), str(work / "source")], check=True)
    (wheel,) = work.glob("*.whl")
    site = work / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    return site


def flint(site: Path, *arguments: str, cwd: Path) -> str:
    """What a command prints, with the plugin installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
    command = [sys.executable, "-P", "-m", "flint", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def test_a_chip_family_and_a_command(site: Path, tmp_path: Path) -> None:
    model = str(ROOT / "examples" / "llama_jax.py")
    flint(site, "capture", model, "--mesh", "4x2", "--set", "num_layers=2", "-o", "t", cwd=tmp_path)
    assert "Count the operations" in flint(site, "--help", cwd=tmp_path)
    assert "collective" in flint(site, "kinds", "t", cwd=tmp_path)

    text = (PLUGIN / "chip.toml").read_text("utf-8")
    times = []
    for start_ns in (500, 100_500):
        (tmp_path / "chip.toml").write_text(text.replace("value = 500,", f"value = {start_ns},"))
        said = flint(site, "estimate", "t", "-c", "chip.toml", "--json", cwd=tmp_path)
        times.append(json.loads(said)["step_time_ns"])
        assert any("a roofline after a constant start" in n for n in json.loads(said)["notes"])
    assert times[1] > times[0] + 100_000


def test_a_stand_in(site: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    script = ("capture", "train.py", "--mesh", "2", "--world", "-o", "t", "--json")
    said = json.loads(flint(site, *script, cwd=tmp_path))
    assert any("fused_norm 1.0" in w for w in said["warnings"])
    program = load_workload(tmp_path / "t").program_of(0)
    (row,) = [r for r in map(program.row, range(len(program))) if "rms_norm" in r.opcode]
    assert row.flops == 4 * 8 * 64
