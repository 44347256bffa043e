"""Rotary position embedding in one kernel each way."""

from __future__ import annotations

from typing import Any

import torch

from flint.frontends.torch_world.packages.kernels import calculation, kernel
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

__all__ = ["apply_fused_qkv_rotary_pos_emb", "apply_rotary_pos_emb"]


def _cost(call: KernelCall) -> Work:
    """Two products and a sum for each element that is turned; a sine and a cosine of each angle."""
    t, freqs = call.operands[:2]
    turned = t.num_elements // t.shape[-1] * min(freqs.shape[-1], t.shape[-1])
    return calculation(3 * turned, functions=2 * freqs.num_elements)


@kernel("te::fused_rope_forward", "(Tensor t, Tensor freqs) -> Tensor", _cost)
def _forward(t: Any, freqs: Any) -> torch.Tensor:
    return t.new_empty(t.shape)


@kernel("te::fused_rope_backward", "(Tensor grad, Tensor freqs) -> Tensor", _cost)
def _backward(grad: Any, freqs: Any) -> torch.Tensor:
    return grad.new_empty(grad.shape)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Any, freqs: Any) -> Any:
        ctx.save_for_backward(freqs)
        return _forward(t, freqs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _backward(gradients[0], *ctx.saved_tensors), None


def apply_rotary_pos_emb(
    t: torch.Tensor,
    freqs: torch.Tensor,
    tensor_format: str = "sbhd",
    start_positions: Any = None,
    interleaved: bool = False,
    fused: bool = False,
    cu_seqlens: Any = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Any:
    """Queries or keys turned by their positions; what `freqs` does not reach stays as it is."""
    return _Rope.apply(t, freqs)


@kernel(
    "te::fused_qkv_rope_forward",
    "(Tensor qkv, Tensor freqs, int[] sizes) -> (Tensor, Tensor, Tensor)",
    _cost,
)
def _split_and_turn(qkv: Any, freqs: Any, sizes: list[int]) -> Any:
    width = sizes[1]
    heads = [qkv.shape[-2] * size // width for size in sizes]
    return tuple(qkv.new_empty((*qkv.shape[:-2], count, width)) for count in heads)


@kernel(
    "te::fused_qkv_rope_backward",
    "(Tensor grad, Tensor freqs, Tensor of_keys, Tensor of_values, int groups) -> Tensor",
    _cost,
)
def _turn_and_join(grad: Any, freqs: Any, of_keys: Any, of_values: Any, groups: int) -> Any:
    heads = grad.shape[-2] + of_keys.shape[-2] + of_values.shape[-2]
    return grad.new_empty((*grad.shape[:-2], groups, heads // groups * grad.shape[-1]))


class _QkvRope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Any, freqs: Any, sizes: list[int]) -> Any:
        ctx.save_for_backward(freqs)
        ctx.groups = qkv.shape[-2]
        return _split_and_turn(qkv, freqs, sizes)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v = (g.contiguous() for g in gradients)
        return _turn_and_join(q, *ctx.saved_tensors, k, v, ctx.groups), None, None


def apply_fused_qkv_rotary_pos_emb(
    qkv: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    qkv_split_arg_list: list[int],
    **options: Any,
) -> Any:
    """Queries, keys and values of a product's result, split, and turned by their positions."""
    return _QkvRope.apply(qkv, q_freqs, list(qkv_split_arg_list))
