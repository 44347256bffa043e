"""`scaled_dot_product_attention` by the kernel that PyTorch chooses for CUDA, which C++ asks of real tensors.

The conditions are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (PyTorch 2.13).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from flint.frontends.torch_private import priorities_of_attention
from flint.frontends.torch_world.device.device import NAME
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches

ATTENTION = Patches()
_HALVES = (torch.float16, torch.bfloat16)
_FLASH_WIDTH = 256  # FlashAttention's widest head


@ATTENTION.replaces("torch.nn.functional:scaled_dot_product_attention")
def attention(session: Session, original: Function) -> Function:
    """Fused kernels stay one operator, forward and backward; without one it is taken apart."""

    @functools.wraps(original, assigned=("__name__",))  # context parallelism replaces it by name
    def attend(*args: Any, **kwargs: Any) -> torch.Tensor:
        nested = bool(args) and args[0].is_nested  # these choose their kernel in Python
        found: torch.Tensor
        if nested or not torch.is_autocast_enabled(NAME):
            found = (original if nested else _attention)(*args, **kwargs)
            return found
        half = torch.get_autocast_dtype(NAME)
        with torch.autocast(NAME, enabled=False, cache_enabled=torch.is_autocast_cache_enabled()):
            return _attention(*(session.autocast.cast(arg, half) for arg in _Call(*args, **kwargs)))

    return attend


@ATTENTION.replaces("torch.backends.cuda:can_use_flash_attention")
def flash_attention(session: Session, original: object) -> Function:
    """C++ looks for CUDA in the tensors; asked for tensors that choose their kernel in Python."""

    def usable(params: Any, debug: bool = False) -> bool:
        half = params.query.dtype in _HALVES
        wide = max(int(t.shape[-1]) for t in (params.query, params.key, params.value))
        plain = params.attn_mask is None and wide <= _FLASH_WIDTH
        return half and plain and torch.backends.cuda.flash_sdp_enabled()

    return usable


@ATTENTION.replaces("torch.backends.cuda:can_use_efficient_attention")
def efficient_attention(session: Session, original: object) -> Function:
    """As above."""
    return lambda params, debug=False: torch.backends.cuda.mem_efficient_sdp_enabled()


class _Call(NamedTuple):
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def in_four_dimensions(self) -> _Call:
        q, k, v = map(_four_dimensions, self[:3])
        mask = None if self.attn_mask is None else _four_dimensions(self.attn_mask)
        return self._replace(query=q, key=k, value=v, attn_mask=mask)

    @property
    def bias(self) -> torch.Tensor | None:
        mask, query = self.attn_mask, self.query
        if mask is None:
            return None
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
        return mask.expand(*query.shape[:3], self.key.shape[2])


def _attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    call = _Call(*args, **kwargs)
    query, value = call.query, call.value
    out = _kernel_of(call.in_four_dimensions)
    return out if query.dim() == 4 else out.reshape(*query.shape[:-1], value.shape[-1])


def _four_dimensions(tensor: torch.Tensor) -> torch.Tensor:
    missing = 4 - tensor.dim()
    return tensor[(None,) * missing] if missing > 0 else tensor.flatten(0, -missing)


def _kernel_of(call: _Call) -> torch.Tensor:
    """The first kernel in the order of priority that is enabled and takes the call."""
    for number in priorities_of_attention():
        kernel = _KERNELS.get(number)
        result = None if kernel is None else kernel(call)
        if result is not None:
            return result
    raise RuntimeError("No available kernel. Aborting execution.")


def _flash(call: _Call) -> torch.Tensor | None:
    q, k, v = call[:3]
    wide = {int(t.shape[-1]) for t in (q, k, v)}
    square = q.shape[2] == k.shape[2] or not call.is_causal
    fits = q.dtype in _HALVES and len(wide) == 1 and max(wide) <= _FLASH_WIDTH and square
    if not fits or call.attn_mask is not None or not torch.backends.cuda.flash_sdp_enabled():
        return None
    return torch.ops.aten._scaled_dot_product_flash_attention(
        q, k, v, call.dropout_p, call.is_causal, scale=call.scale
    )[0]


def _efficient(call: _Call) -> torch.Tensor | None:
    q, k, v = call[:3]
    fits = q.dtype in (*_HALVES, torch.float32) and q.shape[1] == k.shape[1]
    if not fits or not torch.backends.cuda.mem_efficient_sdp_enabled():
        return None
    kept = torch.is_grad_enabled()
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, call.bias, kept, call.dropout_p, call.is_causal, scale=call.scale
    )[0]


def _cudnn(call: _Call) -> torch.Tensor | None:
    q, k, v = call[:3]
    if q.dtype not in _HALVES or not torch.backends.cuda.cudnn_sdp_enabled():
        return None
    kept = torch.is_grad_enabled()
    return torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, call.bias, kept, call.dropout_p, call.is_causal, False, scale=call.scale
    )[0]


def _apart(call: _Call) -> torch.Tensor | None:
    """Products, masks and a softmax, whose scores are kept for the backward pass."""
    if not torch.backends.cuda.math_sdp_enabled():
        return None
    *given, scale, shared = call
    return torch.ops.aten._scaled_dot_product_attention_math(
        *given, None, scale=scale, enable_gqa=shared
    )[0]


#: By their numbers in `torch.nn.attention.SDPBackend`.
_KERNELS: dict[int, Callable[[_Call], torch.Tensor | None]] = {
    0: _apart, 1: _flash, 2: _efficient, 3: _cudnn
}  # fmt: skip
