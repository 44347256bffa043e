"""Layer norm and root-mean-square norm, one kernel each way."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from flint.tools.stand_ins.transformer_engine.layers.base import device_of

__all__ = ["LayerNorm", "RMSNorm"]


class _Norm(nn.Module):
    """What both have. `sequence_parallel` marks parameters whose gradients are summed over ranks."""

    def __init__(
        self,
        normalized_shape: Any = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: Any = None,
        device: Any = "cuda",
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        shape = normalized_shape if normalized_shape is not None else hidden_size
        self.normalized_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        self.sequence_parallel = sequence_parallel
        self._made = params_dtype or dtype or torch.get_default_dtype(), device_of(device)
        self._parameter("weight")

    def _parameter(self, name: str) -> None:
        dtype, device = self._made
        made = nn.Parameter(torch.ones(self.normalized_shape, dtype=dtype, device=device))
        if self.sequence_parallel is not None:
            made.sequence_parallel = self.sequence_parallel
        self.register_parameter(name, made)

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Fill the parameters again: values do not matter."""


class LayerNorm(_Norm):
    """`transformer_engine.pytorch.LayerNorm`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parameter("bias")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalized input."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(_Norm):
    """`transformer_engine.pytorch.RMSNorm`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalized input."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)
