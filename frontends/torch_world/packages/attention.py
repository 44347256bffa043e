"""Fused attention of packages: one kernel forward and one backward, in any layout and with a mask.

Of a call the sizes of a full square are told (sequences x heads, queries, keys), and which scores
its mask omits, as `Program.mask` has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from flint.frontends.torch_world.packages.kernels import kernel
from flint.frontends.torch_world.packages.package import tell
from flint.frontends.torch_world.values.packed import packed
from flint.ir.product_types import product_type
from flint.ir.program import CAUSAL
from flint.passes.work import formulas
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

#: Namespaces under which reports show attention.
NAMESPACES = ("te", "flash_attn", "xformers", "flex")
_SIZES = "int heads, int queries, int keys, int mask, int scores"


@dataclass(frozen=True)
class Square:
    """Scores of one call: `heads` of all sequences, each of `queries` x `keys`.

    `mask` is that of `Program.mask`: `CAUSAL`, the keys of a window, or 0. `scores` are those of one
    sequence and head that kernels calculate, where `keys` are only about their number; else 0.
    """

    heads: int
    queries: int
    keys: int
    mask: int = 0
    scores: int = 0


def causal_mask(causal: bool, window: int = -1) -> int:
    """The mask of a call: `window` keys are seen before a query, or all (-1)."""
    if window >= 0:
        return window + 1
    return CAUSAL if causal else 0


def batch_square(q: Any, k: Any, mask: int) -> Square:
    """The scores of (sequences, length, heads, size)."""
    return Square(q.shape[0] * q.shape[2], q.shape[1], k.shape[1], mask if q.shape[1] > 1 else 0)


def packed_square(q: Any, k: Any, ends: Any, ends_of_keys: Any, mask: int) -> Square:
    """The scores of sequences one after the other, (tokens, heads, size).

    Where data say how long each is, they are taken to be equally long. `ends` has one entry more
    than there are sequences.
    """
    found = packed(q.shape[1], q.shape[0], k.shape[0], ends, ends_of_keys)
    if found.assumed:
        tell(found.assumed)
    return Square(*found[:3], mask if found.queries > 1 else 0, found.scores)


def _cost(call: KernelCall, first: int, *, backward: bool) -> Work:
    q, k, v = call.operands[first : first + 3]
    sizes = {name: int(call.attributes[name]) for name in ("heads", "queries", "keys", "mask")}
    product = product_type([q.dtype, k.dtype])
    found = formulas.attention(
        *(sizes["heads"], sizes["queries"], sizes["keys"], q.shape[-1], v.shape[-1]),
        backward=backward,
        product=product,
        scores=int(call.attributes["scores"]),
    )
    return replace(found, mask=sizes["mask"])


def _define(namespace: str) -> tuple[Any, Any]:
    @kernel(
        f"{namespace}::attention_forward",
        f"(Tensor q, Tensor k, Tensor v, Tensor? bias, {_SIZES}) -> (Tensor, Tensor)",
        lambda call: _cost(call, 0, backward=False),
    )
    def forward(q: Any, k: Any, v: Any, bias: Any, heads: int, queries: int, *rest: int) -> Any:
        out = _like(q, v.shape[-1])
        return out, q.new_empty((heads, queries), dtype=torch.float32)

    @kernel(
        f"{namespace}::attention_backward",
        f"(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor out, Tensor lse, {_SIZES}) "
        "-> (Tensor, Tensor, Tensor)",
        lambda call: _cost(call, 1, backward=True),
    )
    def backward(grad: Any, q: Any, k: Any, v: Any, *rest: object) -> Any:
        return _like(q), _like(k), _like(v)

    return forward, backward


def _like(tensor: Any, size: int | None = None) -> Any:
    """A result in the layout of queries, keys or values."""
    if size is None or size == tensor.shape[-1]:
        return torch.empty_like(tensor)
    return tensor.new_empty((*tensor.shape[:-1], size))


_KERNELS = {namespace: _define(namespace) for namespace in NAMESPACES}


def kernels_of(namespace: str) -> tuple[Any, Any]:
    """The operators of attention that reports show under a name: forward and backward."""
    return _KERNELS[namespace]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, bias: Any, square: Square, of: str) -> Any:
        ctx.set_materialize_grads(False)
        sizes = (square.heads, square.queries, square.keys, square.mask, square.scores)
        out, lse = _KERNELS[of][0](q, k, v, bias, *sizes)
        ctx.sizes, ctx.of = sizes, of
        ctx.save_for_backward(q, k, v, bias, out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v, bias, out, lse = ctx.saved_tensors
        grad = gradients[0] if ctx.of == "flex" else gradients[0].contiguous()
        found = _KERNELS[ctx.of][1](grad, q, k, v, bias, out, lse, *ctx.sizes)
        return (*found, None, None, None)


def attend(q: Any, k: Any, v: Any, square: Square, *, of: str, bias: Any = None) -> tuple[Any, Any]:
    """Attention and the logarithms of its sums, by the kernels that reports show as `of`."""
    found: tuple[Any, Any] = _Attention.apply(q, k, v, bias, square, of)
    return found
