"""A norm and a linear layer in one module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from flint.tools.stand_ins.transformer_engine.layers.base import device_of
from flint.tools.stand_ins.transformer_engine.layers.linear import Linear

__all__ = ["LayerNormLinear"]


class LayerNormLinear(Linear):
    """`transformer_engine.pytorch.LayerNormLinear`.

    The norm works on this rank's rows; these are gathered normalized, again for the backward pass.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        *args: Any,
        normalization: str = "LayerNorm",
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        zero_centered_gamma: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_features, out_features, sequence_parallel, *args, **kwargs)
        self.eps, self.normalization = eps, normalization
        self.zero_centered_gamma = zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        self._norm_parameter("layer_norm_weight", in_features, kwargs)
        if normalization == "RMSNorm":
            self.layer_norm_bias = None
        else:
            self._norm_parameter("layer_norm_bias", in_features, kwargs)

    def _norm_parameter(self, name: str, size: int, given: dict[str, Any]) -> None:
        dtype = given.get("params_dtype") or torch.get_default_dtype()
        device = device_of(given.get("device", "cuda"))
        made = nn.Parameter(torch.ones(size, dtype=dtype, device=device))
        made.sequence_parallel = self.sequence_parallel
        self.register_parameter(name, made)

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        """The norm's kernel."""
        shape = (self.layer_norm_weight.shape[0],)
        if self.normalization == "RMSNorm":
            return F.rms_norm(x, shape, self.layer_norm_weight, self.eps)
        return F.layer_norm(x, shape, self.layer_norm_weight, self.layer_norm_bias, self.eps)

    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any:
        """The layer; the bias, or the normalized input, is given back where it was asked for."""
        normal = self.normalize(inp)
        out = self.multiply(normal, is_first_microbatch)
        if not self.return_layernorm_output:
            return out
        return (*out, normal) if self.return_bias else (out, normal)
