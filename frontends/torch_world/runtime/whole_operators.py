"""Operators that GPUs have a kernel for, and that PyTorch takes apart, or has no shapes for, on any
other device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from flint.frontends.torch_private import forget_library, meta_kernels
from flint.frontends.torch_world.program.cuda_kernels import shape_kernels

#: Composite operators with kernels of their own for CPU and CUDA, of PyTorch 2.13, whose results
#: are like the first input.
_WHOLE = ("mish_backward", "native_channel_shuffle", "silu_backward")


@contextmanager
def operators_kept_whole() -> Iterator[None]:
    """Keep those operators whole on the virtual device, as they are on a GPU."""
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    shapes = torch.library.Library("aten", "IMPL", "Meta")
    meta_kernels()  # PyTorch's own come first
    try:
        for name, results in shape_kernels().items():
            shapes.impl(name, results, allow_override=True)
        for name in _WHOLE:
            library.impl(name, _like_the_first)
        library.impl("_pack_padded_sequence_backward", _unpacked)
        library.impl("_fused_rms_norm", _rms_norm)
        library.impl("_fused_rms_norm_backward", _rms_norm_backward)
        yield
    finally:
        forget_library(library)
        forget_library(shapes)


def _like_the_first(tensor: torch.Tensor, *rest: object) -> torch.Tensor:
    """The result of an operator that is recorded but not computed."""
    return torch.empty_like(tensor)


def _unpacked(gradient: torch.Tensor, size: list[int], *rest: object) -> torch.Tensor:
    """The gradient of a sequence that was packed."""
    return gradient.new_empty(size)


def _rms_norm(x: torch.Tensor, normalized_shape: list[int], *rest: object) -> tuple[Any, Any]:
    """What the kernel writes: the result, and 1 / root mean square of each row, which CUDA keeps.

    The latter is not rounded to half precision.
    """
    rows = (*x.shape[: x.dim() - len(normalized_shape)], *(1 for _ in normalized_shape))
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty(x.shape), x.new_empty(rows, dtype=wide)


def _rms_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: list[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    wanted: tuple[bool, bool],
) -> tuple[Any, Any]:
    """Gradients of the input and of the weight, where they are wanted."""
    of_input = x.new_empty(x.shape) if wanted[0] else None
    return of_input, weight.new_empty(weight.shape) if wanted[1] and weight is not None else None
