"""Fused norms: modules and functions, one kernel each way."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = [
    "FastLayerNorm",
    "FastLayerNormFN",
    "FusedLayerNorm",
    "FusedLayerNormAffineFunction",
    "FusedLayerNormFunction",
    "FusedRMSNorm",
    "FusedRMSNormAffineFunction",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
    "fused_layer_norm",
    "fused_layer_norm_affine",
    "fused_rms_norm",
    "fused_rms_norm_affine",
]


def fused_layer_norm_affine(
    input: Any,
    weight: Any,
    bias: Any,
    normalized_shape: Any,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Any:
    """Layer norm with weight and bias."""
    return F.layer_norm(input, _shape(normalized_shape), weight, bias, eps)


def fused_layer_norm(
    input: Any, normalized_shape: Any, eps: float = 1e-6, memory_efficient: bool = False
) -> Any:
    """Layer norm without parameters."""
    return F.layer_norm(input, _shape(normalized_shape), None, None, eps)


def fused_rms_norm_affine(
    input: Any,
    weight: Any,
    normalized_shape: Any,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Any:
    """Root-mean-square norm with a weight."""
    return F.rms_norm(input, _shape(normalized_shape), weight, eps)


def fused_rms_norm(
    input: Any, normalized_shape: Any, eps: float = 1e-6, memory_efficient: bool = False
) -> Any:
    """Root-mean-square norm without parameters."""
    return F.rms_norm(input, _shape(normalized_shape), None, eps)


def _shape(given: Any) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


class FusedLayerNormAffineFunction:
    """The function of autograd behind `fused_layer_norm_affine`."""

    apply = staticmethod(fused_layer_norm_affine)


class FusedLayerNormFunction:
    """The function of autograd behind `fused_layer_norm`."""

    apply = staticmethod(fused_layer_norm)


class FusedRMSNormAffineFunction:
    """The function of autograd behind `fused_rms_norm_affine`."""

    apply = staticmethod(fused_rms_norm_affine)


class FastLayerNormFN:
    """The layer norm of `apex.contrib`, for the sizes that it has kernels for."""

    @staticmethod
    def apply(x: Any, gamma: Any, beta: Any, epsilon: float, memory_efficient: bool = False) -> Any:
        """Layer norm over the last dimension."""
        return F.layer_norm(x, gamma.shape, gamma, beta, epsilon)


class _Norm(nn.Module):
    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = torch.Size(_shape(normalized_shape)), eps
        self.elementwise_affine = elementwise_affine
        self.weight: Any = self._parameter()

    def _parameter(self) -> Any:
        if not self.elementwise_affine:
            return None
        return nn.Parameter(torch.ones(self.normalized_shape))

    def reset_parameters(self) -> None:
        """Fill the parameters again: values do not matter."""


class FusedLayerNorm(_Norm):
    """`apex.normalization.FusedLayerNorm`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bias: Any = self._parameter()

    def forward(self, input: Any) -> Any:
        """The normalized input."""
        return F.layer_norm(input, tuple(self.normalized_shape), self.weight, self.bias, self.eps)


class FusedRMSNorm(_Norm):
    """`apex.normalization.FusedRMSNorm`."""

    def forward(self, input: Any) -> Any:
        """The normalized input."""
        return F.rms_norm(input, tuple(self.normalized_shape), self.weight, self.eps)


class MixedFusedLayerNorm(FusedLayerNorm):
    """The same; results have the type of the parameters."""


class MixedFusedRMSNorm(FusedRMSNorm):
    """The same; results have the type of the parameters."""


class FastLayerNorm(nn.Module):
    """`apex.contrib.layer_norm.FastLayerNorm`."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False) -> None:
        super().__init__()
        self.epsilon = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: Any) -> Any:
        """The normalized input."""
        return FastLayerNormFN.apply(x, self.weight, self.bias, self.epsilon)
