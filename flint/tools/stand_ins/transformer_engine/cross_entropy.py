"""Cross entropy over a vocabulary that ranks share: the gradient is written where the logits were."""

from __future__ import annotations

from typing import Any

import torch

from flint.frontends.torch_world.packages.kernels import calculation, kernel
from flint.tools.stand_ins.transformer_engine.groups import gather_rows, size_of

__all__ = ["parallel_cross_entropy"]


@kernel(
    "te::online_softmax",
    "(Tensor logits, Tensor target) -> Tensor",
    lambda call: calculation(
        4 * call.operands[0].num_elements, functions=call.operands[0].num_elements
    ),
)
def _online_softmax(logits: Any, target: Any) -> torch.Tensor:
    """Maximum, sum of exponentials and the target's logit of each row."""
    return logits.new_empty((3 * (logits.numel() // logits.shape[-1]),), dtype=torch.float32)


@kernel(
    "te::cross_entropy",
    "(Tensor(a!) logits, Tensor target, Tensor statistics) -> Tensor",
    lambda call: calculation(
        3 * call.operands[0].num_elements, functions=call.operands[0].num_elements
    ),
)
def _cross_entropy(logits: Any, target: Any, statistics: Any) -> torch.Tensor:
    """The loss of each row; the logits become their gradients."""
    return logits.new_empty(logits.shape[:-1], dtype=torch.float32)


@kernel(
    "te::element_mul",
    "(Tensor(a!) logits, Tensor grad) -> ()",
    lambda call: calculation(call.operands[0].num_elements),
)
def _element_mul(logits: Any, grad: Any) -> None:
    """Gradients of the logits times those of the loss, in place."""


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any, mean: bool, group: Any) -> Any:
        statistics = _online_softmax(logits, target)
        if size_of(group) > 1:
            statistics = gather_rows(statistics, group)[0]
        loss = _cross_entropy(logits, target, statistics)
        ctx.save_for_backward(logits.detach())
        return loss.mean() if mean else loss

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (logits,) = ctx.saved_tensors
        _element_mul(logits, gradients[0])
        return logits, None, None, None


def parallel_cross_entropy(
    inp: torch.Tensor,
    target: torch.Tensor,
    label_smoothing: float = 0.0,
    reduce_loss: bool = False,
    dist_process_group: Any = None,
    ignore_idx: int = -100,
    is_cg_capturable: bool = False,
) -> Any:
    """The loss of each token."""
    return _CrossEntropy.apply(inp, target, reduce_loss, dist_process_group)
