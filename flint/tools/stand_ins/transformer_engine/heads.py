"""Attention in fp8, and context parallelism by all-to-all: of whole sequences each rank has some heads."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from flint.frontends.torch_world.packages.attention import Square, kernels_of
from flint.tools.stand_ins.transformer_engine.groups import size_of
from flint.tools.stand_ins.transformer_engine.products import amax, dequantize, quantize
from flint.tools.stand_ins.transformer_engine.recipes import Recipe

__all__ = ["attend_over_heads"]


def _to_heads(x: Any, along: int, group: Any) -> Any:
    """A part of the sequence of all heads -> the sequence, of a part of the heads."""
    size = size_of(group)
    if size == 1:
        return x
    *before, heads, width = x.shape
    parts = x.reshape(*before, size, heads // size, width).movedim(-3, 0).contiguous()
    found = torch.empty_like(parts)
    dist.all_to_all_single(found, parts, group=group)
    return found.movedim(0, along).flatten(along, along + 1)


def _to_sequence(x: Any, along: int, group: Any) -> Any:
    """The way back."""
    size = size_of(group)
    if size == 1:
        return x
    parts = x.unflatten(along, (size, x.shape[along] // size)).movedim(along, 0).contiguous()
    found = torch.empty_like(parts)
    dist.all_to_all_single(found, parts, group=group)
    return found.movedim(0, -3).flatten(-3, -2)


class _OverHeads(torch.autograd.Function):
    """Numbers are quantized before they are exchanged."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, square: Square, along: int, how: Any) -> Any:
        ctx.along, (ctx.group, ctx.recipe), ctx.dtype = along, how, q.dtype
        ctx.sizes = (square.heads, square.queries, square.keys, square.mask, square.scores)
        q, k, v = (_to_heads(_narrow(ctx, t), along, ctx.group) for t in (q, k, v))
        out, lse = kernels_of("te")[0](q, k, v, None, *ctx.sizes)
        ctx.save_for_backward(q, k, v, out, lse)
        return _wide(ctx, _to_sequence(out, along, ctx.group))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        grad = _narrow(ctx, gradients[0].contiguous(), backward=True)
        q, k, v, out, lse = ctx.saved_tensors
        grad = _to_heads(grad, ctx.along, ctx.group)
        found = kernels_of("te")[1](grad, q, k, v, None, out, lse, *ctx.sizes)
        return (
            *(_wide(ctx, _to_sequence(t, ctx.along, ctx.group)) for t in found),
            *(None, None, None),
        )


def _narrow(ctx: Any, x: Any, *, backward: bool = False) -> Any:
    if ctx.recipe is None:
        return x
    if ctx.recipe.passes:
        amax(x)
    dtype = torch.float8_e5m2 if backward else torch.float8_e4m3fn
    return quantize(x, dtype, True, False, 0)[0]


def _wide(ctx: Any, x: Any) -> Any:
    return x if ctx.recipe is None else dequantize(x, ctx.dtype)


def attend_over_heads(
    q: Any, k: Any, v: Any, square: Square, along: int, group: Any, recipe: Recipe | None
) -> Any:
    """Attention of whole sequences, of which the ranks of `group` share the heads, if there is one.

    `along` is the dimension of the sequence; with a recipe its products are those of fp8.
    """
    return _OverHeads.apply(q, k, v, square, along, (group, recipe))
