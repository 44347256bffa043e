"""Rotary embeddings of flash-attn, one kernel each way."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flint.frontends.torch_world.packages.kernels import calculation, kernel
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

__all__ = ["RotaryEmbedding", "apply_rotary", "apply_rotary_emb", "apply_rotary_emb_func"]


def _cost(call: KernelCall) -> Work:
    """Two products and a sum for each element that is turned: as many as two angles for each."""
    x, cos = call.operands[:2]
    return calculation(3 * x.num_elements // x.shape[-1] * min(2 * cos.shape[-1], x.shape[-1]))


@kernel("flash_attn::rotary", "(Tensor x, Tensor cos, Tensor sin) -> Tensor", _cost)
def _turned(x: Any, cos: Any, sin: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


@kernel("flash_attn::rotary_", "(Tensor(a!) x, Tensor cos, Tensor sin) -> ()", _cost)
def _turn(x: Any, cos: Any, sin: Any) -> None:
    """The same in place."""


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, cos: Any, sin: Any, inplace: bool) -> Any:
        ctx.save_for_backward(cos, sin)
        if not inplace:
            return _turned(x, cos, sin)
        _turn(x, cos, sin)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _turned(gradients[0], *ctx.saved_tensors), None, None, None


def apply_rotary_emb(
    x: Any,
    cos: Any,
    sin: Any,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Any = 0,
    cu_seqlens: Any = None,
    max_seqlen: Any = None,
) -> Any:
    """Queries or keys turned by their positions; what the angles do not reach stays as it is."""
    return _Rotary.apply(x, cos, sin, inplace)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary(x: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel, without a gradient."""
    return _turned(x, cos, sin)


class RotaryEmbedding(nn.Module):
    """`flash_attn.layers.rotary.RotaryEmbedding` for queries, keys and values in one tensor."""

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: Any = None,
        pos_idx_in_fp32: bool = True,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.dim, self.interleaved = dim, interleaved
        angles = torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim
        self.register_buffer("inv_freq", 1.0 / base**angles, persistent=False)
        self._angles: tuple[Any, Any] | None = None

    def _cos_sin(self, length: int, like: Any) -> tuple[Any, Any]:
        if self._angles is None or self._angles[0].shape[0] < length:
            positions = torch.arange(length, device=like.device, dtype=torch.float32)
            freqs = torch.outer(positions, self.inv_freq.to(like.device))
            self._angles = torch.cos(freqs).to(like.dtype), torch.sin(freqs).to(like.dtype)
        return self._angles

    def forward(
        self,
        qkv: Any,
        kv: Any = None,
        seqlen_offset: int = 0,
        max_seqlen: int | None = None,
        **rest: Any,
    ) -> Any:
        """Queries and keys turned in place: (sequences, length, 3, heads, size), or q and kv."""
        cos, sin = self._cos_sin(max_seqlen or qkv.shape[1], qkv)
        if kv is None:
            mixed = qkv[:, :, :2].flatten(2, 3)
            turned = apply_rotary_emb(mixed, cos, sin, self.interleaved)
            return torch.cat([turned.view(qkv[:, :, :2].shape), qkv[:, :, 2:]], dim=2)
        keys = apply_rotary_emb(kv[:, :, 0], cos, sin, self.interleaved)
        return apply_rotary_emb(qkv, cos, sin, self.interleaved), torch.stack(
            [keys, kv[:, :, 1]], dim=2
        )
