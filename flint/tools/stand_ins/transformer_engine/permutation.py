"""Tokens in the order of their experts and back, one kernel each way."""

from __future__ import annotations

from typing import Any

import torch

from flint.errors import FlintError
from flint.frontends.torch_world.packages.kernels import calculation, kernel
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

__all__ = [
    "moe_permute",
    "moe_permute_with_probs",
    "moe_sort_chunks_by_index",
    "moe_sort_chunks_by_index_with_probs",
    "moe_unpermute",
]


@kernel(
    "te::row_id_map",
    "(Tensor routing_map) -> Tensor",
    lambda call: calculation(call.operands[0].num_elements),  # sums over tokens, for each expert
)
def _row_id_map(routing_map: Any) -> torch.Tensor:
    return routing_map.new_empty(
        (*routing_map.shape[:-1], routing_map.shape[-1] * 2 + 1), dtype=torch.int32
    )


def _permute_cost(call: KernelCall) -> Work:
    """Each token is read once, and written as often as it has experts."""
    return calculation(0)


@kernel(
    "te::permute",
    "(Tensor x, Tensor rows, Tensor? probs, int out) -> (Tensor, Tensor)",
    _permute_cost,
)
def _permute(x: Any, rows: Any, probs: Any, out: int) -> Any:
    kept = out if probs is not None else 0
    like = probs if probs is not None else x
    return x.new_empty((out, x.shape[-1])), like.new_empty((kept,))


def _unpermute_cost(call: KernelCall) -> Work:
    """An addition for each element that is read; with probabilities a product, too."""
    weighted = len(call.operands) > 2
    return calculation(call.operands[0].num_elements * (1 + weighted))


@kernel(
    "te::unpermute", "(Tensor x, Tensor rows, Tensor? probs, int out) -> Tensor", _unpermute_cost
)
def _unpermute(x: Any, rows: Any, probs: Any, out: int) -> Any:
    return x.new_empty((out, x.shape[-1]))


@kernel(
    "te::unpermute_backward",
    "(Tensor grad, Tensor x, Tensor rows, Tensor probs) -> (Tensor, Tensor)",
    lambda call: calculation(3 * call.operands[1].num_elements),
)
def _unpermute_backward(grad: Any, x: Any, rows: Any, probs: Any) -> Any:
    return x.new_empty(x.shape), probs.new_empty(probs.shape)


@kernel("te::sort_chunks", "(Tensor x, Tensor? probs) -> (Tensor, Tensor)", _permute_cost)
def _sort_chunks(x: Any, probs: Any) -> Any:
    return x.new_empty(x.shape), (x if probs is None else probs).new_empty(
        (0,) if probs is None else probs.shape
    )


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, probs: Any, routing_map: Any, out: int) -> Any:
        ctx.set_materialize_grads(False)
        rows = _row_id_map(routing_map)
        found, kept = _permute(x, rows, probs, out)
        ctx.save_for_backward(rows)
        ctx.tokens, ctx.probs = x.shape[0], None if probs is None else probs.shape
        ctx.mark_non_differentiable(rows)
        return found, kept, rows

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (rows,) = ctx.saved_tensors
        of_x = _unpermute(gradients[0].contiguous(), rows, None, ctx.tokens)
        weighted = ctx.probs is not None and gradients[1] is not None
        of_probs = gradients[1].new_empty(ctx.probs) if weighted else None
        return of_x, of_probs, None, None


class _Unpermute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, rows: Any, probs: Any, tokens: int) -> Any:
        ctx.set_materialize_grads(False)
        ctx.weighted, ctx.out = probs is not None, x.shape[0]
        ctx.save_for_backward(*((x, rows, probs) if ctx.weighted else (rows,)))
        return _unpermute(x, rows, probs, tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        grad = gradients[0].contiguous()
        if ctx.weighted:
            x, rows, probs = ctx.saved_tensors
            of_x, of_probs = _unpermute_backward(grad, x, rows, probs)
            return of_x, None, of_probs, None
        (rows,) = ctx.saved_tensors
        return _permute(grad, rows, None, ctx.out)[0], None, None, None


class _SortChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, probs: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.weighted = probs is not None
        return _sort_chunks(x, probs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        grad, of_probs = gradients[0].contiguous(), gradients[1]
        found = _sort_chunks(grad, of_probs if ctx.weighted else None)
        return found[0], found[1] if ctx.weighted else None


def _size(num_out_tokens: int | None) -> int:
    if num_out_tokens is None or int(num_out_tokens) < 0:
        raise FlintError(
            "FL235",
            "moe_permute of Transformer Engine cannot be recorded without num_out_tokens",
            help="give the number of rows: tokens x experts of a token",
        )
    return int(num_out_tokens)


def moe_permute(
    inp: torch.Tensor,
    routing_map: torch.Tensor,
    num_out_tokens: int | None = -1,
    max_token_num: int = -1,
    map_type: str = "mask",
) -> Any:
    """Tokens in the order of their experts, and where each went."""
    out = _size(num_out_tokens)
    found = _Permute.apply(inp, None, routing_map, out)
    return found[0], found[2]


def moe_permute_with_probs(
    inp: torch.Tensor,
    probs: torch.Tensor,
    routing_map: torch.Tensor,
    num_out_tokens: int | None = -1,
) -> Any:
    """The same, with the probabilities of tokens."""
    out = _size(num_out_tokens)
    return _Permute.apply(inp, probs, routing_map, out)


def moe_unpermute(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    merging_probs: Any = None,
    restore_shape: Any = None,
    map_type: str = "mask",
    probs: Any = None,
) -> Any:
    """Tokens in their own order, the results of their experts added up."""
    weights = merging_probs if merging_probs is not None else probs
    tokens = int(restore_shape[0]) if restore_shape is not None else row_id_map.shape[0]
    return _Unpermute.apply(inp, row_id_map, weights, tokens)


def moe_sort_chunks_by_index(inp: torch.Tensor, split_sizes: Any, sorted_index: Any) -> Any:
    """Parts of a tensor in another order."""
    return _SortChunks.apply(inp, None)[0]


def moe_sort_chunks_by_index_with_probs(
    inp: torch.Tensor, probs: torch.Tensor, split_sizes: Any, sorted_index: Any
) -> Any:
    """The same, with the probabilities of tokens."""
    return _SortChunks.apply(inp, probs)
