"""`flash_attn.bert_padding`: tokens without padding, and back, in PyTorch's operators."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["index_first_axis", "pad_input", "unpad_input"]


def index_first_axis(x: Any, indices: Any) -> Any:
    """Rows of a tensor."""
    return x[indices]


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> Any:
    """Tokens that are not padding, their places, ends of sequences, the longest, and lengths."""
    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    ends = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, ends, longest, lengths


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """Tokens at their places again, zeros elsewhere."""
    out = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    out = out.index_copy(0, indices, hidden_states)
    return out.view(batch, seqlen, *hidden_states.shape[1:])
