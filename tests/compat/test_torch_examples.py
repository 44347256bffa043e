"""The PyTorch examples: both ways in give traces that pass `check`, and gloo processes run them."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flint.backends.chakra import check
from tests.long import long_but
from tests.torch_programs.ranks import run_as_ranks

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


#: A stage on a device: as a script of each stage is recorded once, one of 2x2 takes twice as long.
STAGES = WORLDS[8].replace("2x2", "2x1").replace("--microbatches 4", "--microbatches 2")
CAPTURES = (*ANNOTATED, *HUGGINGFACE_ANNOTATED, *WORLDS, STAGES, CUDA, *HUGGINGFACE)


@pytest.mark.parametrize("command", long_but([ANNOTATED[3], STAGES], CAPTURES))
def test_traces_pass_check(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flint.cli import app

    needs(command)
    monkeypatch.chdir(EXAMPLES)
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["capture", "-q", "-o", str(out), *shlex.split(command)])
    assert result.exit_code == 0, result.output
    report = check(out)
    assert report.ok and report.proved == "any-times", (report.findings, report.doubt)
    assert report.ranks == ranks_of(command)
    assert report.nodes > 50 * report.ranks


@pytest.mark.long
@pytest.mark.parametrize("command", (*WORLDS[1::2], *WORLDS[6::2], HUGGINGFACE[2]))
def test_real_processes_run_the_same_script(command: str) -> None:
    needs(command)
    script, arguments = command.split()[0], command.partition(" -- ")[2]
    if not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    status, said = run_as_ranks(ranks_of(command), EXAMPLES / script, *shlex.split(arguments))
    assert status == 0, said
    assert len(re.findall(r"^step \d+: loss \d+\.\d+$", said, re.MULTILINE)) == 2


def test_every_example_is_documented() -> None:
    files = {path.name for path in EXAMPLES.glob("torch_*.py")}
    command = re.compile(r"flint capture examples/(torch_\w+\.py) --mesh [\dx]+")
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(command.findall(readme)) == files
    for name in files:
        assert name in command.findall((EXAMPLES / name).read_text(encoding="utf-8"))
