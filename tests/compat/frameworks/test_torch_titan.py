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

ROOT = Path(__file__).parents[3]
LLAMA = ("--model.name", "llama3", "--model.flavor", "debugmodel")
LAYERS = 6  # of torchtitan's debugmodel
LAYER = 4 * 256 * 256 + 3 * 256 * 768
HEAD = 256 * 2048
PARAMETERS = LAYERS * LAYER + 2 * HEAD + (2 * LAYERS + 1) * 256  # with embedding and norms
#: Scores and values of one text of 256 tokens, in one layer.
ATTENTION = 4 * 256 * 256 * 256


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
    small = ["--training.seq_len", "256", "--training.local_batch_size", "1"]
    script = [*LLAMA, *small, *options]
    command = ["capture", "titan.py", "--mesh", mesh, "--world", "-o", "trace", "--json"]
    captured: dict[str, Any] = json.loads(flint(*command, "--", *script, folder=folder))
    assert "error" not in flint("check", "trace", folder=folder)
    return captured


@pytest.mark.long
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


PARALLELISMS = {
    "dense": ("4",),
    "context parallel": ("4", "--parallelism.context_parallel_degree", "2"),
    "float8": ("4", "--model.converters", "quantize.linear.float8", "--compile.enable"),
    "flex attention": ("4", "--model.flavor", "debugmodel_flex_attn"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", PARALLELISMS)
def test_gradients_are_reduced_once_in_f32(name: str, tmp_path: Path) -> None:
    if name == "float8":
        pytest.importorskip("torchao")
    mesh, *options = PARALLELISMS[name]
    only, *_ = capture(tmp_path, mesh, *options)["summary"]["classes"]
    world = [e for e in only["collectives"] if e["group_size"] == int(mesh)]
    scattered = [e for e in world if e["collective"] == "reduce_scatter"]
    assert [(e["count"], e["comm_bytes"]) for e in scattered] == [(LAYERS + 2, 4 * PARAMETERS)]
    assert not only["unpriced"]


@pytest.mark.long
def test_flex_attention_skips_what_its_mask_hides(tmp_path: Path) -> None:
    """Of 2 x 2 blocks of 128 tokens the causal mask leaves three; every second layer runs again."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (whole,) = capture(tmp_path / "a", "4")["summary"]["classes"]
    flex = capture(tmp_path / "b", "4", "--model.flavor", "debugmodel_flex_attn")
    (masked,) = flex["summary"]["classes"]
    calls = LAYERS * 7 / 2 + LAYERS / 2
    assert whole["matmul_flops"] - masked["matmul_flops"] == ATTENTION * calls / 4


@pytest.mark.long
def test_stages_with_tensor_parallelism(tmp_path: Path) -> None:
    degrees = ("--parallelism.tensor_parallel_degree", "2")
    degrees += ("--parallelism.pipeline_parallel_degree", "2")
    two_texts = ("--training.local_batch_size", "2")
    first, last = capture(tmp_path, "8", *degrees, *two_texts)["summary"]["classes"]
    for found in (first, last):  # a microbatch of one text, half of its tokens on each rank
        sent = [e for e in found["collectives"] if e["collective"] == "send"]
        assert [(e["count"], e["comm_bytes"]) for e in sent] == [(2, 2 * 256 * 256 * 2 // 2)]


@pytest.mark.long
@pytest.mark.parametrize("model", ["deepseek_v3", "llama4"])
def test_experts_are_exchanged(model: str, tmp_path: Path) -> None:
    options = ("--model.name", model, "--parallelism.expert_parallel_degree", "2")
    (only,) = capture(tmp_path, "4", *options)["summary"]["classes"]
    pairs = [e for e in only["collectives"] if e["collective"] == "all_to_all"]
    assert [e["group_size"] for e in pairs] == [2] and pairs[0]["count"] > 0


@pytest.mark.long
def test_async_tensor_parallelism_is_said_not_to_be_followed(tmp_path: Path) -> None:
    degrees = ("--parallelism.tensor_parallel_degree", "2", "--compile.enable")
    captured = capture(tmp_path, "4", *degrees, "--parallelism.enable_async_tensor_parallel")
    assert any("async tensor parallelism was not followed" in w for w in captured["warnings"])
