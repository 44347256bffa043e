"""Training programs of Flax, Equinox and MaxText, unmodified; totals are counted by hand.

They need packages that no extra of Flint's installs:
`pip install flax optax equinox`, and for the last `pip install "maxtext[tpu]"` (Python 3.12).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

PROGRAMS = Path(__file__).parent / "jax_programs"


def run(model: str | Path, mesh: str, *argv: str, chip: str = "h100") -> dict[str, Any]:
    """What `flint capture --world --json` says of a program."""
    options = ["--mesh", mesh, "--world", "--chip", chip, "--json", "--", *argv]
    command = [sys.executable, "-m", "flint", "capture", str(model), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def totals(said: dict[str, Any]) -> tuple[int, dict[tuple[str, str], tuple[int, int]]]:
    """FLOPs in products of a device, and collectives: how many and their bytes."""
    (only,) = said["summary"]["classes"]
    found = {
        (c["collective"], c["over"]): (c["count"], c["comm_bytes"]) for c in only["collectives"]
    }
    return only["matmul_flops"], found


def test_nnx() -> None:
    pytest.importorskip("flax")
    said = run(PROGRAMS / "nnx_mlp.py", "8x8")
    flops, collectives = totals(said)
    assert said["summary"]["name"] == "train_step"
    # 512 rows a device, 128 hidden: up and down, their weights, and the input of down.
    assert flops == 5 * 2 * 512 * 256 * 128
    assert collectives["all_reduce", "model"] == (1, 512 * 256 * 4)  # what down adds up
    weights = 2 * 256 * 128 + 128 + 256
    count, moved = collectives["all_reduce", "data"]
    assert moved in range(weights * 4, weights * 4 + 64)  # and the loss
    assert count == 5


def test_equinox() -> None:
    pytest.importorskip("equinox")
    said = run(PROGRAMS / "equinox_mlp.py", "64")
    flops, collectives = totals(said)
    layers = [64 * 256, 256 * 256, 256 * 256, 256 * 64]
    assert said["summary"]["name"] == "train_step"
    assert flops == 2 * 16 * (3 * sum(layers) - layers[0])  # the first input has no gradient
    weights = sum(layers) + 3 * 256 + 64
    assert collectives == {("all_reduce", "batch"): (9, (weights + 1) * 4)}


def test_vit_under_pmap() -> None:
    pytest.importorskip("flax")
    said = run(PROGRAMS / "pmap_vit.py", "16")
    flops, collectives = totals(said)
    tokens, images = 8 * 16, 8
    block = 2 * tokens * (4 * 128 * 128 + 2 * 128 * 512) + 2 * (2 * tokens * 16 * 128)
    patches, head = 2 * tokens * 16 * 16 * 3 * 128, 2 * images * 128 * 1000
    assert said["summary"]["name"] == "update_fn"
    assert said["summary"]["mesh"] == {"batch": 16}
    assert flops == 3 * (2 * block + head) + 2 * patches  # images have no gradient
    assert collectives == {("all_reduce", "batch"): (37, (623_976 + 1) * 4)}


@pytest.mark.parametrize("tensor", [1, 4])
def test_lm1b(tensor: int) -> None:
    pytest.importorskip("flax")
    said = run(PROGRAMS / "lm1b.py", f"64x{tensor}", "--tensor", str(tensor))
    tokens = 64 * 4 * 128
    linear = 6 * (4 * 512 * 512 + 2 * 512 * 2048) + 512 * 30000
    flops = 3 * (2 * tokens * linear + 6 * 2 * 2 * tokens * 128 * 512)
    assert flops == 6_885_369_446_400
    assert f"of {flops / 1e12:.3g} TFLOP in products" in said["warnings"][0]
    assert "eval_step" in said["warnings"][0]
    assert said["summary"]["name"] == "train_step"
    assert said["summary"]["mesh"] == {"data": 1, "fsdp": 64, "tensor": tensor}
    assert totals(said)[0] >= flops // (64 * tensor)  # what Shardy does not share is done twice


def test_maxtext_train_entry(tmp_path: Path) -> None:
    """Llama-3-8B on 64x4 of v5p, 2,048 tokens a device, splash attention, all layers recomputed."""
    maxtext = pytest.importorskip("maxtext")
    config = Path(maxtext.__file__).parent / "configs" / "base.yml"
    said = run(
        "maxtext.trainers.pre_train.train",
        "64x4",
        str(config),
        "run_name=flint",
        f"base_output_directory={tmp_path}",
        *("model_name=llama3-8b", "dataset_type=synthetic", "attention=flash"),
        *("per_device_batch_size=1", "max_target_length=2048"),
        *("ici_fsdp_parallelism=64", "ici_tensor_parallelism=4", "enable_checkpointing=false"),
        *("enable_goodput_recording=false", "monitor_goodput=false"),
        chip="v5p",
    )
    tokens, width, layers = 2048, 4096, 32
    mlp = width * 14336
    layer = 2 * width * width + 2 * width * 1024 + 3 * mlp
    linear = 2 * tokens * (4 * layers * layer + 3 * width * 128256)
    last = 2 * tokens * layers * mlp  # the last product of a layer is not needed again
    forward = 4 * tokens * tokens * width * layers  # causal or not: kernels skip, FLOPs do not
    attention = 2 * forward + forward * 7 // 2
    norms = 3 * 97 * 2 * tokens * width  # 65 norms, and 32 of layers once more, as products
    flops, collectives = totals(said)
    assert said["summary"]["name"] == "train_step"
    assert flops == linear - last + attention + norms
    assert said["timings"]["total_seconds"] > 0
    assert ("all_gather", "fsdp") in collectives
