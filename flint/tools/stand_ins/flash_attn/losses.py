"""Cross entropy of flash-attn: one kernel forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flint.frontends.torch_world.packages.kernels import calculation, kernel
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

__all__ = ["CrossEntropyLoss", "cross_entropy_loss"]


def _cost(call: KernelCall) -> Work:
    elements = call.operands[0].num_elements
    return calculation(4 * elements, functions=elements)


@kernel("flash_attn::cross_entropy", "(Tensor logits, Tensor labels) -> (Tensor, Tensor)", _cost)
def _forward(logits: Any, labels: Any) -> Any:
    rows = logits.shape[:-1]
    return (
        logits.new_empty(rows, dtype=torch.float32),
        logits.new_empty(rows, dtype=torch.float32),
    )


@kernel(
    "flash_attn::cross_entropy_backward",
    "(Tensor grad, Tensor logits, Tensor lse, Tensor labels) -> Tensor",
    lambda call: calculation(
        3 * call.operands[1].num_elements, functions=call.operands[1].num_elements
    ),
)
def _backward(grad: Any, logits: Any, lse: Any, labels: Any) -> torch.Tensor:
    return logits.new_empty(logits.shape)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        loss, lse = _forward(logits, labels)
        ctx.save_for_backward(logits, lse, labels)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        logits, lse, labels = ctx.saved_tensors
        return _backward(gradients[0].contiguous(), logits, lse, labels), None


def cross_entropy_loss(logits: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
    """The loss of each row, and its part from the normalizer's square (none here)."""
    loss = _CrossEntropy.apply(logits, labels)
    return loss, torch.zeros_like(loss)


class CrossEntropyLoss(nn.Module):
    """`flash_attn.losses.cross_entropy.CrossEntropyLoss`."""

    def __init__(self, ignore_index: int = -100, reduction: str = "mean", **options: Any) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Any, target: Any, precomputed_lse: Any = None) -> Any:
        """The loss of all rows, or of each."""
        loss = _CrossEntropy.apply(input, target)
        if self.reduction == "mean":
            return loss.mean()
        return loss.sum() if self.reduction == "sum" else loss
