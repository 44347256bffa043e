"""Reductions, norms, softmax, sorting, pooling, losses: shapes of results where a profile has none."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from flint.tools.measure.profiles.operators.arguments import GivenTensor
from flint.tools.measure.profiles.operators.call import (
    CallEffects,
    Form,
    OperatorCall,
    like,
    tensor,
)
from flint.tools.measure.profiles.operators.types import type_of_number


def reduction(call: OperatorCall) -> CallEffects:
    """(self, dims, keep, dtype), or (self, dtype) over everything."""
    given = call.given
    data = given.needed(0)
    if given.tensor(1) is not None:  # max and min of two tensors
        return CallEffects(given.tensors[:2], (like(data),))
    listed = next((i for i in range(1, len(given)) if given.text(i).startswith("[")), 0)
    plain = given.integers(1) if len(given) > 2 and not listed else None
    dims = given.integers(listed) if listed else plain
    keep = any(given.truth(i) for i in range(2, len(given)))
    made = tensor(_reduced(data.shape, dims or (), keep), _reduced_type(call, data))
    return CallEffects((data,), (made,))


def _reduced(shape: tuple[int, ...], dims: tuple[int, ...], keep: bool) -> tuple[int, ...]:
    gone = {d % len(shape) for d in dims} if shape else set()
    if not dims:
        gone = set(range(len(shape)))
    if keep:
        return tuple(1 if i in gone else s for i, s in enumerate(shape))
    return tuple(s for i, s in enumerate(shape) if i not in gone)


def _reduced_type(call: OperatorCall, data: GivenTensor) -> str:
    if call.base in ("any", "all"):
        return "i1"
    if call.base in ("argmax", "argmin", "count_nonzero"):
        return "i64"
    return "i64" if call.base == "sum" and data.dtype in ("i1", "i32") else data.dtype


def same(call: OperatorCall, at: int = 0) -> CallEffects:
    """A result of the shape of one argument: running sums, gradients of losses."""
    return CallEffects(call.given.tensors, (like(call.given.needed(at)),))


def softmax(call: OperatorCall) -> CallEffects:
    """(self, dim, to float)."""
    data, dim = call.given.needed(0), call.given.integer(1, -1)
    dtype = "f32" if call.given.truth(2) else data.dtype
    return CallEffects((data,), (like(data, dtype),), (), {"dim": dim})


def softmax_backward(call: OperatorCall) -> CallEffects:
    """(gradient, output, dim, type of the input)."""
    gradient, dim = call.given.needed(0), call.given.integer(2, -1)
    dtype = type_of_number(call.given.integer(3, -1) or -1) or gradient.dtype
    return CallEffects(call.given.tensors[:2], (like(gradient, dtype),), (), {"dim": dim})


def norm(call: OperatorCall, shape_at: int) -> CallEffects:
    """Layer and root-mean-square norms: the normalized shape is argument `shape_at`."""
    data, sizes = call.given.needed(0), call.given.integers(shape_at)
    row = math.prod(sizes) if sizes else data.shape[-1] if data.shape else 1
    statistics = [tensor((math.prod(data.shape) // max(row, 1),), "f32")]
    made = (like(data), *statistics * (2 if call.base == "native_layer_norm" else 1))
    return CallEffects(call.given.tensors, made, (), _normalized(sizes))


def norm_backward(call: OperatorCall, shape_at: int) -> CallEffects:
    """(gradient, input, normalized shape, statistics ..., weight, bias, mask)."""
    data, sizes = call.given.needed(1), call.given.integers(shape_at)
    mask = call.given.truths(len(call.given) - 1) or [True]
    weights = [tensor(sizes, data.dtype)] * sum(mask[1:]) if sizes else []
    return CallEffects(call.given.tensors, (like(data), *weights), (), _normalized(sizes))


def _normalized(sizes: tuple[int, ...] | None) -> dict[str, Any]:
    return {"normalized_shape": list(sizes)} if sizes else {}


def group_norm(call: OperatorCall) -> CallEffects | None:
    """(input, weight, bias, N, C, HxW, groups, eps)."""
    data = call.given.needed(0)
    if not data.shape:
        return None
    at = max(len(call.given) - 5, 0)
    groups, batch = call.given.integer(at + 3, 1) or 1, call.given.integer(at, 1) or 1
    row = math.prod(data.shape) // max(groups * batch, 1)
    made = (like(data), *[tensor((batch, groups), data.dtype)] * 2)
    return CallEffects(call.given.tensors, made, (), _normalized((row,)))


def group_norm_backward(call: OperatorCall) -> CallEffects:
    """(gradient, input, mean, deviation, weight, N, C, HxW, groups, mask)."""
    data = call.given.needed(1)
    groups, batch = call.given.integer(8, 1) or 1, call.given.integer(5, 1) or 1
    features, mask = call.given.integer(6, 1) or 1, call.given.truths(9) or [True]
    row = math.prod(data.shape) // max(groups * batch, 1)
    weights = [tensor((features,), data.dtype)] * sum(mask[1:])
    return CallEffects(call.given.tensors, (like(data), *weights), (), _normalized((row,)))


def batch_norm(call: OperatorCall, statistics: str) -> CallEffects:
    """(input, weight, bias, running mean, running variance, ...): the result, and two numbers a channel.

    Those are of the type `statistics`, "" for that of the input. Backward the gradient comes first, of
    cuDNN's and MIOpen's the input: sizes are equal.
    """
    data = call.given.needed(0)
    features = data.shape[1] if len(data.shape) > 1 else 1
    each = tensor((features,), statistics or data.dtype)
    return CallEffects(call.given.tensors, (like(data), each, each))


def sort(call: OperatorCall) -> CallEffects:
    """(self, dim, descending), or with `stable` before."""
    data = call.given.needed(0)
    dims = (call.given.integer(i) for i in range(1, len(call.given)))
    dim = next((n for n in dims if n is not None), -1)
    return CallEffects((data,), (like(data), like(data, "i64")), (), {"dim": dim})


def top_k(call: OperatorCall) -> CallEffects | None:
    """(self, k, dim)."""
    data, k = call.given.needed(0), call.given.integer(1)
    if k is None:
        return None
    dim = (call.given.integer(2, -1) or 0) % len(data.shape)
    shape = (*data.shape[:dim], k, *data.shape[dim + 1 :])
    return CallEffects((data,), (tensor(shape, data.dtype), tensor(shape, "i64")), (), {"dim": dim})


def loss(call: OperatorCall) -> CallEffects:
    """(self, target, ..., reduction): one number, or with reduction 0 one for each element."""
    given = call.given
    data = given.needed(0)
    kept = [given.integer(i) for i in range(1, len(given)) if given.integer(i) is not None]
    whole = call.base.endswith("loss") and kept[:1] == [0]
    return CallEffects(given.tensors, (like(data) if whole else tensor((), data.dtype),))


def pool(call: OperatorCall, dilation: int = -1) -> CallEffects | None:
    """(self, window, stride, padding, ...): means; with an argument `dilation` maxima and their places."""
    data, window = call.given.needed(0), call.given.integers(1)
    if not window or len(data.shape) <= len(window):
        return None
    n = len(window)
    stride = call.given.integers(2) or window
    padding, spread = call.given.integers(3) or (0,) * n, call.given.integers(dilation) or (1,) * n
    spatial = zip(data.shape[-n:], window, stride, padding, spread, strict=True)
    sizes = [(s + 2 * p - d * (w - 1) - 1) // max(st, 1) + 1 for s, w, st, p, d in spatial]
    made = tensor((*data.shape[:-n], *sizes), data.dtype)
    results = (made,) if dilation < 0 else (made, like(made, "i64"))
    return CallEffects(call.given.tensors, results, (), _window(call, 1))


def pool_backward(call: OperatorCall) -> CallEffects:
    """(gradient, self, window, ...)."""
    data = call.given.needed(1)
    return CallEffects(call.given.tensors, (like(data),), (), _window(call, 2))


def _window(call: OperatorCall, at: int) -> dict[str, Any]:
    found = call.given.integers(at)
    return {"kernel_size": list(found)} if found and not call.base.startswith("_adaptive") else {}


def adaptive_pool(call: OperatorCall) -> CallEffects | None:
    """(self, output size)."""
    data, sizes = call.given.needed(0), call.given.integers(1)
    if not sizes or len(data.shape) < len(sizes):
        return None
    return CallEffects((data,), (tensor((*data.shape[: -len(sizes)], *sizes), data.dtype),))


def dropout(call: OperatorCall) -> CallEffects:
    """The values and which of them were kept."""
    data = call.given.needed(0)
    return CallEffects((data,), (like(data), like(data, "i1")))


FORMS: dict[str, Form] = {
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "argmax", "argmin",
         "var", "std", "linalg_vector_norm", "norm", "logsumexp", "aminmax", "var_mean", "std_mean",
         "count_nonzero", "median", "nanmedian"),
        reduction,
    ),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), softmax_backward),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm", "rms_norm"), partial(norm, shape_at=1)),
    **dict.fromkeys(("native_layer_norm_backward", "_fused_rms_norm_backward"), partial(norm_backward, shape_at=2)),
    "native_group_norm": group_norm,
    "native_group_norm_backward": group_norm_backward,
    **dict.fromkeys(
        ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit",
         "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training",
         "_batch_norm_with_update"),
        partial(batch_norm, statistics="f32"),
    ),
    **dict.fromkeys(
        ("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"),
        partial(batch_norm, statistics=""),
    ),
    **dict.fromkeys(("sort", "argsort"), sort),
    "topk": top_k,
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"), same),
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss2d_forward", "mse_loss", "smooth_l1_loss", "huber_loss",
         "binary_cross_entropy"),
        loss,
    ),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), partial(same, at=1)),
    "max_pool2d_with_indices": partial(pool, dilation=4),
    "avg_pool2d": pool,
    **dict.fromkeys(
        ("max_pool2d_with_indices_backward", "avg_pool2d_backward",
         "_adaptive_avg_pool2d_backward"),
        pool_backward,
    ),
    "_adaptive_avg_pool2d": adaptive_pool,
    "native_dropout": dropout,
    "native_dropout_backward": same,
}  # fmt: skip
