"""A program under `torch.inference_mode()` is recorded as the same under `torch.no_grad()`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from flint.frontends.torch_distributed import capture_script
from flint.ir.program import COLUMNS, Program

SCRIPT = """
import sys
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("positions", torch.arange(32).expand(1, -1))
        self.first = nn.Parameter(torch.zeros(1, 1, 64))
        self.embedding, self.linear = nn.Embedding(32, 64), nn.Linear(64, 64)
        self.norm, self.convolution = nn.LayerNorm(64), nn.Conv2d(3, 8, 3)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, image):
        x = x + self.embedding(self.positions[:, : x.shape[1]])
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1)
        x = self.dropout(self.norm(self.linear(x)))
        heads = x.unflatten(-1, (4, 16)).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        x[:, 0].mul_(2.0)
        return seen.sum() + self.convolution(image).sum() + x.softmax(-1).mean()

model = Model().cuda().eval()
x, image = torch.zeros(4, 15, 64, device="cuda"), torch.zeros(2, 3, 16, 16, device="cuda")
with getattr(torch, sys.argv[1])():
    model(x, image)
"""


def program(tmp_path: Path, mode: str) -> Program:
    path = tmp_path / "model.py"
    path.write_text(SCRIPT)
    workload = capture_script(path, (mode,), "1", steps=0)
    return workload.programs[0]


def test_inference_mode_changes_nothing(tmp_path: Path) -> None:
    plain, inference = (program(tmp_path, mode) for mode in ("no_grad", "inference_mode"))
    assert plain.opcodes == inference.opcodes
    assert not any(name.rpartition(".")[2] == "layer_norm" for name in inference.opcodes)
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(plain, column), getattr(inference, column), column)
