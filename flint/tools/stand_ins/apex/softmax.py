"""Scaled softmax with a mask, one kernel each way: extensions that Megatron calls by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from flint.frontends.torch_world.packages.kernels import kernel
from flint.ir.op_class import OpClass
from flint.passes.work import formulas
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

__all__ = ["backward", "forward", "get_batch_per_block"]
#: A product with the scale, and what softmax costs for each element; backward likewise.
_FORWARD, _BACKWARD = 6, 5


def _cost(call: KernelCall, per_element: int) -> Work:
    elements = call.operands[0].num_elements
    rows = elements // max(call.operands[0].shape[-1], 1)
    return replace(formulas.reduction(elements, rows, per_element), op=OpClass.SOFTMAX)


@kernel(
    "apex::scaled_softmax", "(Tensor x, Tensor? mask) -> Tensor", lambda call: _cost(call, _FORWARD)
)
def _softmax(x: Any, mask: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


@kernel(
    "apex::scaled_softmax_backward",
    "(Tensor grad, Tensor result) -> Tensor",
    lambda call: _cost(call, _BACKWARD),
)
def _softmax_backward(grad: Any, result: Any) -> torch.Tensor:
    return grad.new_empty(grad.shape)


def forward(x: Any, *rest: Any) -> Any:
    """Softmax of rows times a scale, which comes last; a mask may come before."""
    mask = rest[0] if len(rest) > 1 else None
    return _softmax(x, mask)


def backward(grad: Any, result: Any, scale: Any) -> Any:
    """The gradient of the rows, from that of the result."""
    return _softmax_backward(grad, result)


def get_batch_per_block(queries: int, keys: int, batches: int, heads: int) -> int:
    """How many rows a block of the kernel takes: a choice between kernels, with the CUDA source's rule."""
    power = 1 << max(keys - 1, 0).bit_length()
    warp = min(power, 32)
    per_warp = 2 if power <= 128 else 1
    return (128 // warp) * per_warp
