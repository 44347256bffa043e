"""Functions of `flash_attn` and of `flash_attn_interface`: (sequences, length, heads, size)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from flint.frontends.torch_world.packages.attention import (
    Square,
    attend,
    batch_square,
    causal_mask,
    packed_square,
)
from flint.frontends.torch_world.packages.kernels import kernel
from flint.ir.product_types import product_type
from flint.passes.work import formulas
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def _mask(causal: bool, window: Any) -> int:
    """The mask of a call. A window to both sides is as wide as one that looks back only."""
    left, right = window or (-1, -1)
    if left < 0:
        return causal_mask(causal or right == 0)
    return causal_mask(causal, int(left) + (0 if causal else max(int(right), 0)))


def _result(found: tuple[Any, Any], probabilities: bool) -> Any:
    return (*found, None) if probabilities else found[0]


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    **options: Any,
) -> Any:
    """Attention; with `return_attn_probs` also the logarithms of its sums."""
    square = batch_square(q, k, _mask(causal, window_size))
    return _result(attend(q, k, v, square, of="flash_attn"), return_attn_probs)


def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
    """The same of queries, keys and values in one tensor, (sequences, length, 3, heads, size)."""
    return flash_attn_func(*qkv.unbind(2), *args, **kwargs)


def flash_attn_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
    """The same of keys and values in one tensor."""
    return flash_attn_func(q, *kv.unbind(2), *args, **kwargs)


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    **options: Any,
) -> Any:
    """Attention within sequences that follow each other, (tokens, heads, size)."""
    square = packed_square(q, k, cu_seqlens_q, cu_seqlens_k, _mask(causal, window_size))
    return _result(attend(q, k, v, square, of="flash_attn"), return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
    qkv: Any, cu_seqlens: Any, max_seqlen: Any, *args: Any, **kwargs: Any
) -> Any:
    """The same of queries, keys and values in one tensor."""
    q, k, v = qkv.unbind(1)
    ends = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args)
    return flash_attn_varlen_func(q, k, v, *ends, **kwargs)


def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
    """The same of keys and values in one tensor."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, *args, **kwargs)


# --- with a cache ---------------------------------------------------------------------------------


def _cache_cost(call: KernelCall) -> Work:
    """Attention over all of a cache, which is read; new keys and values are written into it."""
    q, cache = call.operands[:2]
    heads, queries, keys, mask = (
        int(call.attributes[name]) for name in ("heads", "queries", "keys", "mask")
    )
    found = formulas.attention(
        *(heads, queries, keys, q.shape[-1], call.operands[2].shape[-1]),
        backward=False,
        product=product_type([q.dtype, cache.dtype]),
    )
    new = sum(o.num_bytes for o in call.operands[3:5]) if call.attributes["appends"] else 0
    return replace(found, mask=mask, result_bytes=call.results[0].num_bytes + new)


_SIZES = "int heads, int queries, int keys, int mask, bool appends"


@kernel(
    "flash_attn::attention_kvcache",
    f"(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k, Tensor? v, {_SIZES}) -> Tensor",
    _cache_cost,
)
def _with_cache(q: Any, k_cache: Any, v_cache: Any, *rest: Any) -> torch.Tensor:
    return q.new_empty((*q.shape[:-1], v_cache.shape[-1]))


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    **options: Any,
) -> Any:
    """Attention over a cache. Its filled part is known where `cache_seqlens` is a number; else all."""
    pages = k_cache.shape[1] * (block_table.shape[1] if block_table is not None else 1)
    keys = pages
    if isinstance(cache_seqlens, int):
        keys = min(cache_seqlens + (k.shape[1] if k is not None else 0), pages)
    mask = _mask(causal, window_size) if q.shape[1] > 1 else 0
    square = Square(q.shape[0] * q.shape[2], q.shape[1], keys, mask)
    sizes = (square.heads, square.queries, square.keys, square.mask, k is not None)
    return _with_cache(q, k_cache, v_cache, k, v, *sizes)
