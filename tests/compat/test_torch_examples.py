"""The PyTorch examples: both ways in give traces that pass `check`, and gloo processes run them."""

from __future__ import annotations

import math
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flint.backends.chakra import check

torch = pytest.importorskip("torch")
pytest.importorskip("jax", reason="the annotated way in lowers through JAX")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ANNOTATED = (
    "torch_llama.py --mesh 4x2 --set num_layers=2",
    "torch_llama.py --mesh 2x4 --set num_layers=2 --set parallel=fsdp+tp+sp",
    "torch_llama.py --mesh 4x2 --set num_layers=2 --set parallel=tp",
    "torch_llama.py --mesh 4x2 --set num_layers=1 --set parallel=fsdp",
    "torch_resnet50_ddp.py --mesh 8",
    "torch_dlrm.py --mesh 8",
)
#: Script, mesh, arguments. The meshes are small, so that real processes run the same.
WORLDS = (
    "torch_llama.py --mesh 2x2 --world -- --model debug --seq 64 --tp 2",
    "torch_llama.py --mesh 2x2 --world -- --model debug --seq 64 --tp 2 --checkpoint --clip 1",
    "torch_llama.py --mesh 4 --world -- --model debug --seq 64 --tp 1",
    "torch_llama_plain_tp.py --mesh 2x2 --world -- --model debug --seq 64 --tp 2",
    "torch_llama_plain_tp.py --mesh 1x2 --world -- --model debug --seq 64 --tp 2 --head shard",
    "torch_resnet50_ddp.py --mesh 2 --world -- --batch 2 --image 64",
    "torch_dlrm.py --mesh 4 --world -- --batch 16 --rows 100",
    "torch_deepseek_moe.py --mesh 2x2 --world -- --small --experts 2 --seq 64",
    "torch_pipeline.py --mesh 2x2 --world -- --model debug --pipe 2 --microbatches 4 --seq 64",
)
CUDA = "torch_cuda_script.py --mesh 64 --world -- --depth 2 --width 64 --heads 4 --seq 64"
HUGGINGFACE = (
    "torch_huggingface.py --mesh 2x2 --world -- --small --seq 64 --tp 2",
    "torch_huggingface.py --mesh 2x2 --world -- --small --seq 64 --tp 2 --model qwen3-8b",
    "torch_huggingface.py --mesh 2x2 --world -- --small --seq 64 --tp 2 --model mixtral-8x7b",
)
HUGGINGFACE_ANNOTATED = (
    "torch_huggingface.py --mesh 4x2 --set num_layers=2",
    "torch_huggingface.py --mesh 4x2 --set num_layers=2 --set model=qwen3-8b",
    "torch_huggingface.py --mesh 4x2 --set num_layers=1 --set model=mixtral-8x7b",
)


def ranks_of(command: str) -> int:
    """2x4 -> 8."""
    words = shlex.split(command)
    return math.prod(map(int, words[words.index("--mesh") + 1].split("x")))


def needs(command: str) -> None:
    if command.startswith("torch_huggingface"):
        pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", (*ANNOTATED, *HUGGINGFACE_ANNOTATED, *WORLDS, CUDA, *HUGGINGFACE)
)
def test_traces_pass_check(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flint.cli import app

    needs(command)
    monkeypatch.chdir(EXAMPLES)
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["capture", "-q", "-o", str(out), *shlex.split(command)])
    assert result.exit_code == 0, result.output
    report = check(out)
    assert report.ok and report.deadlock_examined, report.findings
    assert report.ranks == ranks_of(command)
    assert report.nodes > 50 * report.ranks


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_as_processes(command: list[str], world: int) -> str:
    """Run a script as `world` ranks; what rank 0 printed. Skips where gloo cannot start."""
    if not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    common = os.environ | {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    said = [process.communicate(timeout=180)[0] for process in ranks]
    assert all(process.returncode == 0 for process in ranks), "\n".join(said)
    return "".join(said)


@pytest.mark.slow
@pytest.mark.parametrize("command", (*WORLDS[1::2], *WORLDS[6::2], HUGGINGFACE[2]))
def test_real_processes_run_the_same_script(command: str) -> None:
    needs(command)
    script, arguments = command.split()[0], command.partition(" -- ")[2]
    said = run_as_processes([str(EXAMPLES / script), *shlex.split(arguments)], ranks_of(command))
    assert len(re.findall(r"^step \d+: loss \d+\.\d+$", said, re.MULTILINE)) == 2


def test_every_example_is_documented() -> None:
    files = {path.name for path in EXAMPLES.glob("torch_*.py")}
    command = re.compile(r"flint capture examples/(torch_\w+\.py) --mesh [\dx]+")
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(command.findall(readme)) == files
    for name in files:
        assert name in command.findall((EXAMPLES / name).read_text(encoding="utf-8"))
