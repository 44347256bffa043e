"""Rows of experts padded to what products of fp8 ask for, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flint.frontends.torch_world.packages.kernels import copies, kernel
from flint.tools.stand_ins.transformer_engine.fp8 import FP8GlobalStateManager

__all__ = ["Fp8Padding", "Fp8Unpadding"]


@kernel("te::multi_padding", "(Tensor x, int rows) -> Tensor", copies)
def _padded(x: Any, rows: int) -> torch.Tensor:
    return x.new_empty((rows, *x.shape[1:]))


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, rows: int) -> Any:
        ctx.rows = x.shape[0]
        return _padded(x, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _padded(gradients[0].contiguous(), ctx.rows), None


class _Module(nn.Module):
    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms, self._align = num_gemms, align_size

    def padded(self, m_splits: list[int]) -> list[int]:
        """Rows of each expert, rounded up."""
        block = 32 if FP8GlobalStateManager.get_fp8_recipe().mxfp8() else 16
        align = self._align or block
        return [-(-m // align) * align for m in m_splits]


class Fp8Padding(_Module):
    """`transformer_engine.pytorch.Fp8Padding`."""

    def forward(self, inp: torch.Tensor, m_splits: list[int]) -> Any:
        """Padded rows, and how many each expert has."""
        wanted = self.padded(m_splits)
        if wanted == m_splits:
            return inp, m_splits
        return _Pad.apply(inp, sum(wanted)), wanted


class Fp8Unpadding(_Module):
    """`transformer_engine.pytorch.Fp8Unpadding`."""

    def forward(self, inp: torch.Tensor, m_splits: list[int]) -> Any:
        """Rows without padding."""
        if self.padded(m_splits) == m_splits:
            return inp
        return _Pad.apply(inp, sum(m_splits))
