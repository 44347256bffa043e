"""Recipes of training in fp8 and fp4, by their public fields."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import torch

__all__ = [
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "Recipe",
]


class _Types(NamedTuple):
    fwd: torch.dtype
    bwd: torch.dtype


class Format(Enum):
    """Types of the forward and of the backward pass."""

    E4M3 = _Types(torch.float8_e4m3fn, torch.float8_e4m3fn)
    E5M2 = _Types(torch.float8_e5m2, torch.float8_e5m2)
    E2M1 = _Types(torch.float4_e2m1fn_x2, torch.float4_e2m1fn_x2)
    HYBRID = _Types(torch.float8_e4m3fn, torch.float8_e5m2)


class Recipe:
    """How tensors are scaled. `block` elements share a scale (0: all), `passes` read them before."""

    block = 0
    passes = 0
    fp8_dpa = False

    def __init__(self, fp8_format: Format = Format.HYBRID, **options: Any) -> None:
        self.fp8_format = fp8_format
        vars(self).update(options)

    def delayed(self) -> bool:
        """Whether scales are those of steps before."""
        return isinstance(self, DelayedScaling)

    def float8_current_scaling(self) -> bool:
        """Whether scales are the tensor's own."""
        return isinstance(self, Float8CurrentScaling)

    def mxfp8(self) -> bool:
        """Whether 32 elements share a scale."""
        return isinstance(self, MXFP8BlockScaling)

    def nvfp4(self) -> bool:
        """Whether 16 elements of 4 bits share a scale."""
        return isinstance(self, NVFP4BlockScaling)

    def float8_block_scaling(self) -> bool:
        """Whether 128 elements share a scale."""
        return isinstance(self, Float8BlockScaling)


class DelayedScaling(Recipe):
    """Scales from a history of maxima, which are reduced over ranks once a step."""

    def __init__(
        self,
        margin: int = 0,
        fp8_format: Format = Format.HYBRID,
        amax_history_len: int = 1024,
        amax_compute_algo: str = "max",
        reduce_amax: bool = True,
        fp8_dpa: bool = False,
        fp8_mha: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(fp8_format, margin=margin, **options)
        self.amax_history_len, self.amax_compute_algo = amax_history_len, amax_compute_algo
        self.reduce_amax, self.fp8_dpa, self.fp8_mha = reduce_amax, fp8_dpa, fp8_mha


class Float8CurrentScaling(Recipe):
    """Scales from the tensor itself, which is read once more for its maximum."""

    passes = 1


class MXFP8BlockScaling(Recipe):
    """One scale of 8 bits for 32 elements."""

    block = 32

    def __init__(self, fp8_format: Format = Format.E4M3, **options: Any) -> None:
        super().__init__(fp8_format, **options)


class NVFP4BlockScaling(Recipe):
    """One scale of 8 bits for 16 elements of 4 bits, below one for the tensor, from its maximum."""

    block = 16
    passes = 1

    def __init__(self, fp4_format: Format = Format.E2M1, **options: Any) -> None:
        super().__init__(fp4_format, **options)


class Float8BlockScaling(Recipe):
    """One scale for 128 elements."""

    block = 128

    def __init__(self, fp8_format: Format = Format.E4M3, **options: Any) -> None:
        super().__init__(fp8_format, **options)
