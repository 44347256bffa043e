"""`xformers.ops`: attention with its biases, (sequences, length, heads, size)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flint.frontends.torch_world.packages.attention import Square, attend, causal_mask
from flint.frontends.torch_world.packages.package import tell

__all__ = [
    "AttentionBias",
    "AttentionOpBase",
    "BlockDiagonalCausalMask",
    "BlockDiagonalMask",
    "LocalAttentionFromBottomRightMask",
    "LowerTriangularFromBottomRightLocalAttentionMask",
    "LowerTriangularFromBottomRightMask",
    "LowerTriangularMask",
    "MemoryEfficientAttentionFlashAttentionOp",
    "memory_efficient_attention",
    "memory_efficient_attention_forward",
]


class AttentionOpBase:
    """A choice of kernels, which is not followed: they multiply the same."""


MemoryEfficientAttentionFlashAttentionOp = (AttentionOpBase, AttentionOpBase)


class AttentionBias:
    """A mask that kernels know: which keys a query sees."""

    causal = False
    window = -1

    def squares(self, q: Any, k: Any) -> list[tuple[int, int]]:
        """Queries and keys of each sequence, where they are several in one."""
        return [(int(q.shape[1]), int(k.shape[1]))]


class LowerTriangularMask(AttentionBias):
    """Keys up to the query."""

    causal = True


class LowerTriangularFromBottomRightMask(LowerTriangularMask):
    """The same, where the last query sees the last key."""


class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularMask):
    """The last `_window_size` keys up to the query."""

    def __init__(self, _window_size: int) -> None:
        self.window = _window_size - 1


class LocalAttentionFromBottomRightMask(AttentionBias):
    """A window of keys to both sides."""

    def __init__(self, window_left: int, window_right: int) -> None:
        self.window = window_left + window_right


class BlockDiagonalMask(AttentionBias):
    """Sequences one after the other."""

    def __init__(self, q_seqlen: Sequence[int], kv_seqlen: Sequence[int]) -> None:
        self.q_seqlen, self.kv_seqlen = list(q_seqlen), list(kv_seqlen)

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, **options: Any
    ) -> BlockDiagonalMask:
        """The mask of sequences of these lengths."""
        return cls(q_seqlen, kv_seqlen if kv_seqlen is not None else q_seqlen)

    def make_causal(self) -> BlockDiagonalCausalMask:
        """The same, with keys up to the query alone."""
        return BlockDiagonalCausalMask(self.q_seqlen, self.kv_seqlen)

    def squares(self, q: Any, k: Any) -> list[tuple[int, int]]:
        """Queries and keys of each sequence."""
        return list(zip(self.q_seqlen, self.kv_seqlen, strict=True))


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Sequences one after the other, with keys up to the query."""

    causal = True


def memory_efficient_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Any:
    """Attention; a bias is a mask of this module, or a tensor that is added to the scores."""
    three = query.dim() == 3
    q, k, v = (t.unsqueeze(2) if three else t for t in (query, key, value))
    shape = q.shape
    if q.dim() == 5:  # (sequences, length, groups, heads of a group, size)
        q, k, v = (t.flatten(2, 3) for t in (q, k, v))
    given = attn_bias if isinstance(attn_bias, torch.Tensor) else None
    known = attn_bias if isinstance(attn_bias, AttentionBias) else AttentionBias()
    out = attend(q, k, v, _square(q, k, known), of="xformers", bias=given)[0]
    out = out.view(*shape[:-1], out.shape[-1])
    return out.squeeze(2) if three else out


memory_efficient_attention_forward = memory_efficient_attention


def _square(q: Any, k: Any, known: AttentionBias) -> Square:
    """The scores of all sequences; those of different lengths as so many of the average."""
    squares = known.squares(q, k)
    mask = causal_mask(known.causal, known.window)
    heads = q.shape[0] * q.shape[2]
    queries = -(-sum(s[0] for s in squares) // len(squares))
    keys = -(-sum(s[0] * s[1] for s in squares) // max(len(squares) * queries, 1))
    if len(set(squares)) > 1 and mask:
        tell("sequences of different lengths under a causal mask are assumed to be equally long")
    return Square(heads * len(squares), queries, keys, mask)
