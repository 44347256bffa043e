"""Programs that ask for CUDA take CUDA's side, whatever build of PyTorch records them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


def captured(
    program: Path, *arguments: str, mesh: str = "8", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flint", "capture", str(program), "--mesh", mesh, "--world"]
    return subprocess.run(
        [*command, *arguments], check=False, cwd=folder, capture_output=True, text=True, timeout=300
    )


def test_every_question_has_the_answer_of_cuda(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_text("of a real run")
    program = ROOT / "tests" / "torch_programs" / "cuda_device.py"
    done = captured(program, "--chip", "a100", "--", str(tmp_path))
    said = [line for line in done.stderr.splitlines() if line.startswith(("WRONG", "ASKED"))]
    assert done.returncode == 0, done.stderr[-3000:]
    # The program asks for its rank, so several run, and have the same answers.
    assert len({*said}) == 1 and int(said[0].split()[1]) > 40, "\n".join(said)
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


HOUSEKEEPING = """
import os, pathlib, shutil, torch
shutil.rmtree("out")
open("log.txt", "a").write("more")
assert open("log.txt").read() == "of a real run more"
pathlib.Path("state.json").write_text("new")
pathlib.Path("state.tmp").write_text("newer")
os.replace("state.tmp", "state.json")
assert pathlib.Path("state.json").read_text() == "newer"
os.remove("state.json")
os.remove("old.txt")
open("made.txt", "w").write("by the program")
with torch.package.PackageExporter("package.pt") as package:
    package.save_text("a", "b", "c")
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    torch.ones(2)
profile.export_chrome_trace("trace.json")
torch.save({"a": 1}, "model.pt")
assert os.path.getsize("model.pt") and [*pathlib.Path().glob("mo*.pt")] == [pathlib.Path("model.pt")]
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_files_of_earlier_runs_stay_as_they_are(tmp_path: Path) -> None:
    names = ("out/state.pt", "log.txt", "state.json", "old.txt", "package.pt", "trace.json")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("of a real run ")
    program = tmp_path / "train.py"
    program.write_text(HOUSEKEEPING)
    done = captured(program, mesh="2", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [(tmp_path / name).read_text() for name in names] == ["of a real run "] * 6
    assert (tmp_path / "made.txt").read_text() == "by the program"
    assert not (tmp_path / "model.pt").exists()
    for said in ("out was not deleted", "log.txt was not changed", "old.txt was not deleted"):
        assert f"warning: {said}, because it is older than this capture" in done.stderr
