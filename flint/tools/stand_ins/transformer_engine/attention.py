"""`DotProductAttention`: cuDNN's or flash attention, one kernel each way."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from flint.frontends.torch_world.packages.attention import (
    Square,
    attend,
    causal_mask,
    packed_square,
)
from flint.tools.stand_ins.transformer_engine.context import attend_in_ring
from flint.tools.stand_ins.transformer_engine.fp8 import FP8GlobalStateManager
from flint.tools.stand_ins.transformer_engine.groups import size_of
from flint.tools.stand_ins.transformer_engine.heads import attend_over_heads
from flint.tools.stand_ins.transformer_engine.layers.linear import refuse
from flint.tools.stand_ins.transformer_engine.recipes import (
    DelayedScaling,
    Float8CurrentScaling,
    Recipe,
)

__all__ = ["DotProductAttention", "_SplitAlongDim"]


class DotProductAttention(nn.Module):
    """`transformer_engine.pytorch.DotProductAttention`."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: Any,
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: Any = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Any = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
    ) -> None:
        super().__init__()
        self.qkv_format, self.attn_mask_type = qkv_format, attn_mask_type
        self.window_size = window_size
        self.attention_dropout = attention_dropout
        self.tp_group, self.tp_size = tp_group, tp_size
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        """Ranks that share sequences. Raises FlintError FL235 for two groups of them at once."""
        groups = cp_group if isinstance(cp_group, list) else [cp_group]
        several = any(size_of(group) > 1 for group in groups)
        if several and (len(groups) > 1 or cp_comm_type not in ("p2p", "a2a")):
            raise refuse(
                f"context parallelism by {cp_comm_type}",
                'cp_comm_type="p2p" or "a2a" can be recorded',
            )
        self.cp_group, self.cp_comm_type = groups[0], cp_comm_type

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: Any = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_kv: Any = None,
        cu_seqlens_q_padded: Any = None,
        cu_seqlens_kv_padded: Any = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: Any = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Any = None,
        **options: Any,
    ) -> torch.Tensor:
        """Attention of queries, keys and values, heads side by side in the result."""
        layout = qkv_format or self.qkv_format
        kind = attn_mask_type or self.attn_mask_type
        window = window_size or self.window_size  # keys before a query, and behind it
        mask = causal_mask("causal" in kind, -1 if window is None else int(window[0]))
        bias = core_attention_bias
        if kind == "arbitrary":
            bias = attention_mask
        q, k = query_layer, key_layer
        if layout == "thd":
            keys = cu_seqlens_kv if cu_seqlens_kv is not None else cu_seqlens_q
            square = packed_square(q, k, cu_seqlens_q, keys, mask)
        else:
            s, b = (0, 1) if layout == "sbhd" else (1, 0)
            heads = q.shape[b] * q.shape[2]
            square = Square(heads, q.shape[s], k.shape[s], mask)
        ranks, along = size_of(self.cp_group), 0 if layout == "sbhd" else 1
        if ranks > 1 and (layout == "thd" or bias is not None or square.mask > 0):
            raise refuse("context parallelism", "with causal or full masks it can be recorded")
        recipe = _recipe() if bias is None and layout != "thd" else None
        if ranks > 1 and self.cp_comm_type == "p2p":
            out = attend_in_ring(q, k, value_layer, square, along, self.cp_group)
        elif ranks > 1 or recipe is not None:
            whole = replace(
                *(square,), heads=square.heads // ranks,
                queries=square.queries * ranks, keys=square.keys * ranks,
            )  # fmt: skip
            how = (self.cp_group if ranks > 1 else None, recipe)
            out = attend_over_heads(q, k, value_layer, whole, along, *how)
        else:
            out = attend(q, k, value_layer, square, of="te", bias=bias)[0]
        return out.reshape(*out.shape[:-2], -1)


def _recipe() -> Recipe | None:
    """How attention is quantized now: as the recipe says, or the variable of 4 bits' recipes."""
    if not FP8GlobalStateManager.is_fp8_enabled():
        return None
    recipe = FP8GlobalStateManager.get_fp8_recipe()
    if recipe.nvfp4():
        named = os.environ.get("NVTE_DPA_FP8_RECIPE", "")
        return {
            "DelayedScaling": DelayedScaling(),
            "Float8CurrentScaling": Float8CurrentScaling(),
        }.get(named)
    return recipe if recipe.fp8_dpa else None


class _SplitAlongDim(torch.autograd.Function):
    """Splits a tensor into views, whose gradients are put together without a copy if they can."""

    @staticmethod
    def forward(ctx: Any, mixed: Any, dim: int, sizes: Any, squeeze: bool = False) -> Any:
        ctx.dim, ctx.squeeze = dim, squeeze
        found = torch.split(mixed, sizes, dim=dim)
        return tuple(part.squeeze(dim) for part in found) if squeeze else found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        parts = [g.unsqueeze(ctx.dim) if ctx.squeeze else g for g in gradients]
        return torch.cat(parts, dim=ctx.dim), None, None, None
