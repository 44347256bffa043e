"""torchtitan's own trainer is captured by the recipe of the documentation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
if importlib.util.find_spec("torchtitan") is None:
    pytest.skip("torchtitan is not installed", allow_module_level=True)
VERSION = importlib.metadata.version("torchtitan")
if not VERSION.startswith("0.2."):
    pytest.skip(f"the recipe is for torchtitan 0.2, not {VERSION}", allow_module_level=True)

ROOT = Path(__file__).parents[2]
LAYERS = 6  # of torchtitan's debugmodel


def recipe() -> str:
    """The script in docs/torch-distributed.md."""
    text = (ROOT / "docs" / "torch-distributed.md").read_text()
    section = text[text.index("## torchtitan") :]
    return section.split("```python\n")[1].split("```")[0]


def flint(*arguments: str | Path, folder: Path) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "flint", *map(str, arguments)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def capture(folder: Path, mesh: str, *options: str) -> dict[str, Any]:
    (folder / "titan.py").write_text(recipe())
    script = ["--model.name", "llama3", "--model.flavor", "debugmodel", *options]
    small = ["--training.seq_len", "256", "--training.local_batch_size", "1"]
    command = ["capture", "titan.py", "--mesh", mesh, "--world", "-o", "trace", "--json"]
    captured: dict[str, Any] = json.loads(flint(*command, "--", *script, *small, folder=folder))
    assert "error" not in flint("check", "trace", folder=folder)
    return captured


@pytest.mark.slow
def test_llama_with_fsdp_and_tensor_parallelism(tmp_path: Path) -> None:
    captured = capture(tmp_path, "4x2", "--parallelism.tensor_parallel_degree", "2")
    counts = communication(captured)
    assert counts["reduce_scatter", "batch"] == LAYERS + 2
    assert counts["all_gather", "batch"] == 2 * (LAYERS + 2) - 1
    # Two for each layer and one for the ends, forward and backward; half of them recomputed.
    assert counts["all_gather", "tp"] == 2 * (2 * LAYERS + 1) + LAYERS
    assert counts["reduce_scatter", "tp"] == 2 * (2 * LAYERS + 1) + LAYERS


def communication(captured: dict[str, Any]) -> dict[tuple[str, str], int]:
    """How often each collective runs over each axis."""
    found: dict[tuple[str, str], int] = {}
    for entry in captured["summary"]["classes"][0]["collectives"]:
        key = entry["collective"], entry["over"]
        found[key] = found.get(key, 0) + entry["count"]
    return found
