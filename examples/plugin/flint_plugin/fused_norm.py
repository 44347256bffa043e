"""What a program finds as `fused_norm`: an operator with a shape and exact work."""

from __future__ import annotations

from typing import Any

from flint.frontends.torch_world.packages.kernels import kernel, per_element

__all__ = ["rms_norm"]


@kernel("fused_norm::rms_norm", "(Tensor x, Tensor weight) -> Tensor", per_element(4))
def rms_norm(x: Any, weight: Any) -> Any:
    """x / rms(x) * weight: four operations for each element."""
    return x.new_empty(x.shape)
