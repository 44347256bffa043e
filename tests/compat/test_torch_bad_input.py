"""What cannot be captured is one error: nothing else on stderr, nothing on stdout, exit status 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
import torch

import flint


@torch.library.custom_op("mylib::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@scale.register_fake
def _(x):
    return torch.empty_like(x)


class Model(torch.nn.Module):
    def __init__(self, item):
        super().__init__()
        self.item = item
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if self.item else torch.ops.mylib.scale(layer(x))
        if self.item and x.sum().item() > 0:
            return x
        return torch.special.bessel_j0(x)


@flint.entry(axes=("data", "model"))
def step(mesh, item=False):
    return flint.TorchStep(Model(item), (torch.empty(8, 8),))
"""


def _capture(tmp_path, *arguments):
    command = [sys.executable, "-m", "flint", "capture", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr[-2000:]
    return done.stderr.splitlines()


def test_unknown_operators_are_listed_with_their_modules(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    assert _capture(tmp_path, str(tmp_path / "model.py"), "--mesh", "4x2") == [
        "error[FL220]: 2 operators are unknown: aten::special_bessel_j0 in the model; "
        + "mylib::scale in the model",
        "  --> model.py:25",
        '  help: register what it computes in JAX: @flint.torch_op("aten::special_bessel_j0")',
    ]


def test_a_branch_on_data_has_its_line(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    lines = _capture(tmp_path, str(tmp_path / "model.py"), "--mesh", "4x2", "--set", "item=true")
    assert len(lines) == 3
    assert lines[0].endswith("cannot be exported: it decides by the value of a tensor")
    assert lines[1] == "  --> model.py:26  if self.item and x.sum().item() > 0:"


SCRIPTS = {
    "no Python": (b"def f(:\n", "raised SyntaxError: invalid syntax", "script.py:1"),
    "no text": (b"\0\1\2\xff" * 99, "raised SyntaxError: source code", "script.py"),
    "shapes that do not fit": (
        b'import torch\ntorch.ones(4, 4, device="cuda") @ torch.ones(5, 4, device="cuda")\n',
        "raised RuntimeError: a and b must have same reduction dim",
        'script.py:2  torch.ones(4, 4, device="cuda") @ torch.ones(5, 4, device="cuda")',
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_raises(tmp_path, name):
    code, message, place = SCRIPTS[name]
    (tmp_path / "script.py").write_bytes(code)
    lines = _capture(tmp_path, str(tmp_path / "script.py"), "--mesh", "8", "--world")
    assert len(lines) == 3
    assert lines[0].startswith(f"error[FL230]: script.py {message}")
    assert lines[1] == f"  --> {place}"


def test_a_module_that_captures_when_it_is_imported(tmp_path):
    """The capturing process imports the file: without this error it would start others for ever."""
    (tmp_path / "train.py").write_text(
        "import flint\n\n\ndef main():\n    pass\n\n\nflint.trace_distributed(main, '4')\n"
    )
    command = [sys.executable, str(tmp_path / "train.py")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1
    assert (
        "error[FL236]: importing the module of the captured function starts a capture"
        in done.stderr
    )
    assert "train.py:8" in done.stderr
