"""Programs that ask for CUDA take CUDA's side, whatever build of PyTorch records them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


def captured(program: Path, *arguments: str, mesh: str = "8") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flint", "capture", str(program), "--mesh", mesh, "--world"]
    return subprocess.run(
        [*command, *arguments], check=False, capture_output=True, text=True, timeout=300
    )


def test_every_question_has_the_answer_of_cuda(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_text("of a real run")
    program = ROOT / "tests" / "torch_programs" / "cuda_device.py"
    done = captured(program, "--chip", "a100", "--", str(tmp_path))
    said = [line for line in done.stderr.splitlines() if line.startswith(("WRONG", "ASKED"))]
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(said) == 1 and int(said[0].split()[1]) > 40, "\n".join(said)
    assert weights.read_text() == "of a real run"
    assert list(tmp_path.iterdir()) == [weights]
    assert "weights.tmp was not written" in done.stderr


PROGRAMS = {
    "optimizer before the move": (
        """
import torch
model = torch.nn.Linear(64, 32, bias=False)
optimizer = torch.optim.AdamW(model.parameters())
model.cuda()
for _ in range(2):
    model(torch.randn(16, 64, device="cuda")).sum().backward()
    optimizer.step()
""",
        "optimizer 16.0 KiB",
    ),
    "trainer that cleans up": (
        """
import torch
model = torch.nn.Linear(64, 32, bias=False).cuda()
optimizer = torch.optim.AdamW(model.parameters())
try:
    for _ in range(5):
        model(torch.randn(16, 64, device="cuda")).sum().backward()
        optimizer.step()
finally:
    model.cpu()
""",
        "optimizer 16.0 KiB, parameter 8.00 KiB",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_state_is_that_of_the_optimizer(name: str, tmp_path: Path) -> None:
    text, expected = PROGRAMS[name]
    (tmp_path / "train.py").write_text(text)
    done = captured(tmp_path / "train.py", mesh="2")
    assert expected in done.stdout, done.stdout + done.stderr


def test_a_loop_that_never_ends_is_named(tmp_path: Path) -> None:
    lines = ("import torch", "x = torch.randn(4, device='cuda')", "while x.max().item() > 0.5:")
    (tmp_path / "train.py").write_text("\n".join((*lines, "    pass", "")))
    done = captured(tmp_path / "train.py", mesh="2")
    assert done.returncode == 2
    assert "error[FL239]: the loop at train.py:3 does not end" in done.stderr
