"""Norms of flash-attn that add a residual first, one kernel each way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from flint.frontends.torch_world.packages.kernels import kernel
from flint.ir.op_class import OpClass
from flint.passes.work import formulas
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

__all__ = ["RMSNorm", "layer_norm_fn", "rms_norm", "rms_norm_fn"]
#: Operations of an element, as of PyTorch's norms; one more for the residual.
_LAYER, _RMS = 7, 4


def _cost(call: KernelCall, times: int) -> Work:
    x = call.operands[0]
    per_element = (_RMS if call.attributes.get("rms") else _LAYER) * times + 1
    rows = x.num_elements // x.shape[-1]
    return replace(formulas.reduction(x.num_elements, rows, per_element), op=OpClass.NORM)


@kernel(
    "flash_attn::add_norm",
    "(Tensor x, Tensor residual, Tensor weight, Tensor? bias, bool rms, ScalarType kept) "
    "-> (Tensor, Tensor, Tensor)",
    lambda call: _cost(call, 1),
)
def _add_norm(x: Any, residual: Any, weight: Any, bias: Any, rms: bool, kept: Any) -> Any:
    statistics = x.new_empty(x.shape[:-1], dtype=torch.float32)
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=kept), statistics


@kernel(
    "flash_attn::add_norm_backward",
    "(Tensor grad, Tensor? of_sum, Tensor sum, Tensor weight, Tensor? bias, Tensor statistics, bool rms) "
    "-> (Tensor, Tensor, Tensor)",
    lambda call: _cost(call, 2),
)
def _add_norm_backward(
    grad: Any, of_sum: Any, total: Any, weight: Any, bias: Any, statistics: Any, rms: bool
) -> Any:
    of_bias = weight.new_empty(weight.shape if bias is not None else (0,))
    return grad.new_empty(grad.shape), weight.new_empty(weight.shape), of_bias


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Any, residual: Any, weight: Any, bias: Any, rms: bool, kept: Any
    ) -> Any:
        ctx.set_materialize_grads(False)
        out, total, statistics = _add_norm(x, residual, weight, bias, rms, kept)
        ctx.rms = rms
        ctx.save_for_backward(total, weight, bias, statistics)
        return out, total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        total, weight, bias, statistics = ctx.saved_tensors
        found = _add_norm_backward(
            gradients[0], gradients[1], total, weight, bias, statistics, ctx.rms
        )
        return found[0], found[0], found[1], found[2] if bias is not None else None, None, None


def layer_norm_fn(
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
    **options: Any,
) -> Any:
    """A norm of the sum with a residual; with `prenorm` the sum is given back too."""
    if residual is None:
        shape = (x.shape[-1],)
        out = (
            F.rms_norm(x, shape, weight, eps)
            if is_rms_norm
            else F.layer_norm(x, shape, weight, bias, eps)
        )
        return (out, x) if prenorm else out
    kept = torch.float32 if residual_in_fp32 else residual.dtype
    found = _AddNorm.apply(x, residual, weight, bias, is_rms_norm, kept)
    return found if prenorm else found[0]


def rms_norm_fn(x: Any, weight: Any, bias: Any, *args: Any, **kwargs: Any) -> Any:
    """The same with the root mean square."""
    return layer_norm_fn(x, weight, bias, *args, **{**kwargs, "is_rms_norm": True})


def rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    """Root-mean-square norm."""
    return F.rms_norm(x, (x.shape[-1],), weight, epsilon)


class RMSNorm(nn.Module):
    """A module of `rms_norm_fn`."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: Any, residual: Any = None, prenorm: bool = False, **options: Any) -> Any:
        """The normalized input."""
        return rms_norm_fn(
            x, self.weight, self.bias, residual=residual, eps=self.eps, prenorm=prenorm
        )
